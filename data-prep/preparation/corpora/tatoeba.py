"""Tatoeba: short sentences and their translations, of a file of manythings.org or of a set that is split already."""

import argparse
import re
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import Path

from ..archives import is_sound, unpack
from ..downloads import download, mirror_urls
from ..errors import CHECK_OR_PASS, DataError, note
from ..finished import read_record
from ..lines import Row
from ..parallel_corpus import ParallelCorpus
from ..sources import aligned_files, check_digest, content_digest, file_lines, plain_or_gz

MIRRORS = ["https://www.manythings.org/anki"]
SPLITS = ("train", "valid", "test")
NUM_HELD_OUT = 2000  # pairs in valid, and in test, or 5 % of a file if that is less
LARGEST_GROUP = 5  # pairs that share sentences and may be held out together

# Three letters, as the files are named; any other language is named by its three letters.
CODES = dict(
    code.split(":")
    for code in (
        "ar:ara bg:bul cs:ces da:dan de:deu el:ell es:spa et:est fi:fin fr:fra he:heb hi:hin hu:hun id:ind is:isl "
        "it:ita ja:jpn ko:kor lt:lit lv:lvs nl:nld no:nob pl:pol pt:por ro:ron ru:rus sk:slk sv:swe tr:tur uk:ukr "
        "vi:vie zh:cmn"
    ).split()
)
LANGUAGE = re.compile("[a-z]{2,3}")

# SHA-256 of the texts of the German-English set of 160,381, 2,000 and 2,000 pairs, without the compression.
NUM_PAIRS = {"train": 160381, "valid": 2000, "test": 2000}
CHECKSUMS = {
    "train.de": "db5d26648edfb8959122630f2121c035b0aec2f11f09d82621ed4b697f476e33",
    "train.en": "8d01f5ff534c08201087a463b6b9c0680f007eefb101c56b143606d9e9e26f2c",
    "valid.de": "f1bca9b04777a4c83205b0e180343a15441906061dad0045a35b6fc1e6cad182",
    "valid.en": "085ec86eef5f17b5df7f836701aa003b97b607b2f66a821b82a0772fadeed606",
    "test.de": "05c6514f6bbc84399e4930e29d1b79b2682e6de98d4ec714614a98bd52b4d8be",
    "test.en": "515f5466af7810086d494f2042b6b96cfc2f09e10898c3c304a5e6188ebbabf2",
}


class Tatoeba(ParallelCorpus):
    """Tiedemann 2020, *The Tatoeba Translation Challenge*, tells of the project; the pairs: manythings.org/anki."""

    name = "tatoeba"
    title = "sentences of Tatoeba, English and another language"
    pairs = ["de-en", "en-de"]  # and all others
    num_merges = 8000
    max_ratio = 0.0
    extra_options = {
        "--other": dict(metavar="LANGUAGE", help="the other language of the file, for en by itself (default: de)"),
    }

    def subject_type(self, text: str) -> str:
        """A language, or two of which one is English."""
        languages = text.split("-")
        english = "en" in languages if len(languages) == 2 else len(languages) == 1
        if not english or len(set(languages)) < len(languages) or not all(map(LANGUAGE.fullmatch, languages)):
            raise argparse.ArgumentTypeError(
                f"'{text}' is neither a language nor two of which one is en: de-en, en-fr, en ..."
            )
        return text

    def subject_help(self) -> str:
        """Examples."""
        return "en-de, fr-en ... (source-target, one is English), or one side for a language model: en, de ..."

    def pair_with(self, language: str, options: Namespace) -> str:
        """The language and English; English and ``--other``."""
        return f"{options.other}-en" if language == "en" else f"{language}-en"

    def settle(self, options: Namespace, error: Callable[[str], None]) -> None:
        """``--other`` is a language beside English, for English by itself."""
        given, options.other = options.other, options.other or "de"
        if options.other == "en" or not LANGUAGE.fullmatch(options.other):
            error(f"--other is a language beside en, not {options.other}")
        super().settle(options, error)
        if given and options.subject != "en":
            error(f"--other is for en by itself, not for {options.subject}")

    def variant(self, options: Namespace) -> str:
        """A language other than German that only English is taken from; which set it is, if not the known one."""
        language = f"with {options.other}" if options.subject == "en" and options.other != "de" else ""
        return ", ".join(filter(None, [language, _name_of_set(options)]))

    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """``train|valid|test.LANGUAGE`` of the languages that are wanted, or manythings' file or archive."""
        if files := _find(folder, options):
            return files
        wanted = ", ".join(f"{split}.{side}.gz" for split in SPLITS for side in options.kept_sides)
        archive, text = _names(options)
        raise DataError(
            f"{folder} has no {archive} (or {text}), nor {wanted}: put them there, .gz or not, "
            "or leave out --from to download"
        )

    def download(self, folder: Path, options: Namespace) -> None:
        """Manythings' archive of the pair."""
        if not _find(folder, options):
            archive = _names(options)[0]
            urls = mirror_urls(options.mirror or MIRRORS, archive)
            download([(url, folder / archive) for url in urls], is_sound)

    def read(self, files: dict[str, Path], options: Namespace, scratch: Path) -> dict[str, Iterable[Row]]:
        """The set as it is split, or a split of manythings' file that is the same everywhere."""
        if _is_split(files, options):
            return _read_split(files, options)
        archive, text = _names(options)
        path = where = next(iter(files.values()))
        if archive in files:
            path, where = unpack(path, {text}, scratch)[text], f"{text} in {path}"
        rows = list(dict.fromkeys(manythings_rows(path, where)))
        if len(rows) < 20:
            raise DataError(f"{where} has {len(rows)} pairs, at least 20 are expected: {CHECK_OR_PASS}")
        splits = split_rows(rows)
        if not all(splits.values()):
            raise DataError(
                f"{where} has no pair whose sentences few others share, for valid and test: {CHECK_OR_PASS}"
            )
        if options.sides[0] == "en":
            return splits
        return {split: [row[::-1] for row in chosen] for split, chosen in splits.items()}


