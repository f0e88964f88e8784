"""Steps that survive an interruption, the step that writes raw text, and the one that makes the result.

A step makes its folder under another name and renames it at the end, so that a folder is complete or missing.
"""

import ctypes
import fcntl
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from .corpus import Corpus
from .lines import (
    PASS_OTHERS,
    DataError,
    Row,
    TokenSigns,
    composed,
    note,
    progress,
    read_lines,
    read_rows,
    write_lines,
    write_rows,
)
from .sources import Text, digest

RECORD = "step.json"  # settings of a complete step
SPLITS = "splits.json"  # in the folder of a step: its splits in order, with their numbers of rows

FINISHED_RECORD = "prepared.txt"
SPLIT_NAMES = ("train", "valid", "test")  # of every corpus, some have more
DIGESTS = "digests.json"  # of dictionaries and binaries. The first training writes it where it is missing.
TEXT_RECORD = "text.json"  # beside the dictionaries: how a raw line becomes tokens
DATA = re.compile(r"dict\.(.+\.)?txt|.+\.(bin|idx)")

SYMBOLS = {"<s>", "</s>", "<pad>"}  # of fairseq. A text may have <unk>.
BYTES_PER_WORKER = 1 << 27  # of training text, for each process of fairseq-preprocess


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make ``folder`` and lock it. The lock of a killed run is released."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / ".lock", "w")
    except OSError as error:
        raise DataError(f"{folder}: nothing can be written there ({error.strerror}): pass another --work") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(f"waiting for another run that works in {folder}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def check_writable(target: Path) -> None:
    """DataError if ``target`` could not be made, or not be replaced by renaming."""
    if os.path.ismount(target):
        raise DataError(f"{target} is a mount point, which cannot be replaced: pass a folder in it as --dest")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent):
            pass
    except OSError as error:
        raise DataError(f"{target}: nothing can be written there ({error.strerror}): pass another --dest") from None


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """An empty folder that replaces ``target`` on success and is removed on an error.

    The former ``target`` is renamed before it is removed, so that a killed run leaves it complete or missing.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name}.partial-"
    for left in target.parent.iterdir():
        if left.name.startswith(prefix):
            shutil.rmtree(left, ignore_errors=True)
    partial, former = (target.with_name(f"{prefix}{os.getpid()}{end}") for end in ("", "-former"))
    partial.mkdir()
    try:
        yield partial
        if target.exists():
            target.rename(former)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(former, ignore_errors=True)


def run_step(target: Path, settings: dict, make: Callable[[Path], None]) -> Path:
    """Make ``target`` by ``make(folder)`` unless it is complete and has the same ``settings``.

    DataError if ``target`` is not empty and was not made by a step.
    """
    record = json.dumps(settings, indent=1, sort_keys=True)
    if (target / RECORD).is_file() and (target / RECORD).read_bytes() == record.encode():
        note(f"{target} is already complete")
        return target
    is_empty = target.is_dir() and not any(target.iterdir())
    if target.exists() and not is_empty and not (target / RECORD).is_file():
        raise DataError(f"{target} holds something that this script did not write: delete it or pass another --work")
    with new_folder(target) as folder:
        make(folder)
        (folder / RECORD).write_text(record, encoding="utf-8")
    return target


# The first step: raw text of every split, one file a side


def splits_of(folder: Path) -> dict[str, int]:
    """Splits that a step wrote, with their numbers of rows: train, valid, test, then the others."""
    try:
        return json.loads((folder / SPLITS).read_text(encoding="utf-8"))
    except ValueError:
        raise DataError(f"{folder / SPLITS} is damaged: delete {folder} and run again") from None


def write_splits(folder: Path, splits: dict[str, int]) -> None:
    """Record the splits of a step, for ``splits_of``."""
    (folder / SPLITS).write_text(json.dumps(splits), encoding="utf-8")


def make_text(corpus: Corpus, files: dict[str, Path], options: Namespace, folder: Path) -> None:
    """Write the sides that are kept, in NFC if ``options.nfc``. DataError if a split is empty.

    Warns of text that looks tokenised, and of held-out lines that are also in train.
    """
    note(f"reading {corpus.name} {options.subject}".rstrip())
    scratch = folder / "unpacked"
    scratch.mkdir()
    chosen = [options.sides.index(side) for side in options.kept_sides]
    expected = corpus.expects(options)
    signs = TokenSigns(is_raw=expected == "raw")

    def kept(row: Row) -> Row:
        sides = tuple(composed(row[number]) if options.nfc else row[number] for number in chosen)
        for line in sides:
            signs.see(line)
        return sides

    splits = {}
    texts = {name: Text(path) for name, path in files.items()}
    for split, rows in corpus.read(texts, options, scratch).items():
        with progress(rows, desc=f"reading {split}", unit=" lines") as bar:
            splits[split] = write_rows(folder, split, options.kept_sides, map(kept, bar))
        if not splits[split]:
            raise DataError(f"nothing of {split} is left: see what was removed")
    shutil.rmtree(scratch)
    write_splits(folder, splits)
    if expected != "anything" and (warning := signs.warning(f"the text of {corpus.name}")):
        note(f"warning: {warning}{corpus.if_tokenised}")
    for split, num_common in _in_train(folder, splits, options).items():
        note(
            f"warning: {split}: {num_common:,} of its {splits[split]:,} lines are in train as well: figures on them "
            "look better than on new text"
        )


def _in_train(folder: Path, splits: Iterable[str], options: Namespace) -> dict[str, int]:
    """Numbers of non-empty rows of each held-out split that are also in train, if any. Only hashes are in memory."""

    def hashes(split: str) -> Iterator[int]:
        return (hash(row) for row in read_rows(folder, split, options.kept_sides) if any(row))

    held_out = {split: Counter(hashes(split)) for split in splits if split != "train"}
    of_train = set(filter(set().union(*held_out.values()).__contains__, hashes("train")))
    found = {split: sum(counts[one] for one in of_train) for split, counts in held_out.items()}
    return {split: number for split, number in found.items() if number}


# Finished results


def binary_name(split: str, side: str, options: Namespace) -> str:
    """File name of a split's binaries, without ``.bin`` and ``.idx``."""
    return f"{split}.{'-'.join(options.kept_sides)}.{side}" if options.is_pair else split


