"""Checks and word counts of fairseq tasks that read text, for models and criteria.

Shapes: V vocabulary.
"""

from pathlib import Path
from typing import Any, Optional, Protocol

import numpy as np
import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask
from torch import Tensor

from fairseq_plugins.data.text import check_digest, is_binarised, mapped_tokens, split_parts
from fairseq_plugins.options import UserError

TOKENS_AT_ONCE = 2**20
"""Tokens that are counted at a time."""


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


def count_words(split: Path, vocab_size: int) -> Tensor:
    """Count of each word in ``split.bin``, (V,) int64.

    Raises:
        UserError: if the file is not memory-mapped, has a word outside of the vocabulary, or differs from its digest.
    """
    check_digest(Path(f"{split}.bin"))
    tokens = mapped_tokens(split)
    if tokens is None:
        raise UserError(
            f"{split}.bin: its words cannot be counted; binarise with fairseq-preprocess --dataset-impl mmap"
        )
    counts = np.zeros(vocab_size, dtype=np.int64)
    for first in range(0, len(tokens), TOKENS_AT_ONCE):
        found = np.bincount(tokens[first : first + TOKENS_AT_ONCE], minlength=vocab_size)
        if len(found) > vocab_size:
            raise UserError(
                f"{split}.bin has word {len(found) - 1:,}, but the dictionary has {vocab_size:,} words: binarise the "
                "text with this dictionary"
            )
        counts += found
    return torch.from_numpy(counts)


def training_counts(task: TextTask, *, subset: str) -> Optional[Tensor]:
    """Count of each target word in a subset of the task's data, (V,) int64. None where it does not exist.

    Raises:
        UserError: if the text cannot be counted, or has a word outside of the vocabulary.
    """
    config = task_config(task)
    source, target = getattr(config, "source_lang", None), getattr(config, "target_lang", None)
    suffixes = [""]
    if target is not None:
        suffixes = [f".{source}-{target}.{target}", f".{target}-{source}.{target}"]
    counts = [
        count_words(Path(path) / part, len(task.target_dictionary))
        for path in utils.split_paths(config.data)
        for part in split_parts(path, subset, suffixes=suffixes)
        if is_binarised(Path(path) / part)
    ]
    return torch.stack(counts).sum(dim=0) if counts else None
