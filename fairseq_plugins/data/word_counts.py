"""Word counts of a binarised training text, the end mark and the unknown word included.

The host's dictionary does not know how often these two occur. Shapes: V vocabulary.
"""

from pathlib import Path
from typing import List, Optional

import numpy as np
import torch
from fairseq import utils
from fairseq.data.indexed_dataset import MMapIndexedDataset, infer_dataset_impl
from torch import Tensor

from fairseq_plugins.data.corpus import is_binarised, split_parts
from fairseq_plugins.data.file_digest import check_digest
from fairseq_plugins.data.text_task import TextTask, task_config

TOKENS_AT_ONCE = 2**20
"""Tokens of the file that are held at a time."""


def count_words(split: Path, vocab_size: int) -> Tensor:
    """How often each word occurs in ``split.bin``, (V,) int64.

    Raises:
        ValueError: if the file is not the host's memory-mapped one, has a word outside of the vocabulary, or is not as
            ``digests.json`` has it.
    """
    check_digest(Path(f"{split}.bin"))
    if infer_dataset_impl(str(split)) != "mmap":
        raise ValueError(
            f"{split}.bin: its words cannot be counted; binarise with fairseq-preprocess --dataset-impl mmap"
        )
    dtype = MMapIndexedDataset.Index(f"{split}.idx").dtype
    counts = np.zeros(vocab_size, dtype=np.int64)
    if Path(f"{split}.bin").stat().st_size == 0:
        return torch.from_numpy(counts)
    tokens = np.memmap(f"{split}.bin", dtype=dtype, mode="r")
    for first in range(0, len(tokens), TOKENS_AT_ONCE):
        found = np.bincount(tokens[first : first + TOKENS_AT_ONCE], minlength=vocab_size)
        if len(found) > vocab_size:
            raise ValueError(
                f"{split}.bin has word {len(found) - 1:,}, but the dictionary has {vocab_size:,} words: binarise the "
                "text with this dictionary"
            )
        counts += found
    return torch.from_numpy(counts)


def training_counts(task: TextTask) -> Optional[Tensor]:
    """How often each target word occurs in the task's training text, (V,) int64; None where the text is not there.

    Raises:
        ValueError: if the text cannot be counted, or has a word outside of the vocabulary.
    """
    counts = [count_words(split, len(task.target_dictionary)) for split in training_splits(task)]
    return torch.stack(counts).sum(dim=0) if counts else None


def training_splits(task: TextTask) -> List[Path]:
    """Paths, without suffix, of the binarised target side of the task's training text, as far as they are there."""
    config = task_config(task)
    subset = getattr(config, "train_subset", "train")  # the host's language modelling task does not know it
    source, target = getattr(config, "source_lang", None), getattr(config, "target_lang", None)
    suffixes = [""]
    if target is not None:
        suffixes = [f".{source}-{target}.{target}", f".{target}-{source}.{target}"]
    return [
        Path(path) / part
        for path in utils.split_paths(config.data)
        for part in split_parts(path, subset, suffixes=suffixes)
        if is_binarised(Path(path) / part)
    ]
