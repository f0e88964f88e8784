"""Corpora of translations: Multi30k, Tatoeba and WMT 2014."""

import argparse
import itertools
import re
from argparse import Namespace
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path

from ..lines import PASS_OTHERS, DataError, MissingFiles, Row, composed, note
from ..parallel_corpus import ParallelCorpus, split_rows
from ..segments import segment_pairs
from ..sources import (
    Text,
    aligned_files,
    check_contents,
    counted,
    download,
    file_lines,
    text_file,
    unpack,
)
from ..steps import SPLIT_NAMES

# Multi30k, task 1: captions of images in English, German and French, one file a split and language


MULTI30K_SPLITS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}

MULTI30K_MIRRORS = [
    "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw",
    "https://github.com/multi30k/dataset/raw/master/data/task1/raw",
    "https://cdn.jsdelivr.net/gh/multi30k/dataset@master/data/task1/raw",
]

# SHA-256 of the text without compression
MULTI30K_CHECKSUMS = {
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "test_2016_flickr.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
}


class Multi30k(ParallelCorpus):
    """Elliott et al. 2016, *Multi30K: Multilingual English-German Image Descriptions*; French: Elliott et al. 2017."""

    name = "multi30k"
    title = "Multi30k, task 1 (English, German, French; test_2016_flickr)"
    pairs = ["en-de", "de-en", "en-fr", "fr-en", "de-fr", "fr-de"]
    num_merges = 8000
    max_ratio = 0.0

    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """``SPLIT.LANGUAGE.gz``, or the same without compression."""
        files = {name: text_file(folder, name) for name in self._names(options)}
        if missing := [f"{name}.gz" for name, path in files.items() if path is None]:
            raise MissingFiles(folder, ", ".join(missing))
        return files

    def download(self, folder: Path, options: Namespace) -> None:
        """Each file from the first mirror that has it."""
        for name in self._names(options):
            if not text_file(folder, name):
                download(options.mirror or MULTI30K_MIRRORS, folder / f"{name}.gz")

    def read(self, files: dict[str, Text], options: Namespace, scratch: Path) -> dict[str, Iterable[Row]]:
        """Train, valid and test."""
        if options.check:
            check_contents(files, MULTI30K_CHECKSUMS)
        return {
            split: aligned_files(*(files[f"{stem}.{side}"] for side in options.sides))
            for split, stem in MULTI30K_SPLITS.items()
        }

    def _names(self, options: Namespace) -> list[str]:
        return [f"{stem}.{side}" for stem in MULTI30K_SPLITS.values() for side in options.sides]


# Tatoeba: short sentences and their translations, from a file of manythings.org or a set that is already split


TATOEBA_MIRRORS = ["https://www.manythings.org/anki"]
TATOEBA_NUM_HELD_OUT = 2000  # pairs in valid, and in test. At most 5 % of a file.
LARGEST_GROUP = 5  # largest group of pairs with shared sentences that may be held out

# Two-letter codes to the three letters in names of files. Other languages are given by their three letters.
CODES = dict(
    code.split(":")
    for code in (
        "ar:ara bg:bul cs:ces da:dan de:deu el:ell es:spa et:est fi:fin fr:fra he:heb hi:hin hu:hun id:ind is:isl "
        "it:ita ja:jpn ko:kor lt:lit lv:lvs nl:nld no:nob pl:pol pt:por ro:ron ru:rus sk:slk sv:swe tr:tur uk:ukr "
        "vi:vie zh:cmn"
    ).split()
)
LANGUAGE = re.compile("[a-z]{2,3}")

# The German-English set with known checksums: SHA-256 of its texts without compression
TATOEBA_NUM_PAIRS = {"train": 160381, "valid": 2000, "test": 2000}
TATOEBA_CHECKSUMS = {
    "train.de": "db5d26648edfb8959122630f2121c035b0aec2f11f09d82621ed4b697f476e33",
    "train.en": "8d01f5ff534c08201087a463b6b9c0680f007eefb101c56b143606d9e9e26f2c",
    "valid.de": "f1bca9b04777a4c83205b0e180343a15441906061dad0045a35b6fc1e6cad182",
    "valid.en": "085ec86eef5f17b5df7f836701aa003b97b607b2f66a821b82a0772fadeed606",
    "test.de": "05c6514f6bbc84399e4930e29d1b79b2682e6de98d4ec714614a98bd52b4d8be",
    "test.en": "515f5466af7810086d494f2042b6b96cfc2f09e10898c3c304a5e6188ebbabf2",
}


