"""Reading checkpoints, and refusing those that do not fit a model.

Paths that a user gives and the checkpoints of a ``--save-dir`` are looked up, with errors that name the file. Models of
this package refuse checkpoints of another vocabulary, or with several matrices where they share one.
"""

from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, TypeVar, Union

import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from torch import Tensor, nn

from fairseq_plugins.data.tasks import TextTask, task_config
from fairseq_plugins.data.text import dictionary_fingerprint
from fairseq_plugins.files import BEST, EXPORT_RECORD, checkpoint_of
from fairseq_plugins.options import UserError

Model = TypeVar("Model", bound=BaseFairseqModel)


def check_checkpoints(paths: Sequence[Union[str, Path]]) -> None:
    """Check that all paths are files.

    Raises:
        UserError: if one is not; it names the first.
    """
    for path in map(Path, paths):
        if not path.is_file():
            wrong = "is no file" if path.exists() else "does not exist"
            if (path / EXPORT_RECORD).is_file():
                raise UserError(f"{path} lacks {BEST}: copy the whole folder again")
            if path.is_dir():
                wrong = f"holds no {BEST}" if checkpoint_of(path) == path else "is a directory"
            raise UserError(f"{path} {wrong}: give a checkpoint, such as SAVE_DIR/checkpoint_best.pt")


@contextmanager
def naming_checkpoint(path: Union[str, Path]) -> Iterator[None]:
    """Prefix the message of a ``UserError`` in the block with the name of the checkpoint, unless it has it already."""
    try:
        yield
    except UserError as error:
        if str(path) in str(error):
            raise
        raise UserError(f"{path}: {error}") from error


def read_state(path: Union[str, Path], overrides: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
    """Load a checkpoint to the CPU, with some flags overridden. A ``UserError`` names a missing or damaged file."""
    check_checkpoints([path])
    with naming_checkpoint(path):
        return checkpoint_utils.load_checkpoint_to_cpu(str(path), dict(overrides or {}))


def last_epoch_checkpoints(folder: Path, number: int) -> List[Path]:
    """The checkpoints of the last epochs in a ``--save-dir``, oldest first.

    Raises:
        UserError: if there are fewer than ``number``, or it is no folder.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder: --last takes the epoch checkpoints of a --save-dir")
    found = checkpoint_utils.checkpoint_paths(str(folder))  # newest first
    if len(found) < number:
        raise UserError(
            f"{folder} holds {len(found)} epoch checkpoints, fewer than {number}: train with --keep-last-epochs "
            f"{number} and without --no-epoch-checkpoints"
        )
    return [Path(str(path)) for path in reversed(found[:number])]


def checkpoints_of_updates(folder: Path) -> Dict[int, Path]:
    """The checkpoints that ``--save-interval-updates`` left in a ``--save-dir``, by their updates, oldest first.

    Raises:
        UserError: if there is none, or it is no folder.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder: give the --save-dir of a run")
    found = checkpoint_utils.checkpoint_paths(str(folder), pattern=r"checkpoint_\d+_(\d+)\.pt")  # latest first
    paths = [Path(str(path)) for path in found]
    if not paths:
        raise UserError(
            f"{folder} has no checkpoint_EPOCH_UPDATES.pt: train with --save-interval-updates N and without "
            "--keep-interval-updates"
        )
    return {int(path.stem.rpartition("_")[2]): path for path in reversed(paths)}


def _refuse_unequal_copies(model: nn.Module, state_dict: Dict[str, Tensor], prefix: str, *loading: Any) -> None:
    """Refuse a state that holds different matrices where ``model`` shares one.

    torch would silently keep the last of them. A checkpoint may share more matrices than the model: each of
    the model's matrices gets the shared values.
    """
    for parameter, names in _names_of_shared(model).items():
        saved = [(name, state_dict[f"{prefix}{name}"]) for name in names if f"{prefix}{name}" in state_dict]
        for (one, copy), (another, other_copy) in zip(saved, saved[1:]):
            fit = copy.shape == other_copy.shape == parameter.shape  # torch reports other shapes itself
            is_one = copy.data_ptr() == other_copy.data_ptr()
            if fit and not is_one and not torch.equal(copy, other_copy):
                raise UserError(
                    f"{one} and {another} are one matrix in this model and two in the checkpoint: share embeddings as "
                    "in its training"
                )


def _names_of_shared(model: nn.Module) -> Dict[nn.Parameter, List[str]]:
    """The names of every parameter that has several."""
    names: Dict[nn.Parameter, List[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return {parameter: several for parameter, several in names.items() if len(several) > 1}


class VocabularyFingerprint(nn.Module):
    """Keeps the digest of a dictionary in checkpoints, and refuses checkpoints trained with another dictionary.

    The digest is a buffer of its bytes, as floats because fairseq averages all buffers. Every precision represents
    bytes exactly, and rounding undoes the errors of an average.

    Args:
        dictionary: fairseq's dictionary.
        name: of the dictionary in the error, such as "the source dictionary".
        file: its file in the data directory, such as "dict.de.txt".
        flag: the flag of fairseq-preprocess that takes such a file.
    """

    digest: Tensor

    def __init__(self, dictionary: Dictionary, *, name: str, file: str, flag: str):
        super().__init__()
        self.name, self.file, self.flag = name, file, flag
        digest = dictionary_fingerprint(dictionary).encode()
        self.register_buffer("digest", torch.tensor(list(digest), dtype=torch.float32))

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any, **kwargs: Any) -> None:
        saved = state_dict.get(f"{prefix}digest")
        if saved is not None and not torch.equal(saved.to(self.digest).round(), self.digest.round()):
            raise UserError(
                f"{self.name}, {self.file}, is not the one that the checkpoint was trained with: point to the data of "
                "the training, or prepare your corpus with its vocabulary, by --codes, --source-dict and --target-dict "
                f"of data-prep/own/prepare.sh, or fairseq-preprocess {self.flag} and its {self.file}"
            )
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def keep_vocabularies(model: Model, task: TextTask) -> Model:
    """Let ``model`` refuse checkpoints of other dictionaries than the task's, or with unequal shared embeddings.

    Args:
        model: its decoder and its encoder, if it has one, get the fingerprint of their dictionary as ``vocabulary``.
        task: holds the dictionaries.

    Returns:
        the model.
    """
    if hasattr(model, "encoder"):
        source = VocabularyFingerprint(
            task.source_dictionary, name="the source dictionary", file=_file(task, "source_lang"), flag="--srcdict"
        )
        target = VocabularyFingerprint(
            task.target_dictionary, name="the target dictionary", file=_file(task, "target_lang"), flag="--tgtdict"
        )
        model.get_submodule("encoder").add_module("vocabulary", source)
    else:
        target = VocabularyFingerprint(task.source_dictionary, name="the vocabulary", file="dict.txt", flag="--srcdict")
    model.get_submodule("decoder").add_module("vocabulary", target)
    model.register_load_state_dict_pre_hook(_refuse_unequal_copies)
    return model


def _file(task: TextTask, language_flag: str) -> str:
    language = getattr(task_config(task), language_flag, None)
    return f"dict.{language}.txt" if language else "dict.txt"
