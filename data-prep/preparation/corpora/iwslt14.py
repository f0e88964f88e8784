"""IWSLT 2014, German and English: TED talks, the usual text, split and filter; or a part of it that is tokenised."""

from argparse import Namespace
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from sacremoses import MosesDetokenizer

from ..archives import is_sound, unpack
from ..downloads import download, mirror_urls
from ..errors import DataError
from ..lines import Row
from ..parallel_corpus import ParallelCorpus
from ..sources import aligned_files, check_digest, content_digest, counted, plain_or_gz
from ..ted import evaluation_pairs, training_pairs

ARCHIVE = "de-en.tgz"
MIRRORS = ["https://wit3.fbk.eu/archive/2014-01/texts/de/en", "http://dl.fbaipublicfiles.com/fairseq/data/iwslt14"]
TEXT_TAGS = ("title", "description")  # of a talk: their content is text in the usual training set
INTERVAL = 23  # every so many training pairs one validates
NUM_TRAIN = 174443
NUM_TEST = {
    "IWSLT14.TED.dev2010": 887,
    "IWSLT14.TEDX.dev2012": 1165,
    "IWSLT14.TED.tst2010": 1565,
    "IWSLT14.TED.tst2011": 1433,
    "IWSLT14.TED.tst2012": 1700,
}

# SHA-256 of the partial set's text, without the compression.
CHECKSUMS = {
    "train.de": "f0c781e2f83a1f9868fcdc600b119a183b789c31e7d3410da37623b7b153dfce",
    "train.en": "96f3727e083c9b00b05dd3299081ace887c5f117e855a9e50fcb22c0bf65adf0",
    "valid.de": "3f051579c9d8c7281a6ea8c72ad4ae09dbaa9bb24dfd41166f2c3a3df7cd940a",
    "valid.en": "e6d7317a9772cd1ed970910c611e9e7dada1f34439269b44a9d801334bff948d",
}


class IWSLT14(ParallelCorpus):
    """Cettolo et al. 2014, *Report on the 11th IWSLT Evaluation Campaign*."""

    name = "iwslt14"
    title = "IWSLT 2014, German and English (TED talks)"
    pairs = ["de-en", "en-de"]
    num_merges = 10000
    max_ratio = 1.5
    max_length = 175
    lowercase = True
    extra_options = {
        "--partial": dict(
            action="store_true",
            help="take train.{de,en} and valid.{de,en} that are tokenised, lower-cased and escaped already; the first "
            "half of valid validates, the second tests; to data-bin/iwslt14-partial.PAIR",
        ),
    }

    def settle(self, options: Namespace, error: Callable[[str], None]) -> None:
        """A partial set has a result of its own."""
        super().settle(options, error)
        if options.partial:
            options.result = options.result.replace(self.name, f"{self.name}-partial", 1)
            if not options.lowercase:
                error("--no-lowercase is not for --partial, whose text is in lower case")

    def variant(self, options: Namespace) -> str:
        """Whether it is the partial set."""
        return "partial" if options.partial else ""

    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """The texts as files, or the archive; of the partial set the texts, compressed or not."""
        if options.partial:
            files = {name: plain_or_gz(folder, name) for name in CHECKSUMS}
            if missing := [name for name, path in files.items() if path is None]:
                raise DataError(f"{folder} has no {', '.join(missing)}: put them there, .gz or not, for --partial")
            return files
        if files := _find(folder):
            return files
        hint = " (the partial set is taken with --partial)" if plain_or_gz(folder, "train.de") else ""
        raise DataError(
            f"{folder} has no {ARCHIVE}, nor {' and '.join(_names()[:2])} and the others{hint}: "
            "put it there, or leave out --from to download"
        )

    def download(self, folder: Path, options: Namespace) -> None:
        """The archive; the partial set has no address."""
        if options.partial:
            if not plain_or_gz(folder, "train.de"):
                raise DataError("the partial set cannot be downloaded: pass the folder that holds it with --from DIR")
        elif not _find(folder):
            urls = mirror_urls(options.mirror or MIRRORS, ARCHIVE)
            download([(url, folder / ARCHIVE) for url in urls], is_sound)

    def read(self, files: dict[str, Path], options: Namespace, scratch: Path) -> dict[str, Iterable[Row]]:
        """Train and test, from which valid is taken when train is filtered; of the partial set all three."""
        if options.partial:
            return _read_partial(files, options)
        texts = unpack(files[ARCHIVE], set(_names()), scratch) if ARCHIVE in files else files
        where = {name: f"{name} in {files[ARCHIVE]}" if ARCHIVE in files else files[name] for name in _names()}

        def parse(read: Callable[..., Iterable[Row]], name: str, expected: int) -> Iterable[Row]:
            sides = [name.format(side=side) for side in options.sides]
            rows = read(*(texts[side] for side in sides), *(where[side] for side in sides))
            return counted(rows, expected, where[sides[0]]) if options.check else rows

        train = partial(training_pairs, kept_tags=TEXT_TAGS)
        tests = [parse(evaluation_pairs, f"{stem}.de-en.{{side}}.xml", count) for stem, count in NUM_TEST.items()]
        return {
            "train": parse(train, "train.tags.de-en.{side}", NUM_TRAIN),
            "test": [tuple(line.replace("\u2019", "'") for line in row) for rows in tests for row in rows],
        }

    def validation_interval(self, options: Namespace) -> int:
        """Every 23rd pair, as it is usual; none of the partial set."""
        return 0 if options.partial else INTERVAL

    def tokenizer_of(self, options: Namespace) -> Callable[..., Callable[[str], str]]:
        """Moses', or the tokens that the partial set has."""
        return _own_tokens if options.partial else self.tokenizer

    def words_of_text(self, options: Namespace) -> dict[str, str]:
        """Those of :meth:`tokenizer_of`."""
        return {"tokenizer": "blanks", "case": "kept"} if options.partial else super().words_of_text(options)

    def reference_of(self, options: Namespace) -> Callable[[str], Callable[[str], str]]:
        """The raw text; of the partial set its tokens put together again."""
        return _detokenizer if options.partial else super().reference_of(options)


def _find(folder: Path) -> dict[str, Path]:
    for place in (folder, folder / "de-en"):
        if all((place / name).is_file() for name in _names()):
            return {name: place / name for name in _names()}
        if (place / ARCHIVE).is_file():
            return {ARCHIVE: place / ARCHIVE}
    return {}


def _names() -> list[str]:
    stems = ["train.tags.de-en.{side}", *(f"{stem}.de-en.{{side}}.xml" for stem in NUM_TEST)]
    return [stem.format(side=side) for stem in stems for side in ("de", "en")]


def _read_partial(files: dict[str, Path], options: Namespace) -> dict[str, Iterable[Row]]:
    if options.check:
        for name, path in files.items():
            check_digest(content_digest(path), CHECKSUMS[name], f"{name} in {path}")
    train, valid = (
        aligned_files(*(files[f"{split}.{side}"] for side in options.sides)) for split in ("train", "valid")
    )
    rows = list(valid)
    half = len(rows) // 2
    return {"train": train, "valid": rows[:half], "test": rows[half:]}


def _own_tokens(side: str, lowercase: bool) -> Callable[[str], str]:
    return lambda line: " ".join(line.split())


def _detokenizer(side: str) -> Callable[[str], str]:
    detokenizer = MosesDetokenizer(lang=side)
    return lambda line: detokenizer.detokenize(line.split(), unescape=True)
