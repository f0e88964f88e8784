"""Checks and word counts of fairseq tasks that read text, for models and criteria.

Shapes: V vocabulary.
"""

from pathlib import Path
from typing import Any, Optional, Protocol

import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask
from torch import Tensor

from fairseq_plugins.data.text import is_binarised, load_token_stream, split_parts
from fairseq_plugins.options import UserError


class TextTask(Protocol):
    """A task of fairseq that reads text.

    Attributes:
        cfg: flags of the task, or None where they are in ``args``.
        args: flags of the command, in older tasks.
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
    """Flags of a task: ``cfg``, or ``args`` of older tasks, or None."""
    config = getattr(task, "cfg", None)
    return getattr(task, "args", None) if config is None else config


def check_target_padding(task: TextTask, *, reader: str) -> None:
    """Raise UserError if a task left-pads targets: ``reader`` would read the padding as words."""
    if getattr(task_config(task), "left_pad_target", False):
        raise UserError(f"--left-pad-target: {reader} would read the padding before a sentence: leave it out")


def check_reads_one_text(task: TextTask) -> None:
    """Raise UserError if a task has sentence pairs: a language model reads one text."""
    if isinstance(task, TranslationTask):
        raise UserError(
            "this --arch is a language model, and the task is one of sentence pairs: give --task stateful_lm or "
            "language_modeling, or an --arch for pairs, such as lstm_encdec"
        )


def check_reads_pairs(task: TextTask) -> None:
    """Raise UserError if a task has one text: an encoder-decoder reads sentence pairs."""
    if isinstance(task, LanguageModelingTask):
        raise UserError(
            "this --arch reads sentence pairs, and the task one text: give --task translation or scored_translation, "
            "or an --arch for one text, such as lstm_lm_awd"
        )


# Word counts, for noise distributions. fairseq's dictionary does not count the end mark and the unknown word.


def training_counts(task: TextTask, *, subset: str) -> Optional[Tensor]:
    """Count of each target word in a subset of the task's data, (V,) int64. None where it does not exist.

    Raises:
        UserError: as :func:`~fairseq_plugins.data.text.load_token_stream`.
    """
    config = task_config(task)
    source, target = getattr(config, "source_lang", None), getattr(config, "target_lang", None)
    suffixes = [""]
    if target is not None:
        suffixes = [f".{source}-{target}.{target}", f".{target}-{source}.{target}"]
    dictionary = task.target_dictionary
    counts = [
        load_token_stream(path, part, dictionary).bincount(minlength=len(dictionary))
        for path in utils.split_paths(config.data)
        for part in split_parts(path, subset, suffixes=suffixes)
        if is_binarised(Path(path) / part)
    ]
    return torch.stack(counts).sum(dim=0) if counts else None