def _names(options: Namespace) -> tuple[str, str]:
    """Manythings' archive and its member."""
    other = next(side for side in options.sides if side != "en")
    code = CODES.get(other, other)
    return f"{code}-eng.zip", f"{code}.txt"


def _find(folder: Path, options: Namespace) -> dict[str, Path]:
    names = [f"{split}.{side}" for split in SPLITS for side in options.kept_sides]
    files = {name: plain_or_gz(folder, name) for name in names}
    if all(files.values()):
        return files
    archive, text = _names(options)
    for name, path in [(archive, folder / archive), (text, plain_or_gz(folder, text))]:
        if path and path.is_file():
            return {name: path}
    return {}


def _name_of_set(options: Namespace) -> str:
    """Which set the files are, "" for the known one; where they are gone, that of the result, if there is one."""
    other, split = "another set", f"split of {_names(options)[1]}"
    recipe, _ = read_record(options.dest)
    try:
        files = _find(options.source or options.work, options)
    except DataError:
        if not recipe:
            raise
        files = {}
    if _is_split(files, options):
        return "" if _has_known_sizes(files) else other
    if files or not recipe:
        return split
    return next((name for name in (other, split) if f", {name}, " in f"{recipe}, "), "")


def _is_split(files: dict[str, Path], options: Namespace) -> bool:
    """Whether these files are those of a set that is split already."""
    return f"train.{options.kept_sides[0]}" in files


def _has_known_sizes(files: dict[str, Path]) -> bool:
    """Whether a set that is split already has the languages and the numbers of lines of the known one."""
    return all(
        name in CHECKSUMS and sum(1 for _ in file_lines(path)) == NUM_PAIRS[name.partition(".")[0]]
        for name, path in files.items()
    )


def _read_split(files: dict[str, Path], options: Namespace) -> dict[str, Iterable[Row]]:
    """The texts; a set with the known numbers of lines must be the known one."""
    if options.check and _has_known_sizes(files):
        for name, path in files.items():
            check_digest(content_digest(path), CHECKSUMS[name], f"{name} in {path}")
    elif options.check:
        note("not the set of 160,381, 2,000 and 2,000 pairs that has known checksums: this one is not checked")
    if options.kept_sides == options.sides:
        return {split: aligned_files(*(files[f"{split}.{side}"] for side in options.sides)) for split in SPLITS}
    return {split: _one_side(files[f"{split}.{options.kept_sides[0]}"], options) for split in SPLITS}


def _one_side(path: Path, options: Namespace) -> Iterator[Row]:
    """Rows of a pair whose other side is empty, because it is not wanted."""
    for line in file_lines(path):
        yield tuple(line if side in options.kept_sides else "" for side in options.sides)


def manythings_rows(path: Path, name: object) -> Iterator[Row]:
    """English and other sentences: ``English TAB other TAB attribution`` is a line."""
    for number, line in enumerate(file_lines(path, name), 1):
        fields = line.split("\t")
        if len(fields) not in (2, 3):
            raise DataError(f"{name}:{number}: {len(fields)} fields, expected English, other language, attribution")
        yield fields[0].strip(), fields[1].strip()


def split_rows(rows: list[Row]) -> dict[str, list[Row]]:
    """Train, valid and test, each in the rows' order; no sentence of one is in another on either side.

    Sentences that differ only in case, spaces and punctuation are the same. Which rows are held out depends on
    checksums of the sentences, hence it is at random and the same everywhere.
    """
    groups = _groups(rows)
    size = min(NUM_HELD_OUT, max(1, len(rows) // 20))
    order = sorted(
        (group for group in groups if len(group) <= LARGEST_GROUP),
        key=lambda group: min(sha256("\t".join(rows[index]).encode()).digest() for index in group),
    )
    held_out: dict[str, list[int]] = {"test": [], "valid": []}
    for chosen in held_out.values():
        while order and len(chosen) < size:
            chosen.extend(order.pop(0))
    train = set(range(len(rows))).difference(*held_out.values())
    chosen_of = {"train": train, "valid": held_out["valid"], "test": held_out["test"]}
    return {split: [rows[index] for index in sorted(chosen)] for split, chosen in chosen_of.items()}


def _groups(rows: list[Row]) -> list[list[int]]:
    """Rows that are connected by sentences that they share."""
    parents = list(range(len(rows)))

    def root(index: int) -> int:
        while parents[index] != index:
            parents[index] = index = parents[parents[index]]
        return index

    owners: dict[tuple[int, str], int] = {}
    for index, row in enumerate(rows):
        for side, sentence in enumerate(row):
            key = side, re.sub(r"[\W_]+", "", sentence.casefold()) or sentence
            parents[root(index)] = root(owners.setdefault(key, index))
    groups = defaultdict(list)
    for index in range(len(rows)):
        groups[root(index)].append(index)
    return list(groups.values())
