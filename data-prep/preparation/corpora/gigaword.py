"""Annotated English Gigaword as headline generation: first sentence of an article, its title; Rush et al.'s split."""

import re
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from ..errors import DataError
from ..lines import Row
from ..parallel_corpus import ParallelCorpus
from ..sources import aligned_files, counted, digest, plain_or_gz
from ..tokens import screen

PLACES = [".", "train", "sumdata/train", "org_data", "sumdata", "Giga", "sumdata/Giga"]

# File names of a split, article and title: sumdata of Rush et al., then org_data.
LAYOUTS = {
    "train": [("train.article.txt", "train.title.txt"), ("train.src.txt", "train.tgt.txt")],
    "valid": [
        ("valid.article.filter.txt", "valid.title.filter.txt"),
        ("valid.article.txt", "valid.title.txt"),
        ("dev.src.txt", "dev.tgt.txt"),
        ("valid.src.txt", "valid.tgt.txt"),
    ],
    "test": [
        ("test.article.txt", "test.title.txt"),
        ("test.src.txt", "test.tgt.txt"),
        ("input.txt", "task1_ref0.txt"),
    ],
}

# Lines, by name of the article's file.
NUM_PAIRS = {
    "train.article.txt": 3803957,
    "train.src.txt": 3803957,
    "valid.article.filter.txt": 189651,
    "dev.src.txt": 189651,
    "test.src.txt": 1951,
    "input.txt": 1951,
}

DIGITS = str.maketrans("0123456789", "#" * 10)
UNKNOWN = "<unk>"
UNKNOWN_WORDS = frozenset({"<unk>", "UNK", "unk", "[UNK]", "[unk]", "<UNK>"})
SYMBOL = re.compile(r"<(/?s|pad|unk)>")  # of the host, inside a longer word
WORD = re.compile(r"[^\W_]")
BRACKET_NAMES = frozenset({"-lrb-", "-rrb-", "-lsb-", "-rsb-", "-lcb-", "-rcb-", "-LRB-", "-RRB-"})


class Gigaword(ParallelCorpus):
    """Rush et al. 2015, *A Neural Attention Model for Abstractive Sentence Summarization*; test: Zhou et al. 2017."""

    name = "gigaword"
    recipe_of_two_dictionaries = "gigaword"
    recipe_of_one_dictionary = "agnews"
    title = "annotated English Gigaword, articles and titles"
    pairs = ["article-title"]
    num_merges = 5000
    max_ratio = 0.0
    max_length = 250
    symbols = (UNKNOWN,)
    extra_options = {
        "--test-source": dict(type=Path, metavar="FILE", help="articles of the test set, as of Zhou et al. 2017"),
        "--test-target": dict(type=Path, metavar="FILE", help="titles of the test set"),
        "--drop-invalid": dict(action="store_true", help="remove invalid items from valid and test as well"),
    }

    def variant(self, options: Namespace) -> str:
        """Which test set, and what happens to invalid items."""
        test = ""
        if options.test_source and options.test_target:
            marks = "+".join(digest(path)[:8] for path in (options.test_source, options.test_target) if path.is_file())
            test = f"test set {marks}"
        return ", ".join(filter(None, [test, "no invalid item" if options.drop_invalid else ""]))

    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """Train, valid and test in any of the layouts; the layout's own test set is ``rush`` beside a given one."""
        if bool(options.test_source) != bool(options.test_target):
            raise DataError("--test-source and --test-target belong together: pass both")
        found = {split: _find(folder, split) for split in LAYOUTS}
        if options.test_source:
            for path in (options.test_source, options.test_target):
                if not path.is_file():
                    raise DataError(f"{path} is not a file: pass the test set's files, one item a line")
            found = {
                "train": found["train"],
                "valid": found["valid"],
                "test": (options.test_source, options.test_target),
                **({"rush": found["test"]} if found["test"] else {}),
            }
        if missing := [split for split, paths in found.items() if paths is None]:
            wanted = "; ".join(f"{split}: " + " or ".join(" + ".join(p) for p in LAYOUTS[split]) for split in missing)
            raise DataError(
                f"{folder} has no {wanted}: put both files there, .gz or not, or name another folder with --from"
                + (" or the test set with --test-source and --test-target" if "test" in missing else "")
            )
        return {f"{split}.{side}": path for split, paths in found.items() for side, path in zip(options.sides, paths)}

    def download(self, folder: Path, options: Namespace) -> None:
        """Nothing can be: the corpus has no stable address, and its text is licensed by the LDC."""
        if _find(folder, "train") is None:
            raise DataError(
                "Gigaword cannot be downloaded by a script: see data-prep/gigaword/README.md for where to get "
                "train.article.txt, train.title.txt and the others, then run again with --from DIR"
            )

    def read(self, files: dict[str, Path], options: Namespace, scratch: Path) -> dict[str, Iterable[Row]]:
        """The splits with digits as ``#``; invalid items are removed from train, elsewhere only if asked for."""
        splits = list(dict.fromkeys(name.partition(".")[0] for name in files))
        return {split: self._read(files, split, options) for split in splits}

    def _read(self, files: dict[str, Path], split: str, options: Namespace) -> Iterator[Row]:
        source, target = (files[f"{split}.{side}"] for side in options.sides)
        pairs = aligned_files(source, target)
        expected = NUM_PAIRS.get(source.name.removesuffix(".gz"))
        if options.check and expected and source != options.test_source:
            pairs = counted(pairs, expected, source)
        without_digits = ((source.translate(DIGITS), target.translate(DIGITS)) for source, target in pairs)
        return screen(without_digits, partial(fault, options.sides), split, split == "train" or options.drop_invalid)

    def words_of_text(self, options: Namespace) -> dict[str, str]:
        """The text's own."""
        return {"tokenizer": "blanks", "case": "lower tokens" if options.lowercase else "kept"}

    def tokenizer(self, side: str, lowercase: bool) -> Callable[[str], str]:
        """The text's own tokens, lower-cased only if asked for; every way to write an unknown word becomes one."""

        def tokenize(line: str) -> str:
            return " ".join(_token(word.lower() if lowercase else word) for word in line.split())

        return tokenize


def fault(sides: tuple[str, str], pair: Row) -> str:
    """What makes an item useless, or ""."""
    for side, line in zip(sides, pair):
        words = line.split()
        if not words:
            return f"empty {side}"
        if all(word in UNKNOWN_WORDS for word in words):
            return f"only unknown words in {side}"
        if not any(_is_word(word) for word in words):
            return f"no word in {side}"
    return ""


def _is_word(word: str) -> bool:
    return word not in UNKNOWN_WORDS and word not in BRACKET_NAMES and bool(WORD.search(word) or "#" in word)


def _token(word: str) -> str:
    if word in UNKNOWN_WORDS:
        return UNKNOWN
    while SYMBOL.search(word):  # what is left of <<s>> is another
        word = SYMBOL.sub(r"\1", word)
    return word if not word.endswith("@@") else word.rstrip("@") + "@"


def _find(folder: Path, split: str) -> tuple[Path, Path] | None:
    for names in LAYOUTS[split]:
        for place in PLACES:
            source, target = (plain_or_gz(folder / place, name) for name in names)
            if source and target:
                return source, target
    return None
