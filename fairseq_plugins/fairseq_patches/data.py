"""Binarised text that is damaged, or was binarised with another dictionary, is named, with the remedy.

Patches: fairseq asserts what it reads first of an index and takes the rest as it is: sentences that begin elsewhere,
and words that the dictionary lacks, end in errors of torch or in another text. Other words of the dictionary are known
by ``digests.json``, which the first training writes where data-prep has not.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_fairseq_alone_reads_another_text`` passes.
"""

import json
import logging
import os
import re
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Iterable, List, Optional, Sequence, Sized, Type, Union

import numpy
import numpy as np
from fairseq import checkpoint_utils, utils
from fairseq.data import Dictionary, bucket_pad_length_dataset, data_utils, indexed_dataset
from fairseq.data.indexed_dataset import IndexedDataset, MMapIndexedDataset
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.distributed import utils as distributed_utils
from fairseq.tasks import FairseqTask, translation
from fairseq.tasks.fairseq_task import FairseqTask as PathListsFairseqTask
from fairseq.tasks.fairseq_task import LegacyFairseqTask
from fairseq.trainer import Trainer
from fairseq.utils import split_paths

from fairseq_plugins.data.text import DIGESTS_FILE, check_digest, file_digest, read_digests
from fairseq_plugins.fairseq_patches.patching import wrap
from fairseq_plugins.options import write_text

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


def patch_damaged_binaries() -> None:
    """Wrap fairseq's ``make_dataset``, which opens all binarised text, and ``load_indexed_dataset`` above it.

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
        make_dataset: fairseq's.
        path: of the split, without ``.bin`` and ``.idx``.
        impl: fairseq's name for the form of the files.
        fix_lua_indexing: as fairseq means it.
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


# A dictionary that cannot be read, or is not as ``digests.json`` has it, is named, with the row and the remedy.
#
# Patches: fairseq tells of a row of another form, or of a word that stands twice, without the file, and of text that is
# not UTF-8 without the row.
# Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
# Needed as long as ``test_fairseq_alone_names_no_row`` passes.


UNREADABLE_DICTIONARIES_REMEDY = "take the file of the training, or run fairseq-preprocess again"


def patch_unreadable_dictionaries() -> None:
    """Wrap fairseq's ``Dictionary.add_from_file``."""
    wrap(Dictionary, "add_from_file", _name_row)


def _name_row(add_from_file: Callable[..., None], dictionary: Dictionary, file: Any) -> None:
    """Read a dictionary; ``file`` is a path or, where fairseq has opened it, the file.

    Raises:
        ValueError: if it is missing, cannot be read, is damaged or is not as ``digests.json`` has it.
    """
    num_before = len(dictionary)
    try:
        add_from_file(dictionary, file)
    except OSError as error:
        if not isinstance(file, str):
            raise
        raise ValueError(f"{file}: {error.strerror}: {UNREADABLE_DICTIONARIES_REMEDY}") from error
    except Exception as error:
        row = len(dictionary) - num_before + 1  # every row is a word
        if not isinstance(file, str):
            raise
        elif isinstance(error.__context__, UnicodeDecodeError):
            row, wrong = _first_undecodable(file), "not UTF-8"
        elif isinstance(error, RuntimeError):
            wrong = "its word stands there twice"
        elif isinstance(error, ValueError):
            wrong = "not a word and its count"
        else:
            raise
        raise ValueError(f"{file}, line {row}: {wrong}: {UNREADABLE_DICTIONARIES_REMEDY}") from error
    if isinstance(file, str):
        check_digest(Path(file))


def _first_undecodable(path: str) -> int:
    """The number of the first line that is not UTF-8, from 1."""
    with open(path, "rb") as file:
        return next(number for number, line in enumerate(file, start=1) if not _is_utf8(line))


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


# A folder that lacks the sentence pairs of a translation task is refused, with the remedy.
#
# Patches: fairseq lets a traceback say that it found no pair of languages, no such folder or no such split.
# Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
# Needed as long as ``test_fairseq_alone_names_no_remedy`` passes.


