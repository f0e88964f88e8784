"""Trees of the Wall Street Journal in the Penn Treebank, linearised for language models that rerank parses."""

import re
import shlex
import shutil
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from .. import ACTIVATE
from ..corpus import Step, positive
from ..lines import PASS_OTHERS, DataError, MissingFiles, Row, progress, read_lines, write_lines, write_rows
from ..sources import Text, check_contents, check_digest, counted, file_lines, text_file
from ..steps import splits_of, write_splits
from .language_models import TextCorpus

# Where the files lie: sections of articles, as on the discs of the LDC, or the articles of NLTK's sample


PLACES = [".", "wsj", "mrg/wsj", "combined/wsj", "parsed/mrg/wsj", "treebank_3/parsed/mrg/wsj"]  # of the sections
NLTK_PLACES = [".", "combined", "treebank/combined", "corpora/treebank/combined"]  # of the articles of NLTK's sample
OF_SECTION = r"(wsj_?)?{:02d}(\.(mrg|trees))?(\.gz)?"  # name of a file that has a whole section
ARTICLE = re.compile(r".+\.mrg(\.gz)?")
PUT_OR_PASS = "put it there, or pass another --from"


def section_files(folder: Path, number: int) -> list[Path]:
    """The articles of a section in order, or the file that has all of them. DataError if there are duplicates."""
    if (folder / f"{number:02d}").is_dir():
        found = (folder / f"{number:02d}").iterdir()
        files = sorted(path for path in found if path.is_file() and ARTICLE.fullmatch(path.name))
        return _each_once(files)
    name = re.compile(OF_SECTION.format(number))
    found = folder.iterdir() if folder.is_dir() else []
    files = sorted(path for path in found if path.is_file() and name.fullmatch(path.name))
    if len(files) > 1:
        raise DataError(f"section {number:02d} is in {' and in '.join(map(str, files))}: keep one of them")
    return files


def nltk_folder(folder: Path) -> Path | None:
    """The folder of the articles of NLTK's sample in or below ``folder``, or None."""
    places = (folder / place for place in NLTK_PLACES)
    return next((place for place in places if _article_files(place, number=1)), None)


def nltk_files(folder: Path, numbers: Iterable[int]) -> list[Path]:
    """Articles of NLTK's sample. DataError if one is missing or exists twice."""
    files, missing = [], []
    for number in numbers:
        found = _each_once(_article_files(folder, number))
        files += found
        missing += [] if found else [f"wsj_{number:04d}.mrg"]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise MissingFiles(folder, f"{', '.join(missing[:3])}{more}", PUT_OR_PASS)
    return files


def _article_files(folder: Path, number: int) -> list[Path]:
    paths = (folder / f"wsj_{number:04d}.mrg{end}" for end in ("", ".gz"))
    return [path for path in paths if path.is_file()]


def _each_once(files: list[Path]) -> list[Path]:
    """``files``. DataError if one exists both compressed and uncompressed."""
    for one, other in zip(files, files[1:], strict=False):
        if f"{one}.gz" == str(other):
            raise DataError(f"{one} exists twice, also as {other.name}: keep one of them")
    return files


# The corpus


SAMPLE = "gold.*.trees"  # file of the sample, with * for the split
SAMPLE_CHECKSUMS = {  # of the text without compression
    "train": "e8d6b31db3a0d0f4d34e587192070013ad76075ed4afb15dd2d3d84039b3d785",
    "valid": "2c785cd30344b3a72e2497be82b2beacefa179a0fbed742295e5311de45517c6",
    "test": "2846c4d95ca4ca4cdd7e6932577b9a2cc32832469b7aa8d5948f92c4d35eb772",
}
SECTIONS = {"train": range(2, 22), "valid": [22], "test": [23], "dev": [24]}
NUM_TREES = {"train": 39_832, "valid": 1_700, "test": 2_416, "dev": 1_346}
SAMPLE_ARTICLES = {"train": range(1, 150), "valid": range(150, 170), "test": range(170, 200)}


