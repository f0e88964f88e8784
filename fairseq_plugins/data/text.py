"""Files that corpora are read from: dictionaries, binarised splits and their word counts, digests, text files.

Shapes: n tokens of a text, V vocabulary.
"""

import gzip
import hashlib
import json
import sys
import time
import unicodedata
import zlib
from functools import cache
from itertools import count, takewhile
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Literal, Optional, Protocol, Sequence, Tuple, Union

import numpy as np
import torch
from fairseq import utils
from fairseq.data import Dictionary, data_utils
from fairseq.data.indexed_dataset import MMapIndexedDataset, infer_dataset_impl
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask
from torch import Tensor
from tqdm import tqdm

from fairseq_plugins.options import EXPORT_RECORD, UserError

PROGRESS_FROM_LINES = 200_000

TOKENS_AT_ONCE = 2**20
"""Tokens that are counted at a time."""

DIGESTS_FILE = "digests.json"
"""Digest of every dictionary and binarised text of a folder, by file name.

data-prep writes it. Where it is missing, the first training does.
"""

RECENT_SECONDS = 2
"""A file that was modified so recently may be modified again within the resolution of its time of modification."""

STANDARD_INPUT = Path("-")
"""Stands for standard input where a file can be given."""

_GZIP = b"\x1f\x8b"

_TO_UTF_8 = "convert it to UTF-8, such as by iconv -f UTF-16 -t UTF-8"


def load_dictionary(data_dir: Union[str, Path]) -> Dictionary:
    """Load ``dict.txt`` of a directory that ``fairseq-preprocess`` wrote.

    Raises:
        UserError: if the directory or the file is missing.
    """
    path = Path(data_dir) / "dict.txt"
    if not path.is_file():
        raise UserError(
            f"{path} does not exist: give the directory that fairseq-preprocess --only-source wrote "
            "(its --destdir); data-prep/ptb/prepare.sh makes one"
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

    more = takewhile(lambda name: name is not None, (part(str(n)) for n in count(1)))
    return [part("") or f"{split}{suffixes[0]}", *filter(None, more)]


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
            f"{EXPORT_HAS_NO_SPLIT if is_export else 'run fairseq-preprocess with the text of this split'}"
        )
    if path.with_name(f"{path.name}.bin").stat().st_size == 0:
        raise UserError(f"split '{split}' in {data_dir} is empty: check the text given to fairseq-preprocess")
    lines = data_utils.load_indexed_dataset(str(path), dictionary)
    assert lines is not None
    tokens = _whole_file(path)
    if tokens is None:
        if lines.supports_prefetch:  # such a dataset returns only prefetched lines
            lines.prefetch(range(len(lines)))
        shown = tqdm(range(len(lines)), desc=f"reading {split}", unit="line", disable=len(lines) < PROGRESS_FROM_LINES)
        tokens = torch.cat([lines[i] for i in shown]).long()
    if bool((tokens == dictionary.eos()).all()):
        raise UserError(
            f"split '{split}' in {data_dir} holds {len(lines):,} blank lines and no word: "
            "check the text given to fairseq-preprocess"
        )
    return tokens


def _whole_file(path: Path) -> Optional[Tensor]:
    """All tokens of a memory-mapped text, (n,) int64, by one read instead of one a line. None for other formats."""
    if infer_dataset_impl(str(path)) != "mmap":
        return None
    dtype = MMapIndexedDataset.Index(f"{path}.idx").dtype
    return torch.from_numpy(np.fromfile(f"{path}.bin", dtype=dtype).astype(np.int64))


def load_training_stream(data_dir: Union[str, Path], dictionary: Dictionary, *, subset: str = "train") -> Tensor:
    """All tokens that fairseq trains on, (n,) int64: train, train1, train2 and so on.

    Raises:
        UserError: as :func:`load_token_stream`.
    """
    return torch.cat([load_token_stream(data_dir, part, dictionary) for part in split_parts(data_dir, subset)])


def dictionary_fingerprint(dictionary: Dictionary) -> str:
    """Digest of the symbols in order. Equal for dictionaries that give words the same indices."""
    return hashlib.sha256("\n".join(dictionary.symbols).encode()).hexdigest()


# Tasks


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
    """Check that a task does not left-pad targets: ``reader`` would read the padding as words.

    Raises:
        UserError: if it does.
    """
    if getattr(task_config(task), "left_pad_target", False):
        raise UserError(f"--left-pad-target: {reader} would read the padding before a sentence: leave it out")


def check_reads_one_text(task: TextTask) -> None:
    """Check that a task has one text, as a language model reads it.

    Raises:
        UserError: if it has sentence pairs.
    """
    if isinstance(task, TranslationTask):
        raise UserError(
            "this --arch is a language model, and the task is one of sentence pairs: give --task stateful_lm or "
            "language_modeling, or an --arch for pairs, such as lstm_encdec"
        )


