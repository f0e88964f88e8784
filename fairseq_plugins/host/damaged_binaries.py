"""Binarised text that is damaged, or was binarised with another dictionary, is named, with the remedy.

Mends: the host asserts what it reads first of an index and takes the rest as it is: sentences that begin elsewhere, and
words that the dictionary lacks, end in errors of torch or in another text. Other words of the dictionary are known by
``digests.json``, which the first training writes where data-prep has not.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_reads_another_text`` passes.
"""

import json
import logging
import re
import struct
from pathlib import Path
from typing import Any, Callable, Optional, Type

import numpy as np
from fairseq import checkpoint_utils
from fairseq.data import Dictionary, data_utils, indexed_dataset
from fairseq.data.indexed_dataset import IndexedDataset, MMapIndexedDataset
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer
from fairseq.utils import split_paths

from fairseq_plugins.data.file_digest import DIGESTS_FILE, check_digest, file_digest, read_digests
from fairseq_plugins.flags.written_file import write_text
from fairseq_plugins.host.wrapping import wrap

logger = logging.getLogger(__name__)

MARK = MMapIndexedDataset.Index._HDR_MAGIC

HEADER = struct.Struct("<9sQBQ")
"""Begins the index of a memory-mapped file: its mark, version, type of numbers, number of sentences.

The lengths of all sentences follow in four bytes each, then their places in eight.
"""
TOKENS_AT_ONCE = 2**22
OF_DATA = re.compile(r"dict\.(.+\.)?txt|.+\.(bin|idx)")
"""Names of dictionaries and binarised text."""
REMEDY = "copy it again, or binarise the text again with fairseq-preprocess"


def mend() -> None:
    """Wrap the host's ``make_dataset``, which opens all binarised text, and ``load_indexed_dataset`` above it.

    ``load_checkpoint`` is wrapped since a training, and no other command, calls it; its text has been opened by then.
    """
    wrap(indexed_dataset, "make_dataset", _check_and_open)
    wrap(data_utils, "load_indexed_dataset", _name_unreadable)
    wrap(checkpoint_utils, "load_checkpoint", _load_and_add_digests)


def _load_and_add_digests(
    load_checkpoint: Callable[..., Any], cfg: CheckpointConfig, trainer: Trainer, **kwargs: Any
) -> Any:
    """Begin a training, and write the digests of its data where they are not known and the folder can be written to."""
    loaded = load_checkpoint(cfg, trainer, **kwargs)
    data: str = getattr(trainer.cfg.task, "data", None) or ""
    if not cfg.no_save and distributed_utils.is_master(trainer.cfg.distributed_training):
        for folder in [data] if Path(data).is_dir() else split_paths(data):
            try:
                _add_digests(Path(folder))
            except OSError as error:
                logger.info(
                    f"{folder} keeps no digests of its files ({error.strerror}): damage to them may not be seen"
                )
    return loaded


def _add_digests(folder: Path) -> None:
    """Write the digests of a folder's dictionaries and binarised text; those that are known stay."""
    known = read_digests(folder)
    names = sorted(path.name for path in folder.iterdir() if OF_DATA.fullmatch(path.name) and path.is_file())
    if new := [name for name in names if name not in known]:
        found = {**known, **{name: file_digest(folder / name) for name in new}}
        write_text(folder / DIGESTS_FILE, f"{json.dumps(found, indent=1)}\n")


def _name_unreadable(load_indexed_dataset: Callable[..., Any], path: str, *args: Any, **kwargs: Any) -> Any:
    """Open a split.

    Raises:
        ValueError: if the system cannot read it.
    """
    try:
        return load_indexed_dataset(path, *args, **kwargs)
    except OSError as error:
        raise ValueError(f"{error.filename or path}: {error.strerror}: {REMEDY}") from error


def _check_and_open(
    make_dataset: Callable[..., Any],
    path: str,
    impl: str,
    fix_lua_indexing: bool = False,
    dictionary: Optional[Dictionary] = None,
) -> Any:
    """Open a split.

    Args:
        make_dataset: the host's.
        path: of the split, without ``.bin`` and ``.idx``.
        impl: the host's name for the form of the files.
        fix_lua_indexing: as the host means it.
        dictionary: of the text, or None where it is no text.

    Raises:
        ValueError: if it is damaged, has words that the dictionary lacks, or is not as ``digests.json`` has it.
    """
    if not IndexedDataset.exists(path):
        return make_dataset(path, impl, fix_lua_indexing, dictionary)
    with open(f"{path}.idx", "rb") as file:
        header = file.read(HEADER.size)
    if header.startswith(MARK):
        _check_index(path, header)
    try:
        dataset = make_dataset(path, impl, fix_lua_indexing, dictionary)
    except (AssertionError, KeyError, ValueError, struct.error) as error:
        raise ValueError(f"{path}.idx is damaged or of another --dataset-impl: {REMEDY}") from error
    if dictionary is not None and isinstance(dataset, MMapIndexedDataset):
        assert dataset._index is not None
        _check_words(path, dataset._index.dtype, first=0, num_words=len(dictionary))
    elif dictionary is not None and isinstance(dataset, IndexedDataset):
        _check_words(path, dataset.dtype, first=1, num_words=len(dictionary))  # as Lua counts
    for suffix in ("bin", "idx"):
        check_digest(Path(f"{path}.{suffix}"))
    return dataset


def _check_index(path: str, header: bytes) -> None:
    """Refuse a memory-mapped split whose index and text do not belong together."""
    damaged = f"{path}.idx is damaged: {REMEDY}"
    index, text = Path(f"{path}.idx"), Path(f"{path}.bin")
    if len(header) < HEADER.size:
        raise ValueError(damaged)
    _, version, code, num = HEADER.unpack(header)
    dtype = indexed_dataset._code_to_dtype.get(code)
    if version != 1 or dtype is None or index.stat().st_size != HEADER.size + 12 * num:
        raise ValueError(damaged)
    lengths = np.fromfile(index, "<i4", num, offset=HEADER.size).astype(np.int64) * np.dtype(dtype).itemsize
    places = np.fromfile(index, "<i8", num, offset=HEADER.size + 4 * num)
    ends = lengths.cumsum()
    if (lengths < 0).any() or not np.array_equal(places, ends - lengths):
        raise ValueError(damaged)
    expected, found = int(ends[-1]) if num else 0, text.stat().st_size
    if found != expected:
        raise ValueError(f"{text} has {found:,} bytes, and {index} tells of {expected:,}: {REMEDY}")


def _check_words(path: str, dtype: Type[np.number], *, first: int, num_words: int) -> None:
    """Refuse a split with words that the dictionary lacks; ``first`` is the number of its first word."""
    if Path(f"{path}.bin").stat().st_size == 0:
        return
    tokens = np.memmap(f"{path}.bin", dtype=dtype, mode="r")
    for start in range(0, len(tokens), TOKENS_AT_ONCE):
        some = tokens[start : start + TOKENS_AT_ONCE]
        for word in (int(some.min()) - first, int(some.max()) - first):
            if not 0 <= word < num_words:
                raise ValueError(
                    f"{path}.bin has word {word:,}, but the dictionary has {num_words:,} words: it was binarised with "
                    "another dictionary, or is damaged; binarise the text with this dictionary"
                )