class WSJ(TextCorpus):
    """Choe & Charniak 2016, *Parsing as Language Modeling*. The sample is NLTK's."""

    name = "wsj"
    title = "trees of the Wall Street Journal (Penn Treebank), for reranking"
    does = "Check, linearise and binarise"
    own_options = {
        "--threshold": dict(
            dest="min_count",
            type=positive,
            default=10,
            metavar="N",
            help="words seen less than N times in train become one of 26 unknown classes (default: %(default)s)",
        ),
    }

    def settle(self, options: Namespace, error: Callable[[str], None]) -> None:
        """Decide by the files of ``--from`` whether it is the sample."""
        super().settle(options, error)
        options.sample = options.source is not None and (
            text_file(options.source, SAMPLE.replace("*", "train")) or nltk_folder(options.source)
        )
        options.result += "-sample" if options.sample else ""
        options.subject = "sample" if options.sample else "sections"

    def summary(self, options: Namespace) -> str:
        """The trees, and the threshold of words."""
        return f"wsj {options.subject}, words seen {options.min_count} times and more"

    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """``gold.SPLIT.trees`` of the sample or its articles, or the files of all sections."""
        if options.sample:
            articles = nltk_folder(folder)
            if text_file(folder, SAMPLE.replace("*", "train")) is None and articles is not None:
                files = {split: nltk_files(articles, numbers) for split, numbers in SAMPLE_ARTICLES.items()}
                return {f"{split}/{path.name}": path for split, paths in files.items() for path in paths}
            names = {split: SAMPLE.replace("*", split) for split in SAMPLE_CHECKSUMS}
            gold = {split: text_file(folder, name) for split, name in names.items()}
            if missing := [names[split] for split, path in gold.items() if path is None]:
                raise MissingFiles(folder, ", ".join(missing), PUT_OR_PASS)
            return gold
        for place in PLACES:
            files = {number: section_files(folder / place, number) for split in SECTIONS.values() for number in split}
            if any(files.values()):
                break
        if not any(files.values()):
            raise MissingFiles(
                folder,
                f"{SAMPLE.replace('*', 'train')} nor combined/wsj_0001.mrg of the sample, nor a section of the corpus",
                "put folders 02 ... 24 of .mrg files or files 02.mrg ... 24.mrg there, or pass another --from",
            )
        if missing := [f"section {number:02d}" for number, paths in files.items() if not paths]:
            raise MissingFiles(folder / place, ", ".join(missing), PUT_OR_PASS)
        return {f"{number:02d}/{path.name}": path for number, paths in files.items() for path in paths}

    def download(self, folder: Path, options: Namespace) -> None:
        """DataError: the treebank cannot be downloaded."""
        raise DataError("the treebank is the LDC's and cannot be downloaded: pass its trees with --from DIR")

    def read(self, files: dict[str, Text], options: Namespace, scratch: Path) -> dict[str, Iterable[Row]]:
        """Cleaned trees, one a row."""
        if options.sample:
            return self._read_sample(files, options)
        splits = {}
        for split, numbers in SECTIONS.items():
            texts = [text for name, text in files.items() if int(name[:2]) in numbers]
            rows, where = _trees(texts), f"{split} of {texts[0].path.parent}"
            splits[split] = counted(rows, NUM_TREES[split], where) if options.check else rows
        return splits

    def _read_sample(self, files: dict[str, Text], options: Namespace) -> dict[str, Iterable[Row]]:
        splits: dict[str, Iterable[Row]] = {}
        if options.check:
            check_contents(files, SAMPLE_CHECKSUMS)
        for split, expected in SAMPLE_CHECKSUMS.items():
            if split in files:
                splits[split] = _trees([files[split]])
            else:
                texts = [text for name, text in files.items() if name.startswith(f"{split}/")]
                rows, where = _trees(texts), f"{split} of {texts[0].path.parent}, cleaned,"
                splits[split] = _digested(rows, expected, where) if options.check else rows
        return splits

    def steps(self, options: Namespace) -> list[Step]:
        """From trees to symbols."""
        return [Step("symbols", {"min_count": options.min_count}, partial(_make_symbols, options))]

    def add_files(self, folders: dict[str, Path], result: Path, options: Namespace) -> None:
        """In ``trees``, the list of kept words and the gold trees of all splits except train."""
        kept_words = _package_trees().KEPT_WORDS
        (side,) = options.kept_sides
        (result / "trees").mkdir()
        shutil.copyfile(folders["symbols"] / kept_words, result / "trees" / kept_words)
        for split in splits_of(folders["text"]).keys() - {"train"}:
            shutil.copyfile(folders["text"] / f"{split}.{side}", result / "trees" / f"gold.{split}.trees")

    def report(self, options: Namespace) -> str:
        """The folder of the result, and the commands that train on it and rerank."""
        recipe, trained = "wsj_sample" if options.sample else "wsj", "checkpoints/wsj"
        dest, trees = str(options.dest), str(options.dest / "trees")
        train = ["train", recipe, "doc", dest, "--save-dir", trained]
        rerank = ["trees", "rerank", dest, "--path", f"{trained}/checkpoint_best.pt"]
        rerank += ["--lists", "LISTS_OF_TEST", "--gold", f"{trees}/gold.test.trees"]
        commands = (f"fairseq-plugins {shlex.join(command)}" for command in (train, rerank))
        return "\n  ".join([f"The binarised corpus is in {dest}, the gold trees are in {trees}. Next:", *commands])


