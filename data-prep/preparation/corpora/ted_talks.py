"""Corpora of TED talks: IWSLT 2014 and IWSLT 2016."""

import argparse
import itertools
from argparse import Namespace
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from sacremoses import MosesDetokenizer

from ..lines import PASS_OTHERS, DataError, MissingFiles, Row
from ..parallel_corpus import ParallelCorpus
from ..segments import segment_pairs, training_pairs
from ..sources import (
    Text,
    aligned_files,
    check_contents,
    counted,
    digest,
    download,
    is_sound,
    no_mirror_worked,
    text_file,
    try_download,
    unpack,
)

# IWSLT 2014, German and English: the usual text, split and filter, or a tokenised part of it


ARCHIVE = "de-en.tgz"
MIRRORS = ["https://wit3.fbk.eu/archive/2014-01/texts/de/en", "http://dl.fbaipublicfiles.com/fairseq/data/iwslt14"]
TEXT_TAGS = ("title", "description")  # tags of a talk whose content belongs to the usual training set
INTERVAL = 23  # every 23rd training pair goes to valid
NUM_TRAIN = 174443
NUM_TEST = {
    "IWSLT14.TED.dev2010": 887,
    "IWSLT14.TEDX.dev2012": 1165,
    "IWSLT14.TED.tst2010": 1565,
    "IWSLT14.TED.tst2011": 1433,
    "IWSLT14.TED.tst2012": 1700,
}

# SHA-256 of the partial set's text without compression
CHECKSUMS = {
    "train.de": "f0c781e2f83a1f9868fcdc600b119a183b789c31e7d3410da37623b7b153dfce",
    "train.en": "96f3727e083c9b00b05dd3299081ace887c5f117e855a9e50fcb22c0bf65adf0",
    "valid.de": "3f051579c9d8c7281a6ea8c72ad4ae09dbaa9bb24dfd41166f2c3a3df7cd940a",
    "valid.en": "e6d7317a9772cd1ed970910c611e9e7dada1f34439269b44a9d801334bff948d",
}


class IWSLT14(ParallelCorpus):
    """Cettolo et al. 2014, *Report on the 11th IWSLT Evaluation Campaign*."""

    name = "iwslt14"
    recipe_of_one_dictionary = "iwslt14_partial"
    title = "IWSLT 2014, German and English (TED talks)"
    pairs = ["de-en", "en-de"]
    num_merges = 10000
    max_ratio = 1.5
    max_length = 175
    lowercase = True
    own_options = {
        "--partial": dict(
            action="store_true",
            help="take train.{de,en} and valid.{de,en} that are tokenised, lower-cased and escaped already; the first "
            "half of valid validates, the second tests; to data-bin/iwslt14-partial.PAIR",
        ),
    }

    def settle(self, options: Namespace, error: Callable[[str], None]) -> None:
        """The partial set has its own result."""
        super().settle(options, error)
        if options.partial:
            options.result = options.result.replace(self.name, f"{self.name}-partial", 1)
            if not options.lowercase:
                error("--no-lowercase is not for --partial, whose text is in lower case")

    def variant(self, options: Namespace) -> str:
        """Name the partial set."""
        return "partial" if options.partial else ""

    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """The texts as files, or the archive. The partial set has only texts, compressed or not."""
        if options.partial:
            files = {name: text_file(folder, name) for name in CHECKSUMS}
            if missing := [name for name, path in files.items() if path is None]:
                raise MissingFiles(folder, ", ".join(missing), "put them there, .gz or not, for --partial")
            return files
        for place in (folder, folder / "de-en"):
            if all((place / name).is_file() for name in self._names()):
                return {name: place / name for name in self._names()}
            if (place / ARCHIVE).is_file():
                return {ARCHIVE: place / ARCHIVE}
        hint = " (the partial set is taken with --partial)" if text_file(folder, "train.de") else ""
        raise MissingFiles(folder, f"{ARCHIVE}, nor {' and '.join(self._names()[:2])} and the others{hint}")

    def download(self, folder: Path, options: Namespace) -> None:
        """The archive. The partial set has no address."""
        if options.partial:
            raise DataError("the partial set cannot be downloaded: pass the folder that holds it with --from DIR")
        download(options.mirror or MIRRORS, folder / ARCHIVE)

    def read(self, files: dict[str, Text], options: Namespace, scratch: Path) -> dict[str, Iterable[Row]]:
        """Train and test; the filter takes valid from train. The partial set has all three."""
        if options.partial:
            return self._read_partial(files, options)
        texts = unpack(files[ARCHIVE], set(self._names()), scratch) if ARCHIVE in files else files

        def parse(read: Callable[..., Iterable[Row]], name: str, expected: int) -> Iterable[Row]:
            sides = [texts[name.format(side=side)] for side in options.sides]
            return counted(read(*sides), expected, sides[0]) if options.check else read(*sides)

        train = partial(training_pairs, kept_tags=TEXT_TAGS)
        tests = [parse(segment_pairs, f"{stem}.de-en.{{side}}.xml", count) for stem, count in NUM_TEST.items()]
        return {
            "train": parse(train, "train.tags.de-en.{side}", NUM_TRAIN),
            "test": [tuple(line.replace("\u2019", "'") for line in row) for rows in tests for row in rows],
        }

    def validation_interval(self, options: Namespace) -> int:
        """Every 23rd pair, as usual. 0 for the partial set."""
        return 0 if options.partial else INTERVAL

    def tokenizer(self, side: str, options: Namespace) -> Callable[[str], str]:
        """Moses', or the tokens of the partial set."""
        return (lambda line: " ".join(line.split())) if options.partial else super().tokenizer(side, options)

    def reference(self, side: str, options: Namespace) -> Callable[[str], str]:
        """The raw text, or the detokenised text of the partial set."""
        if not options.partial:
            return super().reference(side, options)
        detokenizer = MosesDetokenizer(lang=side)
        return lambda line: detokenizer.detokenize(line.split(), unescape=True)

    def expects(self, options: Namespace) -> str:
        """Tokens of Moses in the partial set."""
        return "tokens" if options.partial else super().expects(options)

    def _names(self) -> list[str]:
        stems = ["train.tags.de-en.{side}", *(f"{stem}.de-en.{{side}}.xml" for stem in NUM_TEST)]
        return [stem.format(side=side) for stem in stems for side in ("de", "en")]

    def _read_partial(self, files: dict[str, Text], options: Namespace) -> dict[str, Iterable[Row]]:
        if options.check:
            check_contents(files, CHECKSUMS)
        train, valid = (
            aligned_files(*(files[f"{split}.{side}"] for side in options.sides)) for split in ("train", "valid")
        )
        rows = list(valid)
        half = len(rows) // 2
        return {"train": train, "valid": rows[:half], "test": rows[half:]}


