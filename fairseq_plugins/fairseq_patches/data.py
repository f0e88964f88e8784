"""Patches of reading data: damaged files are refused, and every sentence is used."""

import json
import logging
import os
import re
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Iterable, List, Optional, Sequence, Sized, Type, Union

import numpy as np
from fairseq import checkpoint_utils, utils
from fairseq.data import Dictionary, bucket_pad_length_dataset, data_utils, indexed_dataset
from fairseq.data.indexed_dataset import IndexedDataset, MMapIndexedDataset
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.distributed import utils as distributed_utils
from fairseq.tasks import FairseqTask, translation
from fairseq.tasks.fairseq_task import LegacyFairseqTask
from fairseq.trainer import Trainer

from fairseq_plugins.data.text import DIGESTS_FILE, check_digest, file_digest, read_digests
from fairseq_plugins.fairseq_patches.patching import wrap
from fairseq_plugins.options import UserError, write_text

logger = logging.getLogger(__name__)

DICTIONARY_REMEDY = "take the file of the training, or run fairseq-preprocess again"


def patch_unreadable_dictionaries() -> None:
    """Name the file and the row if a dictionary cannot be read, or differs from ``digests.json``.

    Problem: fairseq reports a malformed row or a duplicate word without the file, and text that is not UTF-8 without
        the row.
    Patch: wrap ``Dictionary.add_from_file``.
    Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
    Needed while ``test_fairseq_alone_names_no_row`` passes.
    """
    wrap(Dictionary, "add_from_file", _read_or_explain)


def _read_or_explain(add_from_file: Callable[..., None], dictionary: Dictionary, file: Any) -> None:
    """Read a dictionary from a path, or from a file that fairseq has opened.

    Raises:
        UserError: if it is missing, unreadable or damaged, or differs from ``digests.json``.
    """
    num_before = len(dictionary)
    try:
        add_from_file(dictionary, file)
    except OSError as error:
        if not isinstance(file, str):
            raise
        raise UserError(f"{file}: {error.strerror}: {DICTIONARY_REMEDY}") from error
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
        raise UserError(f"{file}, line {row}: {wrong}: {DICTIONARY_REMEDY}") from error
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


MARK = MMapIndexedDataset.Index._HDR_MAGIC

HEADER = struct.Struct("<9sQBQ")
"""Start of the index of a memory-mapped file: magic, version, code of the dtype, number of sentences.

It is followed by the lengths of all sentences in four bytes each, then their byte offsets in eight.
"""
TOKENS_AT_ONCE = 2**22
DATA_FILES = re.compile(r"dict\.(.+\.)?txt|.+\.(bin|idx)")
"""Names of dictionaries and binarised text."""
BINARIES_REMEDY = "copy it again, or binarise the text again with fairseq-preprocess"


def patch_damaged_binaries() -> None:
    """Refuse binarised text that is damaged, or was binarised with another dictionary.

    Problem: fairseq asserts the start of an index and trusts the rest. Wrong offsets of sentences, and words that the
        dictionary lacks, end in errors of torch or are read as another text.
    Patch: wrap ``make_dataset``, which opens all binarised text, and ``load_indexed_dataset``, which calls it. Wrap
        ``load_checkpoint``, which only trainings call, and when their text has been opened: the first training writes
        ``digests.json`` if data-prep has not. Later runs notice changed files by it.
    Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
    Needed while ``test_fairseq_alone_reads_another_text`` passes.
    """
    wrap(indexed_dataset, "make_dataset", _check_and_open)
    wrap(data_utils, "load_indexed_dataset", _open_or_explain)
    wrap(checkpoint_utils, "load_checkpoint", _load_and_add_digests)


