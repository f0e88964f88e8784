"""Patches of reading data: changed files are refused, and every sentence is used."""

import logging
import os
import re
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Type, Union

import numpy as np
from fairseq import checkpoint_utils, utils
from fairseq.data import Dictionary, LanguagePairDataset, bucket_pad_length_dataset, data_utils, indexed_dataset
from fairseq.data.indexed_dataset import IndexedDataset, MMapIndexedDataset
from fairseq.data.iterators import EpochBatchIterator
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.tasks import FairseqTask, translation
from fairseq.tasks.fairseq_task import LegacyFairseqTask
from fairseq.trainer import Trainer

from fairseq_plugins.data.tasks import task_config
from fairseq_plugins.fairseq_patches import wrap
from fairseq_plugins.fairseq_patches.distributed import is_saving
from fairseq_plugins.files import file_digest, read_json, write_json
from fairseq_plugins.options import UserError

logger = logging.getLogger(__name__)

MARK = MMapIndexedDataset.Index._HDR_MAGIC

HEADER = struct.Struct("<9sQBQ")
"""Start of the index of a memory-mapped file: magic, version, code of the dtype, number of sentences.

It is followed by the lengths of all sentences in four bytes each, then their byte offsets in eight.
"""
DIGESTS_FILE = "digests.json"
"""Digest of every dictionary and binarised text of a folder, by file name.

data-prep writes it. Where it is missing, the first training does.
"""
DATA_FILES = re.compile(r"dict\.(.+\.)?txt|.+\.(bin|idx)")
"""Names of dictionaries and binarised text."""
BINARIES_REMEDY = "copy it again, or binarise the text again with fairseq-preprocess"


def patch_changed_data() -> None:
    """Refuse dictionaries and binarised text that are damaged, have changed, or do not belong together.

    Problem: with another order of words in the dictionary a model reads and writes other words. fairseq asserts the
        start of an index and trusts the rest. Wrong offsets of sentences, and words that the dictionary lacks, end in
        errors of torch or are read as another text.
    Patch: wrap ``add_from_file``, which reads dictionaries, and ``make_dataset``, which opens all binarised text, to
        check files against ``digests.json``. Wrap ``load_checkpoint``, which only fairseq-train calls, to write that
        file in the first run if data-prep has not.
    Needed while ``test_fairseq_alone_reads_other_words`` and ``test_fairseq_alone_reads_another_text`` pass.
    """
    wrap(Dictionary, "add_from_file", _check_digest_and_read)
    wrap(indexed_dataset, "make_dataset", _check_and_open)
    wrap(checkpoint_utils, "load_checkpoint", _load_and_add_digests)


def _check_digest_and_read(add_from_file: Callable[..., None], dictionary: Dictionary, file: Any) -> None:
    """Read a dictionary from a path, which is checked, or from a file that fairseq has opened."""
    if not isinstance(file, str):
        return add_from_file(dictionary, file)
    _check_digest(Path(file))
    try:
        add_from_file(dictionary, file)
    except OSError:
        raise
    except Exception as error:  # fairseq raises errors of many kinds
        raise UserError(f"{file} is damaged ({' '.join(str(error).split())}): {BINARIES_REMEDY}") from error


def _load_and_add_digests(
    load_checkpoint: Callable[..., Any], cfg: CheckpointConfig, trainer: Trainer, **kwargs: Any
) -> Any:
    """Start a run, and write missing digests of its data if the folder is writable."""
    loaded = load_checkpoint(cfg, trainer, **kwargs)
    data: str = getattr(trainer.cfg.task, "data", None) or ""
    if is_saving(cfg, trainer):
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
    known = _read_digests(folder)
    names = sorted(path.name for path in folder.iterdir() if DATA_FILES.fullmatch(path.name) and path.is_file())
    if new := [name for name in names if name not in known]:
        found = {**known, **{name: file_digest(folder / name) for name in new}}
        write_json(folder / DIGESTS_FILE, found)


def _check_digest(path: Path) -> None:
    """Check a dictionary or binarised text against ``digests.json`` beside it. Other files pass.

    Raises:
        UserError: if the file has changed, or ``digests.json`` cannot be read.
    """
    known = _read_digests(path.parent)
    if path.name in known and path.is_file() and known[path.name] != file_digest(path):
        raise UserError(
            f"{path} is not as it was when {path.parent / DIGESTS_FILE} was written: it is damaged or was made with "
            f"another dictionary; copy or prepare the folder again, or, if {path.name} was changed on purpose, remove "
            f"{DIGESTS_FILE}"
        )


