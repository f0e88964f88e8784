"""Where the files of the Penn Treebank lie: articles, sections and the discs."""

import re
from collections.abc import Iterable
from pathlib import Path

from .errors import DataError

PLACES = [".", "wsj", "mrg/wsj", "combined/wsj", "parsed/mrg/wsj", "treebank_3/parsed/mrg/wsj"]  # of the sections
NLTK_PLACES = [".", "combined", "treebank/combined", "corpora/treebank/combined"]  # of the articles of NLTK's sample
OF_SECTION = r"(wsj_?)?{:02d}(\.(mrg|trees))?(\.gz)?"  # name of a file that holds a whole section
ARTICLE = re.compile(r".+\.mrg(\.gz)?")


def section_files(folder: Path, number: int) -> list[Path]:
    """The articles of a section in their order, or the file that holds all of them; DataError if one is there twice."""
    if (folder / f"{number:02d}").is_dir():
        found = (folder / f"{number:02d}").iterdir()
        files = sorted(path for path in found if path.is_file() and ARTICLE.fullmatch(path.name))
        return _each_once(files)
    name = re.compile(OF_SECTION.format(number))
    found = folder.iterdir() if folder.is_dir() else []
    files = sorted(path for path in found if path.is_file() and name.fullmatch(path.name))
    if len(files) > 1:
        raise DataError(f"section {number:02d} is in {' and in '.join(map(str, files))}: leave one of them there")
    return files


def nltk_folder(folder: Path) -> Path | None:
    """The folder of the articles of NLTK's sample in or below ``folder``, or None."""
    places = (folder / place for place in NLTK_PLACES)
    return next((place for place in places if _article_files(place, number=1)), None)


def nltk_files(folder: Path, numbers: Iterable[int]) -> list[Path]:
    """Articles of NLTK's sample; DataError if one is missing or there twice."""
    files, missing = [], []
    for number in numbers:
        found = _each_once(_article_files(folder, number))
        files += found
        missing += [] if found else [f"wsj_{number:04d}.mrg"]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise DataError(f"{folder} has no {', '.join(missing[:3])}{more}: put it there, or pass another --from")
    return files


def _article_files(folder: Path, number: int) -> list[Path]:
    paths = (folder / f"wsj_{number:04d}.mrg{end}" for end in ("", ".gz"))
    return [path for path in paths if path.is_file()]


def _each_once(files: list[Path]) -> list[Path]:
    """``files``; DataError if one is there with compression and without."""
    for one, other in zip(files, files[1:], strict=False):
        if f"{one}.gz" == str(other):
            raise DataError(f"{one} is there a second time, as {other.name}: leave one of them there")
    return files