MISSING_PAIRS_REMEDY = "give the directory that data-prep or fairseq-preprocess wrote for two languages"


def patch_missing_pairs() -> None:
    """Wrap fairseq's ``infer_language_pair`` and ``load_langpair_dataset``, which its task of translation calls."""
    wrap(data_utils, "infer_language_pair", _find_pair)
    wrap(translation, "load_langpair_dataset", _load_split)


def _find_pair(infer_language_pair: Callable[[str], Sequence[Optional[str]]], path: str) -> List[str]:
    """Source and target language that the names of a folder's files tell.

    Raises:
        ValueError: if they tell none.
    """
    try:
        languages = [language for language in infer_language_pair(path) if language]
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}: {MISSING_PAIRS_REMEDY}") from error
    if not languages:
        raise ValueError(f"{path} holds no sentence pairs: {MISSING_PAIRS_REMEDY}")
    return languages


def _load_split(
    load_langpair_dataset: Callable[..., Any], data_path: str, split: str, *args: Any, **kwargs: Any
) -> Any:
    """The sentence pairs of a split.

    Raises:
        ValueError: if there are none.
    """
    try:
        return load_langpair_dataset(data_path, split, *args, **kwargs)
    except FileNotFoundError as error:
        source, _, target = args[:3]
        raise ValueError(
            f"there is no split '{split}' of {source} and {target} in {data_path}: take another split or folder, or "
            "run fairseq-preprocess with its text"
        ) from error


# Every sentence is in a batch.
#
# Patches: fairseq drops the sentences at the end whose number is no multiple of --required-batch-size-multiple, 8 by
# default, in validation and generation too, so that a test set of 1,014 sentences has 1,008.
# Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
# Needed as long as ``test_fairseq_alone_drops_sentences`` passes.


Batch = Union[Sequence[int], numpy.ndarray]
"""Indices of sentences."""


def patch_batch_by_size() -> None:
    """Wrap fairseq's ``batch_by_size``."""
    wrap(data_utils, "batch_by_size", _keep_the_last_batch)


def _keep_the_last_batch(
    batch_by_size: Callable[..., Sequence[Batch]], indices: Iterable[int], *args: Any, **kwargs: Any
) -> Sequence[Batch]:
    """Batches of all sentences.

    Raises:
        ValueError: if a sentence is longer than ``--max-tokens``.
    """
    indices = numpy.asarray(indices if hasattr(indices, "__len__") else list(indices), dtype=numpy.int64)
    try:
        batches = batch_by_size(indices, *args, **kwargs)
    except AssertionError as error:
        if "max_tokens" not in str(error):
            raise
        raise ValueError(f"{error}: give a higher --max-tokens, or leave long sentences out") from None
    num_kept = sum(len(batch) for batch in batches)
    return batches if num_kept == len(indices) else [*batches, indices[num_kept:]]


# A data set of which no sentence is short enough is refused, with the limits, and one that may leave none out.
#
# Patches: fairseq leaves out what is too long, and where nothing is left fails with an ``IndexError``; where it may
# leave
# out none, it raises an ``Exception``, which ends with a traceback.
# Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
# Needed as long as ``test_fairseq_alone_leaves_nothing`` passes.


def patch_filtered_sentences() -> None:
    """Wrap fairseq's ``FairseqTask.filter_indices_by_size``."""
    wrap(FairseqTask, "filter_indices_by_size", _keep_some)