def _read_digests(folder: Path) -> Dict[str, str]:
    """Digests in a folder's ``digests.json`` by file name, empty where there is none.

    Raises:
        UserError: if it cannot be read.
    """
    path = folder / DIGESTS_FILE
    return read_json(path, {}, wrong="is damaged: copy it again, or remove it") if path.is_file() else {}


def _check_and_open(
    make_dataset: Callable[..., Any],
    path: str,
    impl: str,
    fix_lua_indexing: bool = False,
    dictionary: Optional[Dictionary] = None,
) -> Any:
    """Open a split; its ``path`` has no ending. The dictionary is None if the data are no text."""
    if not IndexedDataset.exists(path):
        return make_dataset(path, impl, fix_lua_indexing, dictionary)
    if indexed_dataset.infer_dataset_impl(path) in ("mmap", None):
        _check_index(path)
    dataset = make_dataset(path, impl, fix_lua_indexing, dictionary)
    if dictionary is not None and isinstance(dataset, MMapIndexedDataset):
        assert dataset._index is not None
        _check_words(path, dataset._index.dtype, first=0, num_words=len(dictionary))
    elif dictionary is not None and isinstance(dataset, IndexedDataset):
        _check_words(path, dataset.dtype, first=1, num_words=len(dictionary))  # Lua counts from 1
    for suffix in ("bin", "idx"):
        _check_digest(Path(f"{path}.{suffix}"))
    return dataset


def _check_index(path: str) -> None:
    """Refuse a memory-mapped split whose index is damaged or does not fit its text."""
    damaged = f"{path}.idx is damaged: {BINARIES_REMEDY}"
    index, text = Path(f"{path}.idx"), Path(f"{path}.bin")
    with open(index, "rb") as file:
        header = file.read(HEADER.size)
    if len(header) < HEADER.size:
        raise UserError(damaged)
    mark, version, code, num = HEADER.unpack(header)
    dtype = indexed_dataset._code_to_dtype.get(code)
    if mark != MARK or version != 1 or dtype is None or index.stat().st_size != HEADER.size + 12 * num:
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
    """Refuse a split with words that the dictionary lacks; its first word has the number ``first`` in the file."""
    if Path(f"{path}.bin").stat().st_size == 0:
        return
    tokens = np.memmap(f"{path}.bin", dtype=dtype, mode="r")
    for word in (int(tokens.min()) - first, int(tokens.max()) - first):
        if not 0 <= word < num_words:
            raise UserError(
                f"{path}.bin has word {word:,}, but the dictionary has {num_words:,} words: it was binarised with "
                "another dictionary, or is damaged; binarise the text with this dictionary"
            )


