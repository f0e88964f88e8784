"""Whether a result is there already, and whether it is the one that is wanted."""

import itertools
import json
import re
from argparse import Namespace
from collections.abc import Iterable, Mapping
from pathlib import Path

from .corpus import Corpus
from .errors import DataError, note
from .lines import read_lines
from .sources import digest, digest_of_all

RECORD = "prepared.txt"
FILES = "files: "  # begins the line of the record that tells from which ones the result was made
SPLITS = ("train", "valid", "test")  # of every corpus; some have more
DIGESTS = "digests.json"  # of dictionaries and binaries; a training writes it where there is none
DATA = re.compile(r"dict\.(.+\.)?txt|.+\.(bin|idx)")
OF_THE_HOST = re.compile(rf"{DATA.pattern}|preprocess\.log|{re.escape(DIGESTS)}")


def binary_name(split: str, side: str, options: Namespace) -> str:
    """Name of a split's binaries, without ``.bin`` and ``.idx``."""
    return split if len(options.kept_sides) == 1 else f"{split}.{'-'.join(options.kept_sides)}.{side}"


def dictionary_name(side: str, options: Namespace) -> str:
    """Name of a side's dictionary."""
    return "dict.txt" if len(options.kept_sides) == 1 else f"dict.{side}.txt"


def files_line(digests: Mapping[str, str]) -> str:
    """The record's line that tells from which files a result was made, by their names and checksums."""
    return f"{FILES}{digest_of_all(digests)}"


def read_record(dest: Path) -> tuple[str, list[str]]:
    """The recipe of what a folder holds, or "", and the other lines of its record."""
    if not (dest / RECORD).is_file():
        return "", []
    try:
        recipe, *others = [*read_lines(dest / RECORD)] or [""]
    except UnicodeDecodeError:
        return "", []
    return recipe, others


def is_finished(corpus: Corpus, recipe: str, options: Namespace) -> bool:
    """Whether the destination needs no work; DataError if it holds something else than what is wanted."""
    dest = options.dest
    if (dest / RECORD).is_file():
        found, others = read_record(dest)
        if not found:
            raise DataError(f"{dest / RECORD} does not say what {dest} holds: delete it or pass another --dest")
        if recipe not in (found, f"{found}, not checked"):
            raise DataError(f"{dest} already holds '{found}', not '{recipe}': delete it or pass another --dest")
        _check_whole(_names(_splits(others, options), options), options, remedy="delete it to prepare it again")
        if any(line.startswith(FILES) for line in others):
            _check_files(corpus, others, options)
        note(f"{dest} is already complete; delete it to prepare it again")
        return True
    if not dest.exists():
        return False
    if not dest.is_dir():
        raise DataError(f"{dest} is not a directory: pass another --dest")
    found = {file.name for file in dest.iterdir()}
    if any(not OF_THE_HOST.fullmatch(name) for name in found):
        raise DataError(f"{dest} holds files that this script did not write: pass another --dest")
    wanted = _names(SPLITS, options)
    if found.issuperset(wanted):
        _check_whole(wanted, options, remedy="delete it or pass another --dest")
        note(f"{dest} already holds a binarised corpus that this script did not write; left alone, not checked")
        return True
    if any(name.endswith((".bin", ".idx")) for name in found):
        # this script's own binaries come all at once
        raise DataError(
            f"{dest} holds other binaries than {recipe.partition(',')[0]}: delete it or pass another --dest"
        )
    if found:
        note(f"{dest} is incomplete and will be made again")
    return False


def _splits(record: Iterable[str], options: Namespace) -> list[str]:
    """The splits that the lines of a record count."""
    suffix = rf"\.{re.escape(options.kept_sides[0])}" if len(options.kept_sides) > 1 else ""
    counted = [re.match(rf"(.+){suffix}: \d+ lines, ", line) for line in record]
    return list(dict.fromkeys([*SPLITS, *(found[1] for found in counted if found)]))


def _names(splits: Iterable[str], options: Namespace) -> list[str]:
    """Names of the dictionaries and the binaries."""
    binaries = [binary_name(split, side, options) for split, side in itertools.product(splits, options.kept_sides)]
    ends = itertools.product(binaries, ("bin", "idx"))
    return [*(dictionary_name(side, options) for side in options.kept_sides), *map(".".join, ends)]


def _check_whole(names: Iterable[str], options: Namespace, *, remedy: str) -> None:
    """DataError unless the destination has files of all names, none of which is empty or has changed."""
    digests = _read_digests(options.dest / DIGESTS)
    for name in names:
        path = options.dest / name
        if not path.is_file():
            raise DataError(f"{options.dest} lacks {name}: {remedy}")
        if not path.stat().st_size:
            raise DataError(f"{options.dest} has an empty {name}: {remedy}")
        if name in digests and digests[name] != digest(path):
            raise DataError(f"{path} is not as it was when {DIGESTS} was written: {remedy}")


def _read_digests(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError):
        raise DataError(f"{path} is damaged: delete it") from None


def _check_files(corpus: Corpus, record: Iterable[str], options: Namespace) -> None:
    """DataError if the record is of other files than those that are at hand; they may be gone."""
    folder = options.source or options.work
    try:
        files = corpus.find(folder, options)
    except DataError:
        return
    if files_line({name: digest(path) for name, path in files.items()}) not in record:
        raise DataError(
            f"{options.dest} was made from other files than those in {folder}: delete it or pass another --dest"
        )