def dictionary_name(side: str, options: Namespace) -> str:
    """File name of a side's dictionary."""
    return f"dict.{side}.txt" if options.is_pair else "dict.txt"


def files_line(digests: Mapping[str, str]) -> str:
    """The record's line that identifies the corpus' files by their names and checksums."""
    return f"files: {hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()[:16]}"


def read_record(dest: Path) -> list[str]:
    """Lines of the record of a finished result: its summary, its files, its counts. Empty without a record."""
    try:
        return [*read_lines(dest / FINISHED_RECORD)]
    except UnicodeDecodeError:
        return []


def is_finished(corpus: Corpus, summary: str, options: Namespace) -> bool:
    """Whether the destination is complete. DataError if it holds anything other than this result."""
    dest = options.dest
    if (dest / FINISHED_RECORD).is_file():
        record = read_record(dest)
        if not record:
            raise DataError(
                f"{dest / FINISHED_RECORD} does not say what {dest} holds: delete it or pass another --dest"
            )
        if summary not in (record[0], f"{record[0]}, not checked"):
            raise DataError(f"{dest} already holds '{record[0]}', not '{summary}': delete it or pass another --dest")
        _check_whole([*_names(options), TEXT_RECORD], options)
        _check_files(corpus, record, options)
        note(f"{dest} is already complete; delete it to prepare it again")
        return True
    if not dest.exists():
        return False
    if not dest.is_dir():
        raise DataError(f"{dest} is not a directory: pass another --dest")
    if any(dest.iterdir()):  # files of this script appear together with their record
        raise DataError(f"{dest} holds files that this script did not write: pass another --dest")
    return False


