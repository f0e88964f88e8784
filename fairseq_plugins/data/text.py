"""Prepared corpora: dictionaries and binarised splits.

Shapes: n tokens of a text.
"""

import hashlib
from pathlib import Path
from typing import List, Optional, Sequence, Union

import numpy as np
import torch
from fairseq.data import Dictionary, data_utils
from fairseq.data.indexed_dataset import MMapIndexedDataset
from torch import Tensor

from fairseq_plugins.console import progress
from fairseq_plugins.files import EXPORT_RECORD
from fairseq_plugins.options import UserError


def load_dictionary(data_dir: Union[str, Path]) -> Dictionary:
    """Load ``dict.txt`` of a directory that ``fairseq-preprocess`` wrote.

    Raises:
        UserError: if the directory or the file is missing.
    """
    path = Path(data_dir) / "dict.txt"
    if not path.is_file():
        found = "it holds sentence pairs" if any(path.parent.glob("dict.*.txt")) else "it is no such folder"
        raise UserError(
            f"{path} does not exist: a language model needs a folder of one side, as data-prep writes it for ptb or "
            f"own NAME, or fairseq-preprocess --only-source; {found}"
        )
    return Dictionary.load(str(path))


def split_parts(data_dir: Union[str, Path], split: str, *, suffixes: Sequence[str] = ("",)) -> List[str]:
    """Names of the parts of a split that fairseq concatenates: train, train1, train2 and so on.

    Args:
        data_dir: folder of the binarised text.
        split: name of the split.
        suffixes: suffixes of a side of sentence pairs. The first one that exists is taken, number by number.
    """

    def part(number: str) -> Optional[str]:
        names = [f"{split}{number}{suffix}" for suffix in suffixes]
        return next((name for name in names if is_binarised(Path(data_dir) / name)), None)

    names = [part("") or f"{split}{suffixes[0]}"]
    while name := part(str(len(names))):
        names.append(name)
    return names


def is_binarised(path: Path) -> bool:
    """Whether there is a binarised text at ``path``, which has no suffix."""
    return all(path.with_name(f"{path.name}.{suffix}").is_file() for suffix in ("bin", "idx"))


EXPORT_HAS_NO_SPLIT = "an export holds a model and no text, so give the prepared corpus as DATA"


def load_token_stream(data_dir: Union[str, Path], split: str, dictionary: Dictionary) -> Tensor:
    """All tokens of a split, (n,) int64, in order, one end mark after every line, blank ones included.

    Raises:
        UserError: if the split is missing, empty, or has no word.
    """
    path = Path(data_dir) / split
    if not is_binarised(path):
        is_export = (path.parent / EXPORT_RECORD).is_file()
        raise UserError(
            f"there is no split '{split}' in {data_dir} ({path}.bin and {path}.idx): "
            f"{EXPORT_HAS_NO_SPLIT if is_export else 'prepare the corpus with a text of this split'}"
        )
    if path.with_name(f"{path.name}.bin").stat().st_size == 0:
        raise UserError(f"split '{split}' in {data_dir} is empty: check the text that was prepared")
    lines = data_utils.load_indexed_dataset(str(path), dictionary)
    assert lines is not None
    if isinstance(lines, MMapIndexedDataset):  # one read instead of one a line
        assert lines._index is not None
        mapped = np.memmap(f"{path}.bin", dtype=lines._index.dtype, mode="r")
        tokens = torch.from_numpy(mapped.astype(np.int64))
    else:
        if lines.supports_prefetch:  # such a dataset returns only prefetched lines
            lines.prefetch(range(len(lines)))
        shown = progress(range(len(lines)), desc=f"reading {split}", unit="line")
        tokens = torch.cat([lines[i] for i in shown]).long()
    if bool((tokens == dictionary.eos()).all()):
        raise UserError(
            f"split '{split}' in {data_dir} holds {len(lines):,} blank lines and no word: "
            "check the text that was prepared"
        )
    return tokens


def load_training_stream(data_dir: Union[str, Path], dictionary: Dictionary, *, subset: str = "train") -> Tensor:
    """All tokens that fairseq trains on, (n,) int64: train, train1, train2 and so on.

    Raises:
        UserError: as :func:`load_token_stream`.
    """
    return torch.cat([load_token_stream(data_dir, part, dictionary) for part in split_parts(data_dir, subset)])


def split_lines(tokens: Tensor, *, end: int) -> List[Tensor]:
    """The lines of a stream (n,) that are not blank, each with its end mark."""
    ends = (tokens == end).nonzero()[:, 0].tolist()
    spans = zip([0, *(i + 1 for i in ends)], (i + 1 for i in ends))
    return [tokens[start:stop] for start, stop in spans if stop - start > 1]


def dictionary_fingerprint(dictionary: Dictionary) -> str:
    """Digest of the symbols in order. Equal for dictionaries that give words the same indices."""
    return hashlib.sha256("\n".join(dictionary.symbols).encode()).hexdigest()