def _package_trees() -> ModuleType:
    """The package's module, imported on use because that takes seconds."""
    try:
        from fairseq_plugins.trees import trees
    except ImportError as error:
        raise DataError(f"{error}: {ACTIVATE}") from None
    return trees


def _trees(texts: list[Text]) -> Iterator[Row]:
    """A cleaned tree a row, without trees that have no word. DataError with the line where brackets do not match."""
    trees = _package_trees()
    for text in texts:
        try:
            for tree in trees.read_trees(file_lines(text), name=str(text)):
                if cleaned := trees.clean_tree(tree):
                    yield (str(cleaned),)
        except ValueError as error:
            raise DataError(f"{error}: {PASS_OTHERS}") from None


def _digested(rows: Iterable[Row], expected: str, name: object) -> Iterator[Row]:
    """``rows``. DataError at the end unless their lines have the expected SHA-256."""
    result = sha256()
    for row in rows:
        result.update(f"{row[0]}\n".encode())
        yield row
    check_digest(result.hexdigest(), expected, name)


def _make_symbols(options: Namespace, text: Path, folder: Path) -> None:
    """Write the words that are frequent in train, and a line of symbols for each tree of all splits."""
    trees = _package_trees()
    (side,) = options.kept_sides
    splits = splits_of(text)

    def read(split: str, doing: str) -> Iterator:
        lines = read_lines(text / f"{split}.{side}")
        return map(trees.read_tree, progress(lines, desc=f"{doing} {split}", total=splits[split], unit=" trees"))

    counts = trees.count_words(read("train", "counting words of"))
    kept = trees.frequent_words(counts, min_count=options.min_count)
    if not kept:
        raise DataError(f"train has no word {options.min_count} times: give a smaller --threshold")
    write_lines(folder / trees.KEPT_WORDS, kept)
    linearisation = trees.Linearisation(kept)
    classes, labels = set(), set()
    for split in splits:
        rows = []
        for tree in read(split, "writing symbols of"):
            symbols = linearisation.symbols(tree)
            rows.append((" ".join(symbols),))
            if split == "train":
                labels.update(symbol[1:] for symbol in symbols if symbol[0] == "(")
                classes.update(symbol for symbol in symbols if symbol[0] == "<")
        write_rows(folder, split, options.kept_sides, rows)
    write_splits(folder, splits)
    print(f"train: {len(kept)} words, {len(classes)} unknown classes, {len(labels)} labels", flush=True)
