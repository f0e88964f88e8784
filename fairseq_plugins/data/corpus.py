"""Reading a binarised split as one token stream."""

import hashlib
from itertools import count, takewhile
from pathlib import Path
from typing import List, Optional, Sequence, Union

import numpy as np
import torch
from fairseq.data import Dictionary, data_utils
from fairseq.data.indexed_dataset import MMapIndexedDataset, infer_dataset_impl
from torch import Tensor
from tqdm import tqdm

PROGRESS_FROM_LINES = 200_000


def load_dictionary(data_dir: Union[str, Path]) -> Dictionary:
    """Load ``dict.txt`` of a directory that ``fairseq-preprocess`` wrote.

    Raises:
        ValueError: if the directory or the file is missing.
    """
    path = Path(data_dir) / "dict.txt"
    if not path.is_file():
        raise ValueError(
            f"{path} does not exist: give the directory that fairseq-preprocess --only-source wrote "
            "(its --destdir); data-prep/ptb/prepare.sh makes one"
        )
    return Dictionary.load(str(path))


def split_parts(data_dir: Union[str, Path], split: str, *, suffixes: Sequence[str] = ("",)) -> List[str]:
    """The names of a split and of those beside it that the host trains on as well: train, train1, train2 and so on.

    Args:
        data_dir: where they are.
        split: its name.
        suffixes: what follows the number, such as that of a side of sentence pairs; of several the first with which
            there is a binarised text is taken, number by number.
    """

    def part(number: str) -> Optional[str]:
        names = [f"{split}{number}{suffix}" for suffix in suffixes]
        return next((name for name in names if is_binarised(Path(data_dir) / name)), None)

    more = takewhile(lambda name: name is not None, (part(str(n)) for n in count(1)))
    return [part("") or f"{split}{suffixes[0]}", *filter(None, more)]


def is_binarised(path: Path) -> bool:
    """Whether there is a binarised text; ``path`` has no suffix."""
    return all(path.with_name(f"{path.name}.{suffix}").is_file() for suffix in ("bin", "idx"))


def load_token_stream(data_dir: Union[str, Path], split: str, dictionary: Dictionary) -> Tensor:
    """All tokens of a split, (n,) int64, in order, one end mark after every line, blank ones included.

    Raises:
        ValueError: if the split is missing, empty, or has no word.
    """
    path = Path(data_dir) / split
    if not is_binarised(path):
        raise ValueError(
            f"there is no split '{split}' in {data_dir} ({path}.bin and {path}.idx): "
            "run fairseq-preprocess with the text of this split"
        )
    if path.with_name(f"{path.name}.bin").stat().st_size == 0:
        raise ValueError(f"split '{split}' in {data_dir} is empty: check the text given to fairseq-preprocess")
    lines = data_utils.load_indexed_dataset(str(path), dictionary)
    assert lines is not None
    tokens = _whole_file(path)
    if tokens is None:
        if lines.supports_prefetch:  # it gives nothing else
            lines.prefetch(range(len(lines)))
        shown = tqdm(range(len(lines)), desc=f"reading {split}", unit="line", disable=len(lines) < PROGRESS_FROM_LINES)
        tokens = torch.cat([lines[i] for i in shown]).long()
    if bool((tokens == dictionary.eos()).all()):
        raise ValueError(
            f"split '{split}' in {data_dir} holds {len(lines):,} blank lines and no word: "
            "check the text given to fairseq-preprocess"
        )
    return tokens


def _whole_file(path: Path) -> Optional[Tensor]:
    """All tokens of a memory-mapped text, (n,) int64, whose lines follow each other; None of one of another kind."""
    if infer_dataset_impl(str(path)) != "mmap":
        return None
    dtype = MMapIndexedDataset.Index(f"{path}.idx").dtype
    return torch.from_numpy(np.fromfile(f"{path}.bin", dtype=dtype).astype(np.int64))


def load_training_stream(data_dir: Union[str, Path], dictionary: Dictionary, *, subset: str = "train") -> Tensor:
    """All tokens that the host trains on, (n,) int64: those of train, train1, train2 and so on.

    Raises:
        ValueError: as :func:`load_token_stream`.
    """
    return torch.cat([load_token_stream(data_dir, part, dictionary) for part in split_parts(data_dir, subset)])


def dictionary_fingerprint(dictionary: Dictionary) -> str:
    """A digest of the symbols in order; equal for dictionaries that number words alike."""
    return hashlib.sha256("\n".join(dictionary.symbols).encode()).hexdigest()