def patch_path_lists() -> None:
    """Take a path with a colon as one path if it exists.

    Problem: fairseq splits ``--path`` and DATA at every colon. It looks for the files of a folder such as
        ``runs/2024-01-01T10:00:00`` in two places.
    Patch: wrap ``split_paths``, with which fairseq reads all lists of paths, and ``has_sharded_data``. Lists joined by
        colons are still split.
    Needed while ``test_what_exists_is_one_path_unlike_by_fairseq_alone`` passes.
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
    return has_sharded_data(task, split) and len(utils.split_paths(task_config(task).data)) > 1


Batch = Union[Sequence[int], np.ndarray]
"""Indices of the sentences of a batch."""


def patch_batch_by_size() -> None:
    """Put every sentence in a batch.

    Problem: fairseq drops the last sentences if their number is no multiple of ``--required-batch-size-multiple``, 8 by
        default. It does so in validation and generation too: a test set of 1,014 sentences has 1,008.
    Needed while ``test_fairseq_alone_drops_sentences`` passes.
    """
    wrap(data_utils, "batch_by_size", _add_last_batch)


def _add_last_batch(
    batch_by_size: Callable[..., Sequence[Batch]], indices: Iterable[int], *args: Any, **kwargs: Any
) -> Sequence[Batch]:
    indices = np.asarray(indices if hasattr(indices, "__len__") else list(indices), dtype=np.int64)
    batches = batch_by_size(indices, *args, **kwargs)
    num_kept = sum(len(batch) for batch in batches)
    return batches if num_kept == len(indices) else [*batches, indices[num_kept:]]


def patch_several_parts() -> None:
    """Read the first of several parts of a set of pairs (train, train1) once by default.

    Problem: ``--upsample-primary`` is -1 by default, and fairseq repeats the first part so many times. Training on
        several parts and ``--combine-valid-subsets`` end in a traceback of numpy.
    Needed while ``test_fairseq_alone_has_fewer_pairs_than_its_parts`` passes.
    """
    wrap(translation, "load_langpair_dataset", _read_first_part_once)


def _read_first_part_once(
    load_langpair_dataset: Callable[..., LanguagePairDataset], *args: Any, upsample_primary: int, **kwargs: Any
) -> LanguagePairDataset:
    times = 1 if upsample_primary == -1 else upsample_primary
    return load_langpair_dataset(*args, upsample_primary=times, **kwargs)


def patch_long_sentences() -> None:
    """Refuse sentences that are too long for the model in one line. Check the validation set before training.

    Problem: fairseq finds them in the first validation. Its traceback ends the run, and the epoch is lost.
    Needed while ``test_fairseq_alone_finds_a_long_sentence_in_validation`` passes.
    """
    wrap(checkpoint_utils, "load_checkpoint", _load_and_check_lengths)
    wrap(FairseqTask, "filter_indices_by_size", _filter_or_refuse)


def _load_and_check_lengths(
    load_checkpoint: Callable[..., Any], cfg: CheckpointConfig, trainer: Any, **kwargs: Any
) -> Any:
    loaded = load_checkpoint(cfg, trainer, **kwargs)
    flags = trainer.cfg.dataset
    limits = utils.resolve_max_positions(trainer.task.max_positions(), trainer.model.max_positions())
    if not flags.disable_validation:
        for subset in flags.valid_subset.split(","):
            pairs = trainer.task.dataset(subset)
            if isinstance(pairs, LanguagePairDataset):
                skipping = flags.skip_invalid_size_inputs_valid_test
                trainer.task.filter_indices_by_size(np.arange(len(pairs)), pairs, limits, skipping)
    return loaded


def _filter_or_refuse(
    filter_indices_by_size: Callable[..., Any],
    task: FairseqTask,
    indices: Any,
    dataset: Any,
    max_positions: Any = None,
    ignore_invalid_inputs: bool = False,
) -> Any:
    _, too_long = dataset.filter_indices_by_size(indices, max_positions)
    if len(too_long) > 0 and not ignore_invalid_inputs:
        split = next((name for name, loaded in task.datasets.items() if loaded is dataset), "the input")
        number = min(too_long)
        sizes = np.atleast_1d(dataset.size(number)).tolist()
        raise UserError(
            f"{split}: {len(too_long):,} sentences are too long, such as number {number + 1:,} with "
            f"{' and '.join(map(str, sizes))} tokens: raise --max-source-positions and --max-target-positions "
            f"(now {max_positions}), or leave them out by --skip-invalid-size-inputs-valid-test"
        )
    return filter_indices_by_size(task, indices, dataset, max_positions, ignore_invalid_inputs)


def patch_background_batches() -> None:
    """Make batches in the main thread with ``--num-workers 0``.

    Problem: with ``--data-buffer-size``, a thread makes them. It still runs while the interpreter exits, which then
        dies by SIGABRT, status 134, whatever ended the command.
    Needed while ``BackgroundConsumer`` is a daemon thread that nothing stops
    (``test_a_first_update_that_is_refused_while_batches_are_made``).
    """
    wrap(EpochBatchIterator, "__init__", _drop_buffer_without_workers)


def _drop_buffer_without_workers(
    initialise: Callable[..., None], batches: EpochBatchIterator, *args: Any, **kwargs: Any
) -> None:
    initialise(batches, *args, **kwargs)
    if batches.num_workers == 0:
        batches.buffer_size = 0


def patch_numpy() -> None:
    """Replace what newer versions of numpy have removed.

    Problem: numpy 2 has no ``numpy.compat``, and fairseq's data sets use its ``long``. fairseq computes the lengths to
        which ``--num-batch-buckets`` pads by ``interpolation`` of ``numpy.percentile``, which numpy 2.4 lacks.
    Needed while ``test_fairseq_alone_finds_no_lengths`` passes, or ``grep -r np.compat`` finds anything in the
    installed fairseq and numpy itself has none (``test_long_is_an_integer_and_what_numpy_has_is_left_alone``).
    """
    wrap(bucket_pad_length_dataset, "get_buckets", _bucket_lengths)
    if not hasattr(np, "compat"):
        np.compat = SimpleNamespace(long=int)  # pyrefly: ignore[missing-attribute]


def _bucket_lengths(get_buckets: Callable[..., Any], sizes: Any, num_buckets: int) -> np.ndarray:
    lengths = np.sort(sizes)
    return np.unique(lengths[np.arange(1, num_buckets + 1) * (len(lengths) - 1) // num_buckets])