def _load_and_add_digests(
    load_checkpoint: Callable[..., Any], cfg: CheckpointConfig, trainer: Trainer, **kwargs: Any
) -> Any:
    """Start a run, and write missing digests of its data if the folder is writable."""
    loaded = load_checkpoint(cfg, trainer, **kwargs)
    data: str = getattr(trainer.cfg.task, "data", None) or ""
    if not cfg.no_save and distributed_utils.is_master(trainer.cfg.distributed_training):
        for folder in utils.split_paths(data):
            try:
                _add_digests(Path(folder))
            except OSError as error:
                logger.info(
                    f"{folder} keeps no digests of its files ({error.strerror}): damage to them may not be seen"
                )
    return loaded


def _add_digests(folder: Path) -> None:
    """Write the missing digests of a folder's dictionaries and binarised text."""
    known = read_digests(folder)
    names = sorted(path.name for path in folder.iterdir() if DATA_FILES.fullmatch(path.name) and path.is_file())
    if new := [name for name in names if name not in known]:
        found = {**known, **{name: file_digest(folder / name) for name in new}}
        write_text(folder / DIGESTS_FILE, f"{json.dumps(found, indent=1)}\n")


def _open_or_explain(load_indexed_dataset: Callable[..., Any], path: str, *args: Any, **kwargs: Any) -> Any:
    """Open a split.

    Raises:
        UserError: if the operating system cannot read it.
    """
    try:
        return load_indexed_dataset(path, *args, **kwargs)
    except OSError as error:
        raise UserError(f"{error.filename or path}: {error.strerror}: {BINARIES_REMEDY}") from error


