"""Word counts of a binarised training text, the end mark and the unknown word included.

The host's dictionary does not know how often these two occur. Shapes: V vocabulary.
"""

from pathlib import Path
from typing import List, Optional

import numpy as np
import torch
from fairseq import utils
from fairseq.data.indexed_dataset import MMapIndexedDataset, infer_dataset_impl
from fairseq.tasks import FairseqTask
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


def training_word_counts(task: FairseqTask) -> Optional[Tensor]:
    """How often each target word occurs in a task's training text, (V,) int64; None where it is not there.

    For translation these are the words of the target language. Several data directories are one text.

    Raises:
        ValueError: see :func:`count_words`.
    """
    config = task.args if task.cfg is None else task.cfg
    candidates = [Path(path) / name for path in utils.split_paths(config.data) for name in _split_names(config)]
    splits = [split for split in candidates if Path(f"{split}.bin").is_file() and Path(f"{split}.idx").is_file()]
    if not splits:
        return None
    return torch.stack([count_words(split, len(task.target_dictionary)) for split in splits]).sum(dim=0)


def _split_names(config) -> List[str]:
    """Names that the training split may have, of which a directory holds one."""
    subset = getattr(config, "train_subset", "train")  # the host's language modelling task does not know it
    source, target = getattr(config, "source_lang", None), getattr(config, "target_lang", None)
    if target is None:
        return [subset]
    return [f"{subset}.{source}-{target}.{target}", f"{subset}.{target}-{source}.{target}"]