def check_reads_pairs(task: TextTask) -> None:
    """Check that a task has sentence pairs, as an encoder-decoder reads them.

    Raises:
        UserError: if it has one text.
    """
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
    if infer_dataset_impl(str(split)) != "mmap":
        raise UserError(
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
            raise UserError(
                f"{split}.bin has word {len(found) - 1:,}, but the dictionary has {vocab_size:,} words: binarise the "
                "text with this dictionary"
            )
        counts += found
    return torch.from_numpy(counts)


def training_counts(task: TextTask) -> Optional[Tensor]:
    """Count of each target word in the task's training text, (V,) int64. None where the text does not exist.

    Raises:
        UserError: if the text cannot be counted, or has a word outside of the vocabulary.
    """
    counts = [count_words(split, len(task.target_dictionary)) for split in training_splits(task)]
    return torch.stack(counts).sum(dim=0) if counts else None


def training_splits(task: TextTask) -> List[Path]:
    """Paths, without suffix, of the existing parts of the target side of the task's binarised training text."""
    config = task_config(task)
    subset = getattr(config, "train_subset", "train")  # fairseq's language_modeling task does not have it
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


# Digests of files


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits. A process reads an unchanged file once."""
    status = path.stat()
    read = _read_digest if time.time() - status.st_mtime > RECENT_SECONDS else _read_digest.__wrapped__
    return read(str(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@cache
def _read_digest(path: str, *_: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_digest(path: Path) -> None:
    """Check a dictionary or binarised text against ``digests.json`` beside it. Other files pass.

    Raises:
        UserError: if the file has changed, or ``digests.json`` cannot be read.
    """
    known = read_digests(path.parent)
    if path.name in known and path.is_file() and known[path.name] != file_digest(path):
        raise UserError(
            f"{path} is not as it was when {path.parent / DIGESTS_FILE} was written: it is damaged or was made with "
            f"another dictionary; copy or prepare the folder again, or remove {DIGESTS_FILE} if it was meant to change"
        )


def read_digests(folder: Path) -> Dict[str, str]:
    """Digests in a folder's ``digests.json`` by file name, empty where there is none.

    Raises:
        UserError: if it cannot be read.
    """
    path = folder / DIGESTS_FILE
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (RecursionError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged: copy it again, or remove it")
    return found


# Text files


def check_file(path: Path, *, wanted: str) -> None:
    """Check that a path can be read. ``wanted`` says in the message what to give.

    Raises:
        UserError: if it does not exist, is a folder, or is a device, which may never end.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder: give {wanted}")
    if not path.exists():
        raise UserError(f"{path} does not exist: give {wanted}")
    if path.is_char_device() or path.is_block_device():
        raise UserError(f"{path} is a device: give {wanted}")


def check_line_ends(first_line: bytes, *, name: object) -> None:
    """Check that text does not end its lines in carriage returns alone: all of it would be one line.

    Args:
        first_line: the text up to the first newline, or more.
        name: name of the file, for the message.

    Raises:
        UserError: if it does.
    """
    if b"\n" not in first_line and b"\r" in first_line.rstrip(b"\r"):
        raise UserError(f"{name}: its lines end in carriage returns, not in newlines: convert it by tr '\\r' '\\n'")


def byte_lines(path: Path, *, wanted: str = "a text file") -> Iterator[bytes]:
    """Lines of a file with their newlines. A file that begins like gzip is decompressed, whatever its name.

    Raises:
        UserError: at once as :func:`check_file`, and while reading if the file is damaged.
    """
    check_file(path, wanted=wanted)
    return _unpacked_lines(path)


def _unpacked_lines(path: Path) -> Iterator[bytes]:
    number = 0
    try:
        with path.open("rb") as raw:
            packed = raw.peek(len(_GZIP)).startswith(_GZIP)
            for line in gzip.open(raw) if packed else raw:
                number += 1
                yield line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is truncated or damaged after line {number} ({error}): copy it again") from error


def decode_lines(lines: Iterable[bytes], *, name: object) -> Iterator[Tuple[int, str]]:
    """Number (from 1) and text of each line, without newline and byte order mark.

    Args:
        lines: lines in UTF-8.
        name: name of the file, for messages.

    Raises:
        UserError: while reading, if a line is not UTF-8 (with its number) or lines end in carriage returns alone.
    """
    for number, line in enumerate(lines, start=1):
        if number == 1:
            check_line_ends(line, name=name)
        if number <= 2 and b"\0" in line:  # UTF-16 of ASCII is valid UTF-8
            raise UserError(f"{name}, line {number}: not UTF-8: it looks like UTF-16, {_TO_UTF_8}")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{name}, line {number}: not UTF-8: {error.reason}; {_TO_UTF_8}") from error
        yield number, (text.removeprefix("\ufeff") if number == 1 else text).rstrip("\r\n")


def numbered_lines(path: Path, *, wanted: str = "a text file") -> Iterator[Tuple[int, str]]:
    """Number and text of each line of a file or, for ``-``, of standard input. See :func:`decode_lines`.

    Raises:
        UserError: as :func:`byte_lines`.
    """
    lines = sys.stdin.buffer if path == STANDARD_INPUT else byte_lines(path, wanted=wanted)
    return decode_lines(lines, name=name_of(path))


def read_lines(
    path: Path, *, when_empty: Literal["refused", "kept"] = "refused", unicode: Literal["NFC", "kept"] = "NFC"
) -> List[str]:
    """All lines of a file without their newlines.

    Args:
        path: a file, or ``-`` for standard input.
        when_empty: whether a file without a line is an error.
        unicode: NFC composes characters, so that equal texts compare as equal.

    Raises:
        UserError: if the file is missing, empty, damaged or not UTF-8, or ends lines in carriage returns alone. The
            message names the line.
    """
    found = [text for _, text in numbered_lines(path)]
    if not found and when_empty == "refused":
        raise UserError(f"{name_of(path)} is empty")
    return [unicodedata.normalize("NFC", line) for line in found] if unicode == "NFC" else found


def name_of(*paths: Path) -> str:
    """Name, for messages, of files that are read as one text."""
    return " and ".join("standard input" if path == STANDARD_INPUT else str(path) for path in paths)