def _keep_some(
    filter_indices_by_size: Callable[..., Sized],
    task: FairseqTask,
    indices: Sized,
    dataset: Any,
    max_positions: Optional[Any] = None,
    ignore_invalid_inputs: bool = False,
) -> Sized:
    """The sentences that are short enough.

    Raises:
        ValueError: if there are none, or if none may be left out and one is too long.
    """
    limit = f"than {max_positions} tokens, the least of --max-tokens, --max-source-positions and --max-target-positions"
    if not ignore_invalid_inputs:
        num_too_long = len(dataset.filter_indices_by_size(indices, max_positions)[1])
        if 0 < num_too_long < len(indices):
            raise ValueError(
                f"{num_too_long:,} of {len(indices):,} sentences are longer {limit}: raise what is too low, or give "
                "--skip-invalid-size-inputs-valid-test, which leaves them out"
            )
        ignore_invalid_inputs = True  # there are none, or all are
    kept = filter_indices_by_size(task, indices, dataset, max_positions, ignore_invalid_inputs)
    if len(indices) > 0 and len(kept) == 0:
        raise ValueError(f"all {len(indices):,} sentences are longer {limit}: raise what is too low")
    return kept


# ``--num-batch-buckets`` pads sentences to one of so many lengths.
#
# Patches: numpy 2.4 has no ``interpolation`` in ``numpy.percentile``, by which fairseq finds the lengths.
# Versions: fairseq 0.12.2, ve-fairseq 0.12.3, with numpy 2.4 and later.
# Needed as long as ``test_fairseq_alone_finds_no_lengths`` passes.


def patch_length_buckets() -> None:
    """Wrap the ``get_buckets`` of fairseq's padded data sets."""
    wrap(bucket_pad_length_dataset, "get_buckets", _quantiles)


def _quantiles(get_buckets: Callable[..., Any], sizes: Any, num_buckets: int) -> numpy.ndarray:
    lengths = numpy.sort(sizes)
    return numpy.unique(lengths[numpy.arange(1, num_buckets + 1) * (len(lengths) - 1) // num_buckets])


# ``numpy.compat.long`` exists.
#
# Patches: numpy 2 has no ``numpy.compat``, and fairseq's data sets still ask for its ``long``.
# Versions: fairseq 0.12.2, ve-fairseq 0.12.3, with numpy 2 and later.
# Needed as long as ``grep -r np.compat`` finds anything in the installed fairseq, and numpy itself has none.


def patch_numpy_compat() -> None:
    """Give numpy what it had, if it is missing."""
    if not hasattr(numpy, "compat"):
        numpy.compat = SimpleNamespace(long=int)  # pyrefly: ignore[missing-attribute]


# A path with a colon in it is one path, where it exists.
#
# Patches: fairseq splits ``--path`` and DATA at every colon, so that the checkpoint and the data of a folder such as
# ``runs/2024-01-01T10:00:00`` are looked for in two places. Lists joined by colons are still split.
# Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
# Needed as long as ``test_fairseq_alone_splits_at_every_colon`` passes.


def patch_path_lists() -> None:
    """Wrap ``split_paths``, with which fairseq reads all lists of paths, and what tells shards from one folder."""
    wrap(utils, "split_paths", _split_where_nothing_exists)
    for task in (PathListsFairseqTask, LegacyFairseqTask):
        wrap(task, "has_sharded_data", _has_several_folders)


def _split_where_nothing_exists(
    split_paths: Callable[..., List[str]], paths: str, separator: str = os.pathsep
) -> List[str]:
    """The paths of a list; from left to right, the longest part of it that exists is one path."""
    if os.path.exists(paths):
        return [paths]
    parts = split_paths(paths, separator)
    if "://" in paths:  # addresses, which fairseq joins by another sign
        return parts
    found: List[str] = []
    while parts:
        joined = [separator.join(parts[:number]) for number in range(len(parts), 1, -1)]
        found.append(next(filter(os.path.exists, joined), parts[0]))
        parts = parts[found[-1].count(separator) + 1 :]
    return found


def _has_several_folders(has_sharded_data: Callable[..., bool], task: Any, split: str) -> bool:
    config = task.args if isinstance(task, LegacyFairseqTask) else task.cfg
    return has_sharded_data(task, split) and len(utils.split_paths(config.data)) > 1
