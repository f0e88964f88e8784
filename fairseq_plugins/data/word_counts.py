"""Word counts of a binarised training text, the end mark and the unknown word included.

The host's dictionary does not know how often these two occur. Shapes: V vocabulary.
"""

from pathlib import Path

import numpy as np
import torch
from fairseq.data.indexed_dataset import MMapIndexedDataset, infer_dataset_impl
from torch import Tensor

TOKENS_AT_ONCE = 2**20
"""Tokens of the file that are held at a time."""


def count_words(split: Path, vocab_size: int) -> Tensor:
    """How often each word occurs in ``split.bin``, (V,) int64.

    Raises:
        ValueError: if the file is not the host's memory-mapped one, or has a word outside of the vocabulary.
    """
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
