"""IWSLT 2016, TED talks: training text with tags, development and test years in XML, one archive a direction."""

import argparse
import itertools
from argparse import Namespace
from collections.abc import Callable, Iterable
from pathlib import Path

from ..archives import is_sound, unpack
from ..downloads import download
from ..errors import CHECK_OR_PASS, DataError
from ..lines import Row
from ..parallel_corpus import ParallelCorpus
from ..sources import counted, digest
from ..ted import evaluation_pairs, training_pairs

RELEASE = "2016-01.tgz"  # all languages; holds texts/SRC/TGT/SRC-TGT.tgz
DRIVE = "https://drive.google.com/uc?id=1l5y6Giag9aRPwGtuZHswh3w5v3qEz8D8&export=download&confirm=t"
RELEASE_MD5 = "c393ed3fc2a1b0f004b3331043f615ae"
TEST_YEARS = ["tst2010", "tst2011", "tst2012", "tst2013", "tst2014"]
YEARS = ["dev2010", *TEST_YEARS]

# Pairs of lines, either direction.
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
    extra_options = {
        "--dev": dict(type=_years, default=["dev2010"], metavar="YEARS", help="valid (default: dev2010)"),
        "--test": dict(type=_years, metavar="YEARS", help="test, pooled and by year (default: tst2010 to tst2014)"),
    }

    def variant(self, options: Namespace) -> str:
        """The years of valid and test."""
        return f"valid {' '.join(options.dev)}, test {' '.join(_test_years(options))}"

    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """The texts as files, the pair's archive, or the archive of all pairs, in this order."""
        if files := _find(folder, options):
            return files
        pair, wanted = options.pair, sorted(_names(options).values())
        place = max(_places(folder, options), key=lambda place: sum((place / name).is_file() for name in wanted))
        missing = [name for name in wanted if not (place / name).is_file()]
        raise DataError(
            f"{place} has no {', '.join(missing)} (nor has {folder} {pair}.tgz or {RELEASE}): "
            "put them there, or leave out --from to download"
        )

    def download(self, folder: Path, options: Namespace) -> None:
        """The pair's archive, or else the one of all pairs."""
        if _find(folder, options):
            return
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
        download(attempts, lambda path: is_sound(path) and (path.stem != RELEASE or _is_release(path, options.check)))

    def read(self, files: dict[str, Path], options: Namespace, scratch: Path) -> dict[str, Iterable[Row]]:
        """Train, valid, test (all test years after each other) and each test year under its name."""
        names = _names(options)
        texts = _texts(files, options, scratch)
        archive = next(iter(files.values()))
        where = {name: files.get(name, f"{name} in {archive}") for name in names.values()}

        def parse(read: Callable[..., Iterable[Row]], part: str) -> Iterable[Row]:
            sides = [names[part, side] for side in options.sides]
            pairs = read(*(texts[name] for name in sides), *(where[name] for name in sides))
            expected = NUM_PAIRS[options.pair.replace("en", "").strip("-")][part]
            return counted(pairs, expected, where[sides[0]]) if options.check else pairs

        years = {year: list(parse(evaluation_pairs, year)) for year in [*options.dev, *_test_years(options)]}
        tests = {year: years[year] for year in _test_years(options)}
        return {
            "train": parse(training_pairs, "train"),
            "valid": _pool(years[year] for year in options.dev),
            "test": _pool(tests.values()),
            **tests,
        }


def _folder(pair: str) -> str:
    return f"texts/{pair.replace('-', '/')}"


def _test_years(options: Namespace) -> list[str]:
    years = options.test or [year for year in TEST_YEARS if year not in options.dev]
    if both := set(years) & set(options.dev):
        raise DataError(f"{' '.join(sorted(both))} cannot be in both --dev and --test")
    return years


def _places(folder: Path, options: Namespace) -> list[Path]:
    return [folder, folder / options.pair, folder / _folder(options.pair)]


def _find(folder: Path, options: Namespace) -> dict[str, Path]:
    places, wanted, archive = _places(folder, options), sorted(_names(options).values()), f"{options.pair}.tgz"
    for place in places:
        if all((place / name).is_file() for name in wanted):
            return {name: place / name for name in wanted}
    for path in [*(place / archive for place in places), folder / RELEASE]:
        if path.is_file():
            return {path.name: path}
    return {}


def _names(options: Namespace) -> dict[tuple[str, str], str]:
    """File names by part (train or year) and side."""
    pair, years = options.pair, {*options.dev, *_test_years(options)}
    names = {("train", side): f"train.tags.{pair}.{side}" for side in options.sides}
    for year, side in itertools.product(years, options.sides):
        names[year, side] = f"IWSLT16.TED.{year}.{pair}.{side}.xml"
    return names


def _texts(files: dict[str, Path], options: Namespace, scratch: Path) -> dict[str, Path]:
    """The texts as files, which an archive's are only in ``scratch``."""
    wanted, archive = set(_names(options).values()), f"{options.pair}.tgz"
    if archive in files:
        return unpack(files[archive], wanted, scratch)
    if RELEASE in files:
        if not _is_release(files[RELEASE], options.check):
            raise DataError(f"{files[RELEASE]} has not the MD5 {RELEASE_MD5}: {CHECK_OR_PASS}")
        inner = unpack(files[RELEASE], {archive}, scratch)[archive]
        return unpack(inner, wanted, scratch, name=f"{archive} in {files[RELEASE]}")
    return files


def _is_release(path: Path, check: bool) -> bool:
    return not check or digest(path, "md5") == RELEASE_MD5


def _pool(years: Iterable[list[Row]]) -> list[Row]:
    return list(itertools.chain.from_iterable(years))