# IWSLT 2016: training text with tags, development and test years in XML, one archive for each direction


RELEASE = "2016-01.tgz"  # all languages, as texts/SRC/TGT/SRC-TGT.tgz
DRIVE = "https://drive.google.com/uc?id=1l5y6Giag9aRPwGtuZHswh3w5v3qEz8D8&export=download&confirm=t"
RELEASE_MD5 = "c393ed3fc2a1b0f004b3331043f615ae"
TEST_YEARS = ["tst2010", "tst2011", "tst2012", "tst2013", "tst2014"]
YEARS = ["dev2010", *TEST_YEARS]

# numbers of pairs with English, the same for both directions
NUM_PAIRS = {
    "de": dict(train=196884, dev2010=887, tst2010=1565, tst2011=1433, tst2012=1700, tst2013=993, tst2014=1305),
    "fr": dict(train=220400, dev2010=887, tst2010=1664, tst2011=818, tst2012=1124, tst2013=1026, tst2014=1305),
}


def _years(text: str) -> list[str]:
    years = text.split()
    if not years or len(set(years)) < len(years) or set(years) - set(YEARS):
        raise argparse.ArgumentTypeError(f"years out of {' '.join(YEARS)} are expected, not '{text}'")
    return sorted(years)


class IWSLT16(ParallelCorpus):
    """Cettolo et al. 2016, *The IWSLT 2016 Evaluation Campaign*; the talks: Cettolo et al. 2012, *WIT3*."""

    name = "iwslt16"
    recipe_of_two_dictionaries = "iwslt16"
    title = "IWSLT 2016 (TED talks)"
    pairs = ["en-de", "de-en", "en-fr", "fr-en"]
    num_merges = 16000
    max_ratio = 1.5
    own_options = {
        "--dev": dict(type=_years, default=["dev2010"], metavar="YEARS", help="years of valid (default: dev2010)"),
        "--test": dict(
            type=_years, metavar="YEARS", help="years of test, pooled and one by one (default: tst2010 to tst2014)"
        ),
    }

    def variant(self, options: Namespace) -> str:
        """Years of valid and test."""
        return f"valid {' '.join(options.dev)}, test {' '.join(_test_years(options))}"

    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """The texts as files, the archive of the pair, or the archive of all pairs, in this order of preference."""
        places = [folder, folder / options.pair, folder / _folder(options.pair)]
        wanted = sorted(self._names(options).values())
        missing = {place: [name for name in wanted if not (place / name).is_file()] for place in places}
        place = min(places, key=lambda place: len(missing[place]))
        if not missing[place]:
            return {name: place / name for name in wanted}
        for path in [*(place / f"{options.pair}.tgz" for place in places), folder / RELEASE]:
            if path.is_file():
                return {path.name: path}
        or_archive = f"(nor has {folder} {options.pair}.tgz or {RELEASE})"
        raise MissingFiles(place, f"{', '.join(missing[place])} {or_archive}")

    def download(self, folder: Path, options: Namespace) -> None:
        """The archive of the pair, or the archive of all pairs."""
        archive = f"{options.pair}.tgz"
        attempts = [
            (f"https://wit3.fbk.eu/archive/2016-01/{_folder(options.pair)}/{archive}", folder / archive),
            (f"https://wit3.fbk.eu/archive/{RELEASE}", folder / RELEASE),
            (DRIVE, folder / RELEASE),
        ]
        if options.mirror:
            names = [archive, f"{_folder(options.pair)}/{archive}", RELEASE]
            attempts = [
                (f"{mirror.rstrip('/')}/{name}", folder / name.rpartition("/")[2])
                for mirror in options.mirror
                for name in names
            ]

        def is_right(path: Path) -> bool:
            return is_sound(path) and (path.stem != RELEASE or _is_release(path, options.check))

        if not try_download(attempts, is_right):
            raise no_mirror_worked(f"{archive} or {RELEASE}")

    def read(self, files: dict[str, Text], options: Namespace, scratch: Path) -> dict[str, Iterable[Row]]:
        """Train, valid, test (all test years concatenated), and each test year by its name."""
        names = self._names(options)
        texts = self._texts(files, options, scratch)

        def parse(read: Callable[..., Iterable[Row]], part: str) -> Iterable[Row]:
            sides = [texts[names[part, side]] for side in options.sides]
            expected = NUM_PAIRS[options.pair.replace("en", "").strip("-")][part]
            return counted(read(*sides), expected, sides[0]) if options.check else read(*sides)

        years = {year: list(parse(segment_pairs, year)) for year in [*options.dev, *_test_years(options)]}
        tests = {year: years[year] for year in _test_years(options)}
        return {
            "train": parse(training_pairs, "train"),
            "valid": _pool(years[year] for year in options.dev),
            "test": _pool(tests.values()),
            **tests,
        }

    def _names(self, options: Namespace) -> dict[tuple[str, str], str]:
        """File names by part (train or year) and side."""
        pair, years = options.pair, {*options.dev, *_test_years(options)}
        names = {("train", side): f"train.tags.{pair}.{side}" for side in options.sides}
        for year, side in itertools.product(years, options.sides):
            names[year, side] = f"IWSLT16.TED.{year}.{pair}.{side}.xml"
        return names

    def _texts(self, files: dict[str, Text], options: Namespace, scratch: Path) -> dict[str, Text]:
        """The texts as files. An archive is unpacked into ``scratch``."""
        wanted, archive = set(self._names(options).values()), f"{options.pair}.tgz"
        if archive in files:
            return unpack(files[archive], wanted, scratch)
        if RELEASE in files:
            if not _is_release(files[RELEASE].path, options.check):
                raise DataError(f"{files[RELEASE]} has not the MD5 {RELEASE_MD5}: {PASS_OTHERS}")
            return unpack(unpack(files[RELEASE], {archive}, scratch)[archive], wanted, scratch)
        return files


def _folder(pair: str) -> str:
    return f"texts/{pair.replace('-', '/')}"


def _test_years(options: Namespace) -> list[str]:
    years = options.test or [year for year in TEST_YEARS if year not in options.dev]
    if both := set(years) & set(options.dev):
        raise DataError(f"{' '.join(sorted(both))} cannot be in both --dev and --test")
    return years


def _is_release(path: Path, check: bool) -> bool:
    return not check or digest(path, "md5") == RELEASE_MD5


def _pool(years: Iterable[list[Row]]) -> list[Row]:
    return list(itertools.chain.from_iterable(years))