class Tatoeba(ParallelCorpus):
    """Tiedemann 2020, *The Tatoeba Translation Challenge*, describes the project. The pairs: manythings.org/anki."""

    name = "tatoeba"
    recipe_of_one_dictionary = "tatoeba"
    title = "sentences of Tatoeba, English and another language"
    pairs = ["de-en", "en-de"]  # and all others
    num_merges = 8000
    max_ratio = 0.0
    own_options = {
        "--other": dict(metavar="LANGUAGE", help="the other language of the file, for en by itself (default: de)"),
    }

    def subject_type(self, text: str) -> str:
        """Check PAIR: a language, or two of which one is English."""
        languages = text.split("-")
        english = "en" in languages if len(languages) == 2 else len(languages) == 1
        if not english or len(set(languages)) < len(languages) or not all(map(LANGUAGE.fullmatch, languages)):
            raise argparse.ArgumentTypeError(
                f"'{text}' is neither a language nor two of which one is en: de-en, en-fr, en ..."
            )
        return text

    def subject_help(self) -> str:
        """Help of PAIR, by examples."""
        return "en-de, fr-en ... (source-target, one is English), or one side for a language model: en, de ..."

    def pair_with(self, language: str, options: Namespace) -> str:
        """The language with English, or ``--other`` with English."""
        return f"{options.other}-en" if language == "en" else f"{language}-en"

    def settle(self, options: Namespace, error: Callable[[str], None]) -> None:
        """Check ``--other``, the other language of a file from which only English is taken."""
        given, options.other = options.other, options.other or "de"
        if options.other == "en" or not LANGUAGE.fullmatch(options.other):
            error(f"--other is a language beside en, not {options.other}")
        super().settle(options, error)
        if given and options.subject != "en":
            error(f"--other is for en by itself, not for {options.subject}")

    def variant(self, options: Namespace) -> str:
        """The other language if only English is taken and it is not German."""
        return f"with {options.other}" if options.subject == "en" and options.other != "de" else ""

    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """``train|valid|test.LANGUAGE`` of the languages to prepare, or manythings' file or archive."""
        names = [f"{split}.{side}" for split in SPLIT_NAMES for side in options.kept_sides]
        files = {name: text_file(folder, name) for name in names}
        if all(files.values()):
            return files
        archive, text = self._manythings_names(options)
        for name, path in [(archive, folder / archive), (text, text_file(folder, text))]:
            if path and path.is_file():
                return {name: path}
        raise MissingFiles(folder, f"{archive} (or {text}), nor {', '.join(f'{name}.gz' for name in names)}")

    def download(self, folder: Path, options: Namespace) -> None:
        """Manythings' archive of the pair."""
        download(options.mirror or TATOEBA_MIRRORS, folder / self._manythings_names(options)[0])

    def read(self, files: dict[str, Text], options: Namespace, scratch: Path) -> dict[str, Iterable[Row]]:
        """The set as it is split, or a reproducible split of manythings' file."""
        if _is_split(files, options):
            return self._read_split(files, options)
        archive, text = self._manythings_names(options)
        where = unpack(files[archive], {text}, scratch)[text] if archive in files else files[text]
        form = composed if options.nfc else str  # before the split, which must see equal sentences as equal
        rows = list(dict.fromkeys(tuple(map(form, row)) for row in manythings_rows(where)))
        if len(rows) < 20:
            raise DataError(f"{where} has {len(rows)} pairs, at least 20 are expected: {PASS_OTHERS}")
        size = min(TATOEBA_NUM_HELD_OUT, max(1, len(rows) // 20))
        splits = split_rows(rows, num_valid=size, num_test=size, largest_group=LARGEST_GROUP)
        if not all(splits.values()):
            raise DataError(f"{where} has no pair whose sentences few others share, for valid and test: {PASS_OTHERS}")
        if options.sides[0] == "en":
            return splits
        return {split: [row[::-1] for row in chosen] for split, chosen in splits.items()}

    def _manythings_names(self, options: Namespace) -> tuple[str, str]:
        """Names of manythings' archive and its member."""
        other = next(side for side in options.sides if side != "en")
        code = CODES.get(other, other)
        return f"{code}-eng.zip", f"{code}.txt"

    def _read_split(self, files: dict[str, Text], options: Namespace) -> dict[str, Iterable[Row]]:
        """The texts. A set with the known numbers of lines must be the known one."""
        if options.check and _has_known_sizes(files):
            check_contents(files, TATOEBA_CHECKSUMS)
        elif options.check:
            note("not the set of 160,381, 2,000 and 2,000 pairs that has known checksums: this one is not checked")
        if options.kept_sides == options.sides:
            return {
                split: aligned_files(*(files[f"{split}.{side}"] for side in options.sides)) for split in SPLIT_NAMES
            }
        return {split: _one_side(files[f"{split}.{options.kept_sides[0]}"], options) for split in SPLIT_NAMES}


def _is_split(files: dict[str, Text], options: Namespace) -> bool:
    """Whether the files are a set that is already split."""
    return f"train.{options.kept_sides[0]}" in files


def _has_known_sizes(files: dict[str, Text]) -> bool:
    """Whether a set that is already split has the languages and numbers of lines of the known set."""
    return all(
        name in TATOEBA_CHECKSUMS and sum(1 for _ in file_lines(text)) == TATOEBA_NUM_PAIRS[name.partition(".")[0]]
        for name, text in files.items()
    )


def _one_side(text: Text, options: Namespace) -> Iterator[Row]:
    """Rows of a pair whose other side is empty, because it is not prepared."""
    for line in file_lines(text):
        yield tuple(line if side in options.kept_sides else "" for side in options.sides)


def manythings_rows(text: Text) -> Iterator[Row]:
    """Pairs of English and another language, from lines ``English TAB other TAB attribution``."""
    for number, line in enumerate(file_lines(text), 1):
        fields = line.split("\t")
        if len(fields) not in (2, 3):
            raise DataError(f"{text}:{number}: {len(fields)} fields, expected English, other language, attribution")
        yield fields[0].strip(), fields[1].strip()


# WMT 2014, English and German: Europarl, Common Crawl and News Commentary, and newstest2012 to 2016 in SGML


# archive -> stem of its two files, number of their lines
WMT14_TRAIN = {
    "training-parallel-europarl-v7.tgz": ("europarl-v7.de-en", 1920209),
    "training-parallel-commoncrawl.tgz": ("commoncrawl.de-en", 2399123),
    "training-parallel-nc-v9.tgz": ("news-commentary-v9.de-en", 201288),
}
NEWSTESTS = {
    "newstest2012": 3003,
    "newstest2013": 3000,
    "newstest2014": 3003,
    "newstest2015": 2169,
    "newstest2016": 2999,
}
WMT14_TEST = "newstest2014"
TEST_ARCHIVES = ["test-full.tgz", "test.tgz", "dev.tgz"]  # any of them may have a set
WMT14_PLACES = [".", "training", "dev", "test-full", "test"]

WMT14_URLS = {
    "training-parallel-europarl-v7.tgz": "www.statmt.org/wmt13",
    "training-parallel-commoncrawl.tgz": "www.statmt.org/wmt13",
    "training-parallel-nc-v9.tgz": "www.statmt.org/wmt14",
    "test-full.tgz": "www.statmt.org/wmt14",
    "dev.tgz": "data.statmt.org/wmt17/translation-task",  # has all newstests
}


class WMT14(ParallelCorpus):
    """Bojar et al. 2014, *Findings of the 2014 Workshop on Statistical Machine Translation*."""

    name = "wmt14"
    recipe_of_two_dictionaries = "wmt14_transformer"
    title = "WMT 2014 (Europarl v7, Common Crawl, News Commentary v9; newstest2012 to 2016)"
    pairs = ["en-de", "de-en"]
    num_merges = 32000
    max_ratio = 1.5
    max_length = 250
    own_options = {
        "--valid": dict(
            choices=[year for year in NEWSTESTS if year != "newstest2014"],
            default="newstest2013",
            help="newstest that is valid (default: %(default)s)",
        ),
    }

    def variant(self, options: Namespace) -> str:
        """The newstest that is valid."""
        return f"valid {options.valid}"

    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """Each text as a file, or the archive that should contain it."""
        files, missing = {}, []
        for archive in WMT14_TRAIN:
            names = self._training_names(archive, options)
            if texts := self._find_all(folder, names):
                files |= texts
            elif path := self._find(folder, archive):
                files[archive] = path
            else:
                missing.append(f"{archive} ({' and '.join(names)})")
        for archive in TEST_ARCHIVES:
            if path := self._find(folder, archive):
                files[archive] = path
        for test in NEWSTESTS:
            texts = self._find_set(folder, test, options)
            files |= texts
            if test in _needed(options) and not texts and not files.keys() & set(TEST_ARCHIVES):
                missing.append(f"{' or '.join(TEST_ARCHIVES)} ({' and '.join(self._test_names(test, options)[0])})")
        if missing:
            raise MissingFiles(folder, ", no ".join(missing))
        return files

    def has_files(self, folder: Path, options: Namespace) -> bool:
        """Never sure: any archive of test sets may lack a needed one. ``download`` looks for each archive."""
        return False

    def download(self, folder: Path, options: Namespace) -> None:
        """Each archive whose texts are missing. test-full.tgz and dev.tgz overlap, so one of them may fail."""
        has_all_sets = all(self._find_set(folder, test, options) for test in NEWSTESTS)
        for archive, host in WMT14_URLS.items():
            if archive in WMT14_TRAIN:
                has_texts = bool(self._find_all(folder, self._training_names(archive, options)))
            else:
                has_texts = has_all_sets
            if has_texts or self._find(folder, archive):
                continue
            try:
                download(options.mirror or [f"https://{host}", f"http://{host}"], folder / archive)
            except DataError:
                has_needed_sets = all(self._find_set(folder, test, options) for test in _needed(options))
                if archive in WMT14_TRAIN or archive == "dev.tgz" and not has_needed_sets:
                    raise
                hint = "" if has_needed_sets else f": dev.tgz should have {WMT14_TEST} too"
                note(f"continuing without {archive}{hint}")

    def read(self, files: dict[str, Text], options: Namespace, scratch: Path) -> dict[str, Iterable[Row]]:
        """Train, valid, test (newstest2014), and every other newstest that was found, by its name."""
        texts = {name: text for name, text in files.items() if not name.endswith(".tgz")}
        tests = {}
        for archive in TEST_ARCHIVES:
            lacking = [test for test in NEWSTESTS if not self._names_in(texts, test, options)]
            if archive in files and lacking:
                wanted = {name for test in lacking for names in self._test_names(test, options) for name in names}
                texts |= unpack(files[archive], wanted - texts.keys(), scratch, all_needed=False)
        for test, expected in NEWSTESTS.items():
            if names := self._names_in(texts, test, options):
                pairs = segment_pairs(*(texts[name] for name in names))
                tests[test] = list(counted(pairs, expected, texts[names[0]]) if options.check else pairs)
            elif test in _needed(options):
                archives = ", ".join(str(files[archive]) for archive in TEST_ARCHIVES if archive in files)
                wanted = " and ".join(self._test_names(test, options)[0])
                raise DataError(f"{archives} has no member {wanted}: {PASS_OTHERS}")
            else:
                note(f"{test} is left out: no file {' and '.join(self._test_names(test, options)[0])}")
        valid = tests.pop(options.valid)
        train = itertools.chain.from_iterable(
            self._training_pairs(archive, files, options, scratch) for archive in WMT14_TRAIN
        )
        return {"train": train, "valid": valid, "test": tests[WMT14_TEST], **tests}

    def _find(self, folder: Path, name: str) -> Path | None:
        return next(filter(None, (text_file(folder / place, name) for place in WMT14_PLACES)), None)

    def _find_all(self, folder: Path, names: Sequence[str]) -> dict[str, Path]:
        """All of these files, or none."""
        found = {name: path for name in names if (path := self._find(folder, name))}
        return found if len(found) == len(names) else {}

    def _find_set(self, folder: Path, test: str, options: Namespace) -> dict[str, Path]:
        """The two files of a newstest under any of their names, or none."""
        return next(filter(None, (self._find_all(folder, names) for names in self._test_names(test, options))), {})

    def _training_names(self, archive: str, options: Namespace) -> list[str]:
        stem, _ = WMT14_TRAIN[archive]
        return [f"{stem}.{side}" for side in options.sides]

    def _test_names(self, test: str, options: Namespace) -> list[tuple[str, str]]:
        """Possible names of source and reference of a newstest. From 2014 on they contain the direction."""
        source, target = options.sides
        stems = [test] if test < "newstest2014" else [f"{test}-{source}{target}", f"{test}-{target}{source}"]
        return [(f"{stem}-src.{source}.sgm", f"{stem}-ref.{target}.sgm") for stem in stems]

    def _names_in(self, texts: Container[str], test: str, options: Namespace) -> tuple[str, ...]:
        """The names under which these texts have both files of a newstest, or none."""
        names = self._test_names(test, options)
        return next((each for each in names if all(name in texts for name in each)), ())

    def _training_pairs(self, archive: str, files: dict[str, Text], options: Namespace, scratch: Path) -> Iterator[Row]:
        """Pairs of an archive, which is unpacked when they are read and removed afterwards."""
        _, expected = WMT14_TRAIN[archive]
        names = self._training_names(archive, options)
        texts = unpack(files[archive], set(names), scratch) if archive in files else files
        pairs = aligned_files(*(texts[name] for name in names))
        yield from counted(pairs, expected, texts[names[0]]) if options.check else pairs
        if archive in files:
            for text in texts.values():
                text.path.unlink()


def _needed(options: Namespace) -> set[str]:
    return {options.valid, WMT14_TEST}
