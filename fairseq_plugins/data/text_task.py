"""Tasks as models see them."""

from typing import Any, Protocol

from fairseq.data import Dictionary
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask


class TextTask(Protocol):
    """A task of the host that reads text.

    Attributes:
        cfg: flags of the task, or None where they are in ``args``.
        args: flags of the command, of older tasks.
    """

    cfg: Any
    args: Any

    @property
    def source_dictionary(self) -> Dictionary:
        """Words that the model reads."""

    @property
    def target_dictionary(self) -> Dictionary:
        """Words that the model predicts."""


def task_config(task: TextTask) -> Any:
    """The flags of a task: of one of the host's older kind its arguments; None where it has neither."""
    config = getattr(task, "cfg", None)
    return getattr(task, "args", None) if config is None else config


def check_target_padding(task: TextTask, *, reader: str) -> None:
    """Refuse a task that pads target sentences in front, where ``reader`` would read the padding as words.

    Raises:
        ValueError: with the remedy.
    """
    if getattr(task_config(task), "left_pad_target", False):
        raise ValueError(f"--left-pad-target: {reader} would read the padding before a sentence: leave it out")


def check_reads_one_text(task: TextTask) -> None:
    """Refuse a task of sentence pairs, which a language model cannot read.

    Raises:
        ValueError: with the remedy.
    """
    if isinstance(task, TranslationTask):
        raise ValueError(
            "this --arch is a language model, and the task is one of sentence pairs: give --task stateful_lm or "
            "language_modeling, or an --arch for pairs, such as lstm_encdec"
        )


def check_reads_pairs(task: TextTask) -> None:
    """Refuse a task of one text, which an encoder-decoder cannot read.

    Raises:
        ValueError: with the remedy.
    """
    if isinstance(task, LanguageModelingTask):
        raise ValueError(
            "this --arch reads sentence pairs, and the task one text: give --task translation or scored_translation, "
            "or an --arch for one text, such as lstm_lm_awd"
        )
