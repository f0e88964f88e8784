"""Loading trained models for evaluation."""

from argparse import Namespace
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple, Type, Union

from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import BaseFairseqModel, FairseqEncoderDecoderModel, FairseqLanguageModel
from fairseq.tasks import TASK_REGISTRY, FairseqTask
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask
from omegaconf import DictConfig

from fairseq_plugins.data.corpus import load_dictionary
from fairseq_plugins.evaluation.translation.binarised_pairs import (
    Languages,
    check_pair_dictionaries,
    one_pair,
    split_languages,
)
from fairseq_plugins.host.translation_direction import languages_of
from fairseq_plugins.models.checkpoint_files import check_checkpoints, naming_checkpoint, read_state
from fairseq_plugins.modules.carried_state import CarriesState


def trained_task(path: Union[str, Path]) -> Any:
    """The configuration of the task that a checkpoint was trained for; its name is ``_name``.

    Raises:
        ValueError: if the file is unreadable or refused.
    """
    return _task_of(read_state(path), path)


def training_config(state: Dict[str, Any]) -> DictConfig:
    """The configuration of the training whose checkpoint was read; the host's older ones hold flags in its place."""
    args: Optional[Namespace] = state.get("args")
    return state["cfg"] if args is None else convert_namespace_to_omegaconf(args)


def translation_languages(paths: Sequence[Union[str, Path]], data: Path, split: str) -> Languages:
    """Source and target language of encoder-decoders, which their checkpoints say.

    Where one does not, as those of fairseq without this package, the names of the files of ``split`` in ``data`` do.

    Raises:
        ValueError: if a file is missing, unreadable or refused, or holds a language model, or the models translate
            several pairs of languages.
    """
    check_checkpoints(paths)
    pairs: List[Languages] = []
    for path in paths:
        task = trained_task(path)
        if _is_of(task, LanguageModelingTask):
            raise _not_for_translation(path, task)
        source, target = languages_of(task)
        pairs.append((source, target) if source and target else split_languages(data, split))
    return one_pair(pairs)


def load_checkpoint(path: Union[str, Path], data_dir: Union[str, Path]) -> Tuple[BaseFairseqModel, DictConfig]:
    """A model of any task in evaluation mode, and the configuration of its training.

    Raises:
        ValueError: if the file is missing, unreadable or refused, or if its vocabulary is not the data's.
    """
    check_checkpoints([path])
    state = read_state(path, {"data": str(data_dir)})
    task = _task_of(state, path)
    if _is_of(task, TranslationTask):
        check_pair_dictionaries(Path(data_dir), task.source_lang, task.target_lang)
    elif _is_of(task, LanguageModelingTask):
        load_dictionary(data_dir)
    model, config, _ = _build(path, state)
    return model, config


def load_translation_models(
    paths: Sequence[Union[str, Path]], data_dir: Union[str, Path]
) -> List[Tuple[FairseqEncoderDecoderModel, TranslationTask]]:
    """Load encoder-decoders in evaluation mode, each with its task.

    Raises:
        ValueError: if a file is missing, unreadable or refused, if its vocabulary is not the data's, if it is no
            encoder-decoder, or if the data are no sentence pairs.
    """
    check_checkpoints(paths)
    found: List[Tuple[FairseqEncoderDecoderModel, TranslationTask]] = []
    for path in paths:
        state = read_state(path, {"data": str(data_dir)})
        config = _task_of(state, path)
        if not _is_of(config, TranslationTask):
            raise _not_for_translation(path, config)
        check_pair_dictionaries(Path(data_dir), config.source_lang, config.target_lang)
        model, _, task = _build(path, state)
        assert isinstance(model, FairseqEncoderDecoderModel) and isinstance(task, TranslationTask)
        found.append((model, task))
    return found


def stateful_language_model(model: BaseFairseqModel, path: Union[str, Path]) -> FairseqLanguageModel:
    """The model, if it can read a stream window by window; ``path`` names it.

    Raises:
        ValueError: if it carries no state.
    """
    if not isinstance(model, FairseqLanguageModel) or not isinstance(model.decoder, CarriesState):
        raise ValueError(
            f"{path} holds a {type(model).__name__}, which carries no state from window to window: "
            "evaluate it with fairseq-eval-lm"
        )
    return model


def load_language_models(
    paths: Sequence[Union[str, Path]], data_dir: Union[str, Path]
) -> Tuple[List[FairseqLanguageModel], Dictionary]:
    """Load checkpoints in evaluation mode, with the dictionary of ``data_dir``.

    Raises:
        ValueError: if a file is missing, unreadable or refused, if its vocabulary is not the data's, or if
            the model carries no state from window to window.
    """
    models = load_scoring_models(paths, data_dir)
    return [stateful_language_model(model, path) for model, path in zip(models, paths)], load_dictionary(data_dir)


def check_layers(models: Sequence[FairseqLanguageModel], paths: Sequence[Union[str, Path]]) -> None:
    """Refuse models whose recurrent layers cannot be looked into; ``paths`` name them.

    Raises:
        ValueError: for the first of them.
    """
    for model, path in zip(models, paths):
        with naming_checkpoint(path):
            _ = model.decoder.stack  # of a gated model it raises the error


def load_scoring_models(paths: Sequence[Union[str, Path]], data_dir: Union[str, Path]) -> List[FairseqLanguageModel]:
    """Load language models of any kind in evaluation mode, the host's included.

    Raises:
        ValueError: if a file is missing, unreadable or refused, if its vocabulary is not the data's, or if it is no
            language model.
    """
    check_checkpoints(paths)
    models: List[FairseqLanguageModel] = []
    for path in paths:
        state = read_state(path, {"data": str(data_dir)})
        task = _task_of(state, path)
        if not _is_of(task, LanguageModelingTask):
            raise ValueError(f"{path} was trained for --task {task._name}: give a language model's checkpoint")
        load_dictionary(data_dir)
        model, _, _ = _build(path, state)
        assert isinstance(model, FairseqLanguageModel)
        models.append(model)
    return models


def _task_of(state: Dict[str, Any], path: Union[str, Path]) -> Any:
    """The configuration of the task of what has been read.

    Raises:
        ValueError: if there is none, or no such task.
    """
    try:
        task = training_config(state).task
        name = task._name
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} holds no flags of a training: give a checkpoint of fairseq-train, such as "
            "SAVE_DIR/checkpoint_best.pt"
        ) from error
    if name not in TASK_REGISTRY:
        raise ValueError(f"{path} was trained for --task {name}, which neither fairseq nor this package has")
    return task


def _not_for_translation(path: Union[str, Path], task: Any) -> ValueError:
    return ValueError(
        f"{path} was trained for --task {task._name}, not for translation: give an encoder-decoder's checkpoint"
    )


def _is_of(task: Any, kind: Type[FairseqTask]) -> bool:
    return issubclass(TASK_REGISTRY[task._name], kind)


def _build(path: Union[str, Path], state: Dict[str, Any]) -> Tuple[BaseFairseqModel, DictConfig, FairseqTask]:
    """The model of what has been read, in evaluation mode, the configuration of its training, and the task."""
    with naming_checkpoint(path):
        (model,), config, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], state=state)
    assert config is not None and task is not None
    return model.eval(), config, task