def _check_and_open(
    make_dataset: Callable[..., Any],
    path: str,
    impl: str,
    fix_lua_indexing: bool = False,
    dictionary: Optional[Dictionary] = None,
) -> Any:
    """Open a split.

    Args:
        make_dataset: the function of fairseq.
        path: of the split, without ``.bin`` and ``.idx``.
        impl: ``--dataset-impl``.
        fix_lua_indexing: of fairseq.
        dictionary: of the text, or None for other data.

    Raises:
        UserError: if it is damaged, has words that the dictionary lacks, or differs from ``digests.json``.
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
        raise UserError(f"{path}.idx is damaged or of another --dataset-impl: {BINARIES_REMEDY}") from error
    if dictionary is not None and isinstance(dataset, MMapIndexedDataset):
        assert dataset._index is not None
        _check_words(path, dataset._index.dtype, first=0, num_words=len(dictionary))
    elif dictionary is not None and isinstance(dataset, IndexedDataset):
        _check_words(path, dataset.dtype, first=1, num_words=len(dictionary))  # Lua counts from 1
    for suffix in ("bin", "idx"):
        check_digest(Path(f"{path}.{suffix}"))
    return dataset


def _check_index(path: str, header: bytes) -> None:
    """Refuse a memory-mapped split whose index is damaged or does not fit its text."""
    damaged = f"{path}.idx is damaged: {BINARIES_REMEDY}"
    index, text = Path(f"{path}.idx"), Path(f"{path}.bin")
    if len(header) < HEADER.size:
        raise UserError(damaged)
    _, version, code, num = HEADER.unpack(header)
    dtype = indexed_dataset._code_to_dtype.get(code)
    if version != 1 or dtype is None or index.stat().st_size != HEADER.size + 12 * num:
        raise UserError(damaged)
    lengths = np.fromfile(index, "<i4", num, offset=HEADER.size).astype(np.int64) * np.dtype(dtype).itemsize
    places = np.fromfile(index, "<i8", num, offset=HEADER.size + 4 * num)
    ends = lengths.cumsum()
    if (lengths < 0).any() or not np.array_equal(places, ends - lengths):
        raise UserError(damaged)
    expected, found = int(ends[-1]) if num else 0, text.stat().st_size
    if found != expected:
        raise UserError(f"{text} has {found:,} bytes, and {index} expects {expected:,}: {BINARIES_REMEDY}")


def _check_words(path: str, dtype: Type[np.number], *, first: int, num_words: int) -> None:
    """Refuse a split with words that the dictionary lacks.

    Args:
        path: of the split, without ``.bin``.
        dtype: of the words in the file.
        first: number of the dictionary's first word in the file.
        num_words: of the dictionary.
    """
    if Path(f"{path}.bin").stat().st_size == 0:
        return
    tokens = np.memmap(f"{path}.bin", dtype=dtype, mode="r")
    for start in range(0, len(tokens), TOKENS_AT_ONCE):
        some = tokens[start : start + TOKENS_AT_ONCE]
        for word in (int(some.min()) - first, int(some.max()) - first):
            if not 0 <= word < num_words:
                raise UserError(
                    f"{path}.bin has word {word:,}, but the dictionary has {num_words:,} words: it was binarised with "
                    "another dictionary, or is damaged; binarise the text with this dictionary"
                )


PAIRS_REMEDY = "give the directory that data-prep or fairseq-preprocess wrote for two languages"


def patch_missing_pairs() -> None:
    """Refuse a folder without the sentence pairs of a translation task, with the remedy.

    Problem: fairseq ends in a traceback if there is no folder, no pair of languages or no such split.
    Patch: wrap ``infer_language_pair`` and ``load_langpair_dataset``, which the translation task calls.
    Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
    Needed while ``test_fairseq_alone_names_no_remedy`` passes.
    """
    wrap(data_utils, "infer_language_pair", _find_pair)
    wrap(translation, "load_langpair_dataset", _load_split)


def _find_pair(infer_language_pair: Callable[[str], Sequence[Optional[str]]], path: str) -> List[str]:
    """Infer source and target language from the names of a folder's files.

    Raises:
        UserError: if there are none.
    """
    try:
        languages = [language for language in infer_language_pair(path) if language]
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}: {PAIRS_REMEDY}") from error
    if not languages:
        raise UserError(f"{path} holds no sentence pairs: {PAIRS_REMEDY}")
    return languages


def _load_split(
    load_langpair_dataset: Callable[..., Any], data_path: str, split: str, *args: Any, **kwargs: Any
) -> Any:
    """Load the sentence pairs of a split.

    Raises:
        UserError: if the split does not exist.
    """
    try:
        return load_langpair_dataset(data_path, split, *args, **kwargs)
    except FileNotFoundError as error:
        source, _, target = args[:3]
        raise UserError(
            f"there is no split '{split}' of {source} and {target} in {data_path}: take another split or folder, or "
            "run fairseq-preprocess with its text"
        ) from error


def patch_path_lists() -> None:
    """Take a path with a colon as one path if it exists.

    Problem: fairseq splits ``--path`` and DATA at every colon. It looks for the files of a folder such as
        ``runs/2024-01-01T10:00:00`` in two places.
    Patch: wrap ``split_paths``, with which fairseq reads all lists of paths, and ``has_sharded_data``. Lists joined by
        colons are still split.
    Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
    Needed while ``test_fairseq_alone_splits_at_every_colon`` passes.
    """
    wrap(utils, "split_paths", _split_where_nothing_exists)
    for task in (FairseqTask, LegacyFairseqTask):
        wrap(task, "has_sharded_data", _has_several_folders)


def _split_where_nothing_exists(
    split_paths: Callable[..., List[str]], paths: str, separator: str = os.pathsep
) -> List[str]:
    """Split a list of paths. From left to right, the longest part that exists is one path."""
    if os.path.exists(paths):
        return [paths]
    parts = split_paths(paths, separator)
    if "://" in paths:  # URLs, which fairseq joins by another character
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


Batch = Union[Sequence[int], np.ndarray]
"""Indices of the sentences of a batch."""


def patch_batch_by_size() -> None:
    """Put every sentence in a batch.

    Problem: fairseq drops the last sentences if their number is no multiple of ``--required-batch-size-multiple``, 8 by
        default. It does so in validation and generation too: a test set of 1,014 sentences has 1,008.
    Patch: wrap ``batch_by_size`` to add a batch of them.
    Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
    Needed while ``test_fairseq_alone_drops_sentences`` passes.
    """
    wrap(data_utils, "batch_by_size", _add_last_batch)


def _add_last_batch(
    batch_by_size: Callable[..., Sequence[Batch]], indices: Iterable[int], *args: Any, **kwargs: Any
) -> Sequence[Batch]:
    """Make batches of all sentences.

    Raises:
        UserError: if a sentence is longer than ``--max-tokens``.
    """
    indices = np.asarray(indices if hasattr(indices, "__len__") else list(indices), dtype=np.int64)
    try:
        batches = batch_by_size(indices, *args, **kwargs)
    except AssertionError as error:
        if "max_tokens" not in str(error):
            raise
        raise UserError(f"{error}: give a higher --max-tokens, or leave long sentences out") from None
    num_kept = sum(len(batch) for batch in batches)
    return batches if num_kept == len(indices) else [*batches, indices[num_kept:]]


def patch_filtered_sentences() -> None:
    """Name the limits if all sentences of a data set are too long, or one that may not be skipped.

    Problem: fairseq skips sentences that are too long, and fails with an ``IndexError`` if none is left. If it may not
        skip any, it raises an ``Exception``, which ends in a traceback.
    Patch: wrap ``FairseqTask.filter_indices_by_size``.
    Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
    Needed while ``test_fairseq_alone_leaves_nothing`` passes.
    """
    wrap(FairseqTask, "filter_indices_by_size", _filter_or_explain)


def _filter_or_explain(
    filter_indices_by_size: Callable[..., Sized],
    task: FairseqTask,
    indices: Sized,
    dataset: Any,
    max_positions: Optional[Any] = None,
    ignore_invalid_inputs: bool = False,
) -> Sized:
    """Select the sentences that are short enough.

    Raises:
        UserError: if there are none, or one is too long and may not be skipped.
    """
    limit = f"than {max_positions} tokens, the least of --max-tokens, --max-source-positions and --max-target-positions"
    if not ignore_invalid_inputs:
        num_too_long = len(dataset.filter_indices_by_size(indices, max_positions)[1])
        if 0 < num_too_long < len(indices):
            raise UserError(
                f"{num_too_long:,} of {len(indices):,} sentences are longer {limit}: raise what is too low, or give "
                "--skip-invalid-size-inputs-valid-test, which leaves them out"
            )
        ignore_invalid_inputs = True  # none is too long, or all are
    kept = filter_indices_by_size(task, indices, dataset, max_positions, ignore_invalid_inputs)
    if len(indices) > 0 and len(kept) == 0:
        raise UserError(f"all {len(indices):,} sentences are longer {limit}: raise what is too low")
    return kept


def patch_length_buckets() -> None:
    """Make ``--num-batch-buckets`` work: sentences are padded to one of this number of lengths.

    Problem: fairseq computes the lengths by ``interpolation`` of ``numpy.percentile``, which numpy 2.4 has removed.
    Patch: wrap ``get_buckets`` of fairseq's padded data sets.
    Versions: fairseq 0.12.2, ve-fairseq 0.12.3, with numpy 2.4 and later.
    Needed while ``test_fairseq_alone_finds_no_lengths`` passes.
    """
    wrap(bucket_pad_length_dataset, "get_buckets", _bucket_lengths)


def _bucket_lengths(get_buckets: Callable[..., Any], sizes: Any, num_buckets: int) -> np.ndarray:
    lengths = np.sort(sizes)
    return np.unique(lengths[np.arange(1, num_buckets + 1) * (len(lengths) - 1) // num_buckets])


def patch_numpy_compat() -> None:
    """Define ``numpy.compat.long`` where it is missing.

    Problem: numpy 2 has no ``numpy.compat``, and fairseq's data sets use its ``long``.
    Patch: add a module with ``long`` to numpy.
    Versions: fairseq 0.12.2, ve-fairseq 0.12.3, with numpy 2 and later.
    Needed while ``grep -r np.compat`` finds anything in the installed fairseq and numpy itself has none
    (``test_long_is_an_integer``).
    """
    if not hasattr(np, "compat"):
        np.compat = SimpleNamespace(long=int)  # pyrefly: ignore[missing-attribute]
