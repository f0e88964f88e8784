"""Loading trained models for evaluation."""

from argparse import Namespace
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Type, Union

from fairseq import checkpoint_utils, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import FairseqLanguageModel
from fairseq.tasks import TASK_REGISTRY, FairseqTask
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask
from omegaconf import DictConfig

from fairseq_plugins.data.pairs import Languages, complete_languages, languages_of, split_languages
from fairseq_plugins.data.text import load_dictionary
from fairseq_plugins.files import EXPORT_RECORD, data_folder, file_digest, read_json
from fairseq_plugins.models.checkpoints import check_checkpoints, naming_checkpoint, read_state
from fairseq_plugins.models.sliding_context import stream_model
from fairseq_plugins.options import UserError


def trained_task(path: Union[str, Path]) -> Any:
    """The configuration of the task that a checkpoint was trained for; its name is ``_name``.

    Raises UserError if the file is unreadable or refused.
    """
    return _task_of(read_state(path), path)


def training_config(state: Dict[str, Any]) -> DictConfig:
    """The configuration of the run that wrote a checkpoint. fairseq's older checkpoints hold its flags instead."""
    args: Optional[Namespace] = state.get("args")
    return state["cfg"] if args is None else convert_namespace_to_omegaconf(args)


def translation_languages(paths: Sequence[Union[str, Path]], data: Path, split: str) -> Languages:
    """Source and target language of encoder-decoders, from their checkpoints.

    Checkpoints of fairseq without this package lack them. Then the file names of ``split`` in ``data`` count. Raises
    UserError if a file is missing, unreadable or refused, or holds a language model, or the models translate several
    pairs of languages.
    """
    check_checkpoints(paths)
    pairs: List[Languages] = []
    for path in paths:
        source, target = languages_of(_task_of(read_state(path), path, kind=TranslationTask))
        pairs.append((source, target) if source and target else split_languages(data, split))
    return one_pair(pairs)


def one_pair(pairs: Iterable[Languages]) -> Languages:
    """The common pair of languages of all models. Raises UserError if they translate several pairs."""
    found = sorted(set(pairs))
    if len(found) > 1:
        named = " and ".join("-".join(pair) for pair in found)
        raise UserError(f"the models translate {named}: give models of one pair of languages")
    return found[0]


def load_language_models(paths: Sequence[Union[str, Path]], data_dir: Union[str, Path]) -> List[FairseqLanguageModel]:
    """Load language models of any kind in evaluation mode. Those of fairseq get a sliding context.

    Raises UserError if a file is missing, unreadable or refused, if its vocabulary is not the data's, or if it is no
    language model or does not separate its features from its scores.
    """
    check_checkpoints(paths)
    models: List[FairseqLanguageModel] = []
    for path in paths:
        model, _ = load_with_task(path, data_dir, kind=LanguageModelingTask)
        if not isinstance(model, FairseqLanguageModel):
            raise UserError(f"{path} holds a {type(model).__name__}: give a language model's checkpoint")
        with naming_checkpoint(path):
            models.append(stream_model(model))
    return models


def _task_of(state: Dict[str, Any], path: Union[str, Path], *, kind: Type[FairseqTask] = FairseqTask) -> Any:
    """The configuration of the task of a checkpoint that was read."""
    try:
        task = training_config(state).task
        name = task._name
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} holds no flags of a run: give a checkpoint of fairseq-train, such as SAVE_DIR/checkpoint_best.pt"
        ) from error
    if name not in TASK_REGISTRY:
        raise UserError(f"{path} was trained for --task {name}, which neither fairseq nor this package has")
    if not issubclass(TASK_REGISTRY[name], kind):
        wanted = "an encoder-decoder" if kind is TranslationTask else "a language model"
        raise UserError(f"{path} was trained for --task {name}: give {wanted}'s checkpoint")
    return task


def load_with_task(
    path: Union[str, Path],
    data_dir: Union[str, Path],
    *,
    kind: Type[FairseqTask] = FairseqTask,
    languages: Optional[Mapping[str, str]] = None,
) -> Tuple[Any, Any]:
    """The model of a checkpoint in evaluation mode, and its task, which is of a kind.

    ``languages`` replaces ``source_lang`` and ``target_lang`` of the task. Raises UserError if the file is missing,
    unreadable or refused, if its vocabulary is not the data's, if the task is of another kind, or if a file of an
    export has changed.
    """
    for folder in (Path(data_dir), Path(path).parent):
        check_export(folder)
    state = read_state(path, {"data": str(data_dir), **(languages or {})})
    wanted = _task_of(state, path, kind=kind)
    if issubclass(TASK_REGISTRY[wanted._name], TranslationTask):
        _check_pair_dictionaries(Path(data_dir), wanted.source_lang, wanted.target_lang)
    elif issubclass(TASK_REGISTRY[wanted._name], LanguageModelingTask):
        load_dictionary(data_dir)
    with naming_checkpoint(path):
        (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], state=state)
    assert task is not None
    return model.eval(), task


def _check_pair_dictionaries(data: Path, source: Optional[str], target: Optional[str]) -> None:
    """Check that a folder has the dictionaries of two languages; None takes the languages from its file names."""
    data_folder(str(data))
    languages = complete_languages((source, target), str(data))
    if not all((data / f"dict.{language}.txt").is_file() for language in languages):
        raise UserError(
            f"{data} has no dictionaries of {languages[0]} and {languages[1]}: give the folder that data-prep wrote"
        )


# Folders of a model, as export writes them.


def exported_files(folder: Path) -> Dict[str, str]:
    """SHA-256 of the files of an export, by name. Raises UserError if the record is damaged."""
    wrong = "is damaged: copy the whole folder again"
    return read_json(folder / EXPORT_RECORD, {"files": dict}, wrong=wrong)["files"]


def check_export(folder: Path) -> None:
    """Check that the files of an export are as they were written. Other folders pass."""
    if (folder / EXPORT_RECORD).is_file():
        for name, digest in exported_files(folder).items():
            if not (folder / name).is_file():
                raise UserError(f"{folder} lacks {name}: copy the whole folder again")
            if file_digest(folder / name) != digest:
                raise UserError(f"{folder / name} is not as it was exported: copy the whole folder again")


def corpus_of(path: Union[str, Path], task: Any, data: Optional[Union[str, Path]] = None) -> Path:
    """The folder with the dictionaries of a checkpoint: the given one, its export, or the data of its training.

    ``task`` is the checkpoint's :func:`trained_task`. Raises UserError if the folder does not exist.
    """
    if data is None and (Path(path).parent / EXPORT_RECORD).is_file():
        return Path(path).parent
    folder = Path(data if data is not None else utils.split_paths(str(task.data))[0])
    if not folder.is_dir():
        origin = "" if data is not None else f", where {path} was trained,"
        raise UserError(f"{folder}{origin} is no folder: give the one that data-prep wrote as data (--data in a shell)")
    return folder