def _names(options: Namespace) -> list[str]:
    """File names of dictionaries and binaries that every result has."""
    binaries = [binary_name(split, side, options) for split in SPLIT_NAMES for side in options.kept_sides]
    ends = itertools.product(binaries, ("bin", "idx"))
    return [*(dictionary_name(side, options) for side in options.kept_sides), *map(".".join, ends)]


def _check_whole(names: list[str], options: Namespace) -> None:
    """DataError unless the destination has these files and those with checksums, none of them empty or changed."""
    remedy, digests = "delete it to prepare it again", {}
    if (path := options.dest / DIGESTS).is_file():
        try:
            digests = dict(json.loads(path.read_text(encoding="utf-8")))
        except (TypeError, ValueError):
            raise DataError(f"{path} is damaged: delete it") from None
    for name in dict.fromkeys([*names, *digests]):
        path = options.dest / name
        if not path.is_file():
            raise DataError(f"{options.dest} lacks {name}: {remedy}")
        if not path.stat().st_size:
            raise DataError(f"{options.dest} has an empty {name}: {remedy}")
        if name in digests and digests[name] != digest(path):
            raise DataError(f"{path} is not as it was when {DIGESTS} was written: {remedy}")


def _check_files(corpus: Corpus, record: list[str], options: Namespace) -> None:
    """DataError if the result was made from other files than the present ones. Downloads may be gone."""
    folder = options.source or options.work
    try:
        files = corpus.find(folder, options)
    except DataError:
        if options.source:
            raise
        return
    if files_line({name: digest(path) for name, path in files.items()}) not in record:
        raise DataError(
            f"{options.dest} was made from other files than those in {folder}: delete it or pass another --dest"
        )


# The last step: fairseq's binaries and dictionaries, checked against the text


def make_binaries(
    corpus: Corpus, files: dict[str, Path], folders: dict[str, Path], record: list[str], options: Namespace
) -> list[str]:
    """Make the destination from the folder of the last step. Returns its counts as lines of a table.

    ``record`` holds the lines that precede the counts in ``prepared.txt``.
    """
    pieces = list(folders.values())[-1]
    sizes = splits_of(pieces)
    splits = list(sizes)
    num_tokens = _count_tokens(pieces, sizes, options)
    with new_folder(options.dest) as folder:
        # fairseq splits --testpref at commas and logs its arguments, so folders do not belong into the names
        (folder / "text").symlink_to(pieces.resolve())
        command = _command(pieces, splits[2:], options)
        run_fairseq(command, folder, pieces.parent / "preprocess.log", num_files=len(splits) * len(options.kept_sides))
        (folder / "text").unlink()
        for index, split in enumerate(splits[3:], 1):
            for path in folder.glob(f"test{index}.*"):
                path.rename(path.with_name(path.name.replace(f"test{index}.", f"{split}.", 1)))
        table = _check_binaries(folder, sizes, num_tokens, options)
        for side in options.kept_sides:
            rows = [*read_lines(folder / dictionary_name(side, options))]
            num_rows = len(rows)
            if all(row.startswith("madeupword") for row in rows):  # fairseq pads dictionaries with them
                remedy = "give a smaller --threshold" if options.threshold else PASS_OTHERS
                raise DataError(f"no word of train is left for {dictionary_name(side, options)}: {remedy}")
            if options.check:
                corpus.check_dictionary(num_rows, files, options)
            table.append(f"{dictionary_name(side, options)}: {num_rows} rows")
        corpus.add_files(folders, folder, options)
        text = json.dumps(corpus.text_record(options), indent=1)
        (folder / TEXT_RECORD).write_text(f"{text}\n", encoding="utf-8")
        data = sorted(path for path in folder.iterdir() if DATA.fullmatch(path.name))
        digests = json.dumps({path.name: digest(path) for path in data}, indent=1)
        (folder / DIGESTS).write_text(f"{digests}\n", encoding="utf-8")
        write_lines(folder / FINISHED_RECORD, [*record, *table])
    return table


