"""text8, by words or by characters: 100,000,000 characters, or a prefix of them, split 90 : 5 : 5."""

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from itertools import islice
from pathlib import Path

from ..archives import is_sound, unpack
from ..downloads import download, mirror_urls
from ..errors import CHECK_OR_PASS, DataError
from ..lines import Row
from ..options import natural, positive
from ..sources import check_digest, opened, plain_or_gz
from ..text_corpus import SPLITS, Counts, TextCorpus, counted_tokens

MIRRORS = ["http://mattmahoney.net/dc"]
NUM_CHARACTERS, NUM_WORDS = 100_000_000, 17_005_207
PREFIX_CHECKSUMS = {12_549_840: "1b40ab68e13d520469aa90315b92b1466810394246571fadf742c971c3b65a25"}
UNITS = 1000  # words or characters of a line: the corpus has none, the host needs them
NUM_SYMBOLS = 27  # a-z and _
PUBLISHED_WORDS = (
    "Pachitariu & Sahani 2013 count 67,428 words seen at least 5 times and 15,301,600 words of train; their split is "
    "not published."
)
COUNTS = {  # of the whole by characters
    "train": Counts(90_090_000, 90_000),
    "valid": Counts(5_005_000, 5_000),
    "test": Counts(5_005_000, 5_000),
}


class Text8(TextCorpus):
    """Matt Mahoney's cleaned text of Wikipedia; split as by Mikolov et al. 2012, *Subword Language Modeling*."""

    name = "text8"
    title = "text8, by words or by characters"

    def add_options(self, parser: ArgumentParser) -> None:
        """Level, threshold of words, and how much of the text is taken."""
        add = parser.add_argument
        text = "words, or characters to data-bin/text8-char (default: word)"
        add("--level", choices=["word", "char"], default="word", help=text)
        text = "words seen less than N times in train become <unk> (default: 5; not for char)"
        add("--threshold", type=natural, metavar="N", help=text)
        text = "take the first N characters, of text8 or of a file text8.prefix, to data-bin/text8-N (default: all)"
        add("--characters", type=positive, metavar="N", help=text)

    def settle(self, options: Namespace, error: Callable[[str], None]) -> None:
        """Five times is the threshold of words; characters have none."""
        threshold = options.threshold
        super().settle(options, error)
        if options.level == "char" and threshold is not None:
            error("--threshold is for --level word")
        if options.level == "word":
            options.threshold = 5 if threshold is None else threshold
        if options.characters is not None and not 20 <= options.characters <= NUM_CHARACTERS:
            error(f"--characters is a number from 20 to {NUM_CHARACTERS}, not {options.characters}")
        options.result += "-char" if options.level == "char" else ""
        options.result += f"-{options.characters}" if options.characters else ""

    def recipe(self, options: Namespace) -> str:
        """The options."""
        threshold = f" --threshold {options.threshold}" if options.level == "word" else ""
        return f"text8 {self.variant(options)}{threshold}"

    def words_of_text(self, options: Namespace) -> dict[str, str]:
        """Words between blanks, or characters."""
        return {"tokenizer": "characters" if options.level == "char" else "blanks", "case": "kept"}

    def variant(self, options: Namespace) -> str:
        """Level and prefix."""
        return f"--level {options.level}" + (f" --characters {options.characters}" if options.characters else "")

    def report(self, options: Namespace) -> str:
        """As of every corpus, and beside the whole by words what the literature counts."""
        is_whole = options.level == "word" and options.characters is None and options.threshold == 5
        return "\n".join([*([PUBLISHED_WORDS] if is_whole else []), super().report(options)])

    def _find(self, folder: Path, options: Namespace) -> Path | None:
        names = ["text8", *(["text8.prefix"] if options.characters else [])]
        archive = folder / "text8.zip"
        return archive if archive.is_file() else next(filter(None, (plain_or_gz(folder, name) for name in names)), None)

    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """``text8.zip`` or ``text8``; ``text8.prefix`` if a prefix is wanted."""
        if path := self._find(folder, options):
            return {"text8": path}
        if plain_or_gz(folder, "text8.prefix"):
            raise DataError(f"{folder} has no text8.zip (or text8), but a prefix: say how much with --characters N")
        raise DataError(f"{folder} has no text8.zip (or text8): put that there, or leave out --from to download")

    def download(self, folder: Path, options: Namespace) -> None:
        """``text8.zip``."""
        if not self._find(folder, options):
            urls = mirror_urls(options.mirror or MIRRORS, "text8.zip")
            download([(url, folder / "text8.zip") for url in urls], is_sound)

    def read(self, files: dict[str, Path], options: Namespace, scratch: Path) -> dict[str, Iterable[Row]]:
        """Lines of UNITS words or characters. A word across a border stays whole, in the earlier part."""
        path = where = files["text8"]
        if path.suffix == ".zip":
            path, where = unpack(path, {"text8"}, scratch)["text8"], f"text8 in {path}"
        with opened(path) as file:
            content = file.read(options.characters)
        if found := re.search(b"[^a-z ]", content):
            raise DataError(f"{where} has more than a-z and blanks (at byte {found.start()}): {CHECK_OR_PASS}")
        text = content.decode("ascii")
        _check(text, where, options)
        cuts = [len(text) * 90 // 100, len(text) * 95 // 100]
        if options.level == "word":
            cuts = [cut if text[cut - 1] == " " else re.compile("[^ ]*").match(text, cut).end() for cut in cuts]
        borders = [0, *cuts, len(text)]
        counts = COUNTS if options.check and options.level == "char" and options.characters is None else {}
        return {
            split: counted_tokens(_lines(text[start:end], options.level), counts.get(split), f"{split} of {where}")
            for split, start, end in zip(SPLITS, borders, borders[1:])
        }

    def check_dictionary(self, num_rows: int, files: dict[str, Path], options: Namespace) -> None:
        """DataError unless all characters are there, of a text that is known; a short prefix may lack some."""
        is_known = options.characters is None or options.characters in PREFIX_CHECKSUMS
        if options.level == "char" and is_known and num_rows != NUM_SYMBOLS:
            raise DataError(
                f"the vocabulary of {files['text8']} has {num_rows} words, expected {NUM_SYMBOLS}: {CHECK_OR_PASS}"
            )


def _check(text: str, where: object, options: Namespace) -> None:
    wanted = options.characters or NUM_CHARACTERS
    if len(text) < 20 or (options.characters and len(text) < wanted):
        raise DataError(f"{where} has {len(text)} characters, expected {wanted}: {CHECK_OR_PASS}")
    if not options.check:
        return
    if options.characters is None:
        num_words = sum(1 for _ in re.finditer("[^ ]+", text))
        if (num_words, len(text)) != (NUM_WORDS, NUM_CHARACTERS):
            raise DataError(
                f"{where} has {num_words} words in {len(text)} characters, "
                f"expected {NUM_WORDS} in {NUM_CHARACTERS}: {CHECK_OR_PASS}"
            )
    elif options.characters in PREFIX_CHECKSUMS:
        found = sha256(text.encode("ascii")).hexdigest()
        check_digest(found, PREFIX_CHECKSUMS[options.characters], f"the prefix of {where}")


def _lines(text: str, level: str) -> Iterator[str]:
    words = (match.group() for match in re.finditer("[^ ]+", text))
    units = words if level == "word" else iter(text.replace(" ", "_"))
    while line := " ".join(islice(units, UNITS)):
        yield line
