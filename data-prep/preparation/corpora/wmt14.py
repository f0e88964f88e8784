"""WMT 2014, English and German: Europarl, Common Crawl and News Commentary; newstest2012 to 2016 in SGML."""

import itertools
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..archives import is_sound, unpack
from ..downloads import download, mirror_urls
from ..errors import CHECK_OR_PASS, DataError, note
from ..lines import Row
from ..parallel_corpus import ParallelCorpus
from ..sgm import segment_pairs
from ..sources import aligned_files, counted, plain_or_gz

# Archive -> stem of its two files, number of their lines.
TRAIN = {
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
TEST = "newstest2014"
TEST_ARCHIVES = ["test-full.tgz", "test.tgz", "dev.tgz"]  # whichever has a set
PLACES = [".", "training", "dev", "test-full", "test"]

URLS = {
    "training-parallel-europarl-v7.tgz": "www.statmt.org/wmt13",
    "training-parallel-commoncrawl.tgz": "www.statmt.org/wmt13",
    "training-parallel-nc-v9.tgz": "www.statmt.org/wmt14",
    "test-full.tgz": "www.statmt.org/wmt14",
    "dev.tgz": "data.statmt.org/wmt17/translation-task",  # has all sets
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
    extra_options = {
        "--valid": dict(
            choices=[year for year in NEWSTESTS if year != "newstest2014"],
            default="newstest2013",
            help="valid (default: %(default)s)",
        ),
    }

    def variant(self, options: Namespace) -> str:
        """The set that is valid."""
        return f"valid {options.valid}"

    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """Each text as a file, or else the archive that should have it."""
        files, missing = {}, []
        for archive in TRAIN:
            names = _training_names(archive, options)
            if texts := _find_all(folder, names):
                files |= texts
            elif path := _find(folder, archive):
                files[archive] = path
            else:
                missing.append(f"{archive} ({' and '.join(names)})")
        for archive in TEST_ARCHIVES:
            if path := _find(folder, archive):
                files[archive] = path
        for test in NEWSTESTS:
            texts = _find_set(folder, test, options)
            files |= texts
            if test in _needed(options) and not texts and not files.keys() & set(TEST_ARCHIVES):
                missing.append(f"{' or '.join(TEST_ARCHIVES)} ({' and '.join(_names(test, options)[0])})")
        if missing:
            raise DataError(f"{folder} has no {', no '.join(missing)}: put it there, or leave out --from to download")
        return files

    def download(self, folder: Path, options: Namespace) -> None:
        """Each archive whose texts are not there; test-full.tgz and dev.tgz overlap, so that one may fail."""
        has_all_sets = all(_find_set(folder, test, options) for test in NEWSTESTS)
        for archive, host in URLS.items():
            if archive in TRAIN:
                has_texts = bool(_find_all(folder, _training_names(archive, options)))
            else:
                has_texts = has_all_sets
            if has_texts or _find(folder, archive):
                continue
            urls = mirror_urls(options.mirror or [f"https://{host}", f"http://{host}"], archive)
            try:
                download([(url, folder / archive) for url in urls], is_sound)
            except DataError:
                has_needed_sets = all(_find_set(folder, test, options) for test in _needed(options))
                if archive in TRAIN or archive == "dev.tgz" and not has_needed_sets:
                    raise
                note(f"going on without {archive}" + ("" if has_needed_sets else f": dev.tgz should have {TEST} too"))

    def read(self, files: dict[str, Path], options: Namespace, scratch: Path) -> dict[str, Iterable[Row]]:
        """Train, valid, test (newstest2014), and each test set that was found under its name."""
        texts = {name: path for name, path in files.items() if not name.endswith(".tgz")}
        where = {name: str(path) for name, path in texts.items()}
        tests = {}
        for archive in TEST_ARCHIVES:
            wanted = {
                name
                for test in NEWSTESTS
                for names in _names(test, options)
                for name in names
                if not any(texts.keys() >= set(each) for each in _names(test, options))
            }
            if archive in files and wanted:
                found = unpack(files[archive], wanted - texts.keys(), scratch, all_needed=False)
                texts |= found
                where |= {name: f"{name} in {files[archive]}" for name in found}
        for test, expected in NEWSTESTS.items():
            names = next((each for each in _names(test, options) if texts.keys() >= set(each)), None)
            if names:
                pairs = segment_pairs(*(texts[name] for name in names), *(where[name] for name in names))
                tests[test] = list(counted(pairs, expected, where[names[0]]) if options.check else pairs)
            elif test in _needed(options):
                archives = ", ".join(str(files[archive]) for archive in TEST_ARCHIVES if archive in files)
                wanted = " and ".join(_names(test, options)[0])
                raise DataError(f"{archives} has no member {wanted}: {CHECK_OR_PASS}")
            else:
                note(f"{test} is left out: no file {' and '.join(_names(test, options)[0])}")
        valid = tests.pop(options.valid)
        train = itertools.chain.from_iterable(
            _training_pairs(archive, files, options, scratch) for archive in TRAIN
        )  # read one after the other
        return {"train": train, "valid": valid, "test": tests[TEST], **tests}


def _needed(options: Namespace) -> set[str]:
    return {options.valid, TEST}


def _find(folder: Path, name: str) -> Path | None:
    return next(filter(None, (plain_or_gz(folder / place, name) for place in PLACES)), None)


def _find_all(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """All of these files, or nothing."""
    found = {name: path for name in names if (path := _find(folder, name))}
    return found if len(found) == len(names) else {}


def _find_set(folder: Path, test: str, options: Namespace) -> dict[str, Path]:
    """The files of a test set, under the first names by which both are there; nothing where they are not."""
    return next(filter(None, (_find_all(folder, names) for names in _names(test, options))), {})


def _training_names(archive: str, options: Namespace) -> list[str]:
    stem, _ = TRAIN[archive]
    return [f"{stem}.{side}" for side in options.sides]


def _names(test: str, options: Namespace) -> list[tuple[str, str]]:
    """Names that the files of a test set may have, source and reference; from 2014 on they tell the direction."""
    source, target = options.sides
    stems = [test] if test < "newstest2014" else [f"{test}-{source}{target}", f"{test}-{target}{source}"]
    return [(f"{stem}-src.{source}.sgm", f"{stem}-ref.{target}.sgm") for stem in stems]


def _training_pairs(archive: str, files: dict[str, Path], options: Namespace, scratch: Path) -> Iterator[Row]:
    _, expected = TRAIN[archive]
    names = _training_names(archive, options)
    if archive in files:
        texts = unpack(files[archive], set(names), scratch)
        where = [f"{name} in {files[archive]}" for name in names]
    else:
        texts = files
        where = [files[name] for name in names]
    pairs = aligned_files(*(texts[name] for name in names), *where)
    yield from counted(pairs, expected, where[0]) if options.check else pairs
    if archive in files:
        for path in texts.values():
            path.unlink()