def _command(pieces: Path, tests: list[str], options: Namespace) -> list[str]:
    command = ["fairseq-preprocess", "--destdir", "."]
    suffix = ""
    if options.is_pair:
        command += ["--source-lang", options.kept_sides[0], "--target-lang", options.kept_sides[1]]
    else:
        suffix = f".{options.kept_sides[0]}"
        command += ["--only-source", "--padding-factor", "1"]
    command += ["--trainpref", f"text/train{suffix}", "--validpref", f"text/valid{suffix}"]
    command += ["--testpref", ",".join(f"text/{split}{suffix}" for split in tests)]
    for side, end in zip(options.kept_sides, ("src", "tgt")):
        if side in options.dictionaries:
            command += [f"--{end}dict", str(options.dictionaries[side].resolve())]
        elif options.threshold:
            command += [f"--threshold{end}", str(options.threshold)]
    command += ["--joined-dictionary"] if options.joined_dictionary else []
    train_bytes = sum((pieces / f"train.{side}").stat().st_size for side in options.kept_sides)
    return [*command, "--workers", str(min(options.workers, 1 + train_bytes // BYTES_PER_WORKER))]


def run_fairseq(command: list[str], folder: Path, log: Path, *, num_files: int) -> None:
    """Run fairseq-preprocess in ``folder``. DataError with the last line of its log if it fails."""
    note(f"binarising, log in {log}")
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    environment = {**os.environ, "LOGLEVEL": "INFO", "PYTHONUNBUFFERED": "1"}
    die_with_parent = partial(_die_with_parent, os.getpid())
    with (
        open(log, "wb") as file,
        subprocess.Popen(command, cwd=folder, env=environment, preexec_fn=die_with_parent, **streams) as process,
        progress(None, total=num_files, desc="binarising", unit=" files") as bar,
    ):
        for line in process.stdout:
            file.write(line)
            bar.update(b" sents, " in line)
    if process.returncode == -signal.SIGKILL:
        raise DataError("fairseq-preprocess was killed, perhaps because memory ran out: run again with --workers 1")
    if process.returncode:
        last = (log.read_text(encoding="utf-8", errors="replace").strip() or "no output").rpartition("\n")[2]
        raise DataError(f"fairseq-preprocess failed, see {log} ({last})")


def _die_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # the parent died before the call
        os._exit(1)


def _count_tokens(pieces: Path, sizes: dict[str, int], options: Namespace) -> dict[tuple[str, str], int]:
    """Tokens of each split and side, with end marks. DataError if a line is missing or has a symbol of fairseq."""
    counts = {}
    for split, side in itertools.product(sizes, options.kept_sides):
        path = pieces / f"{split}.{side}"
        num_lines = num_tokens = 0
        for line in read_lines(path):
            num_lines += 1
            tokens = line.split()
            num_tokens += len(tokens) + 1
            if "<" in line and (found := SYMBOLS.intersection(tokens)):
                raise DataError(
                    f"{path.name} has the word {min(found)}, a symbol of fairseq: remove it from your own file"
                )
        if num_lines != sizes[split]:
            raise DataError(
                f"{path} has {num_lines} lines, not the {sizes[split]} that were written: delete {pieces} and run again"
            )
        counts[split, side] = num_tokens
    return counts


def _check_binaries(
    folder: Path, sizes: dict[str, int], num_tokens: dict[tuple[str, str], int], options: Namespace
) -> list[str]:
    """Compare the counts of the text with fairseq's. Returns lines of a table."""
    log = (folder / "preprocess.log").read_text(encoding="utf-8")
    table = []
    for (split, side), count in num_tokens.items():
        counted = re.search(rf" text/{split}\.{side}: {sizes[split]} sents, {count} tokens, ([0-9.]+)% replaced", log)
        if not counted:
            raise DataError(f"fairseq-preprocess did not binarise {split}.{side} as it should have: report this")
        name = f"{split}.{side}" if options.is_pair else split
        unknown = "" if float(counted[1]) == 0 else f", {counted[1]} % unknown"
        table.append(f"{name}: {sizes[split]} lines, {count} tokens with one end mark a line{unknown}")
    return table
