"""The contract of a corpus, and the command line options that all corpora share."""

import argparse
import os
import shlex
from abc import ABC, abstractmethod
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from .lines import MissingFiles, Row
from .sources import Text


class Step(NamedTuple):
    """A step between the raw text and the binaries."""

    name: str  # name of its folder
    settings: dict[str, object]  # the step is repeated when they change
    make: Callable[[Path, Path], None]  # make(folder of the previous step, folder to fill)


class Corpus(ABC):
    """A corpus: its options, its files, the raw text of its splits, and the steps from there to tokens.

    A row has a line of each side: one for a language model, two for a sentence pair.
    """

    name: str
    title: str
    does: str = "Download, check and binarise"  # what --help says of the title
    if_tokenised: str = ""  # end of the warning that raw text looks tokenised
    own_options: ClassVar[dict[str, dict[str, Any]]] = {}  # flag -> arguments of add_argument
    recipe_of_text: str = "ptb_small"  # whose system doc trains on one side

    def add_options(self, parser: ArgumentParser) -> None:
        """Add options of this corpus to those that all corpora share."""
        for flag, arguments in self.own_options.items():
            parser.add_argument(flag, **arguments)

    @abstractmethod
    def settle(self, options: Namespace, error: Callable[[str], None]) -> None:
        """Check options that depend on each other. ``error`` ends the program with a message about usage.

        Sets ``result`` (name of the result's folder), ``subject`` (name of the folder of steps, may be empty),
        ``sides`` (names of the sides that ``read`` returns), ``kept_sides`` (the sides that are prepared),
        ``threshold`` (rarer words become unknown), ``joined_dictionary`` and ``dictionaries`` (given files by side).
        """

    def summary(self, options: Namespace) -> str:
        """A line that identifies how the result is made, the first one of ``prepared.txt``."""
        return self.name

    def variant(self, options: Namespace) -> str:
        """The part of the summary on which the raw text depends."""
        return ""

    @abstractmethod
    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """The files to read, by the corpus' own names. MissingFiles names what ``folder`` lacks."""

    def has_files(self, folder: Path, options: Namespace) -> bool:
        """Whether ``folder`` has all files, so that none is downloaded."""
        try:
            return bool(self.find(folder, options))
        except MissingFiles:
            return False

    @abstractmethod
    def download(self, folder: Path, options: Namespace) -> None:
        """Download files to ``folder``, which does not have all. DataError if they cannot be downloaded."""

    @abstractmethod
    def read(self, files: dict[str, Text], options: Namespace, scratch: Path) -> dict[str, Iterable[Row]]:
        """Raw text of train, valid, test and further splits. ``options.check`` demands the real corpus.

        A split may be an iterator. ``scratch`` is a folder for unpacked files that exists until all splits are read.
        """

    def steps(self, options: Namespace) -> list[Step]:
        """The steps from raw text to what is binarised."""
        return []

    def check_dictionary(self, num_rows: int, files: dict[str, Path], options: Namespace) -> None:  # noqa: B027
        """DataError unless the real corpus' dictionary can have this number of rows."""

    def words_of_text(self, options: Namespace) -> dict[str, str]:
        """How a raw line becomes words.

        ``tokenizer`` is "blanks", "moses", "characters" or "hf:PATH". ``language`` chooses Moses' rules (by default
        the name of the side). ``case`` is "kept", "lower tokens", or "lower lines" where lines are lower-cased before
        they are tokenised.
        """
        return {"tokenizer": "blanks", "case": "kept"}

    def text_record(self, options: Namespace) -> dict[str, str]:
        """The content of ``text.json``, by which commands of the package read raw text."""
        return {**self.words_of_text(options), "unicode": "NFC" if options.nfc else "kept"}

    def expects(self, options: Namespace) -> str:
        """Whether the files hold "raw" text, "tokens", or "anything". There is a warning if they look otherwise."""
        return "tokens"

    def add_files(self, folders: dict[str, Path], result: Path, options: Namespace) -> None:  # noqa: B027
        """Add files to the result that models need besides the binaries. ``folders`` has the folder of each step."""

    def beside(self, options: Namespace) -> str:
        """A phrase for the report that names the other files of the result, or nothing."""
        return ""

    def next_recipe(self, options: Namespace) -> str:
        """A recipe of training whose system ``doc`` trains on the result."""
        return self.recipe_of_text

    def report(self, options: Namespace) -> str:
        """The folder of the result, and the command to run next. A model whose vocabulary was given is fine-tuned."""
        dest = str(options.dest)
        trained = ["train", self.next_recipe(options), "doc", dest]
        started = ["fine-tune", dest, "--path", "CKPT"] if options.dictionaries else trained
        command = ["fairseq-plugins", *started, "--save-dir", f"checkpoints/{options.dest.name}"]
        return f"The binarised corpus is in {dest}{self.beside(options)}. Next:\n  {shlex.join(command)}"


LARGEST = 10**9  # largest number that an option takes


def parse_options(corpus: Corpus, arguments: list[str]) -> Namespace:
    """Parse and check options of the command line. EXPECTED_COUNTS sets ``check``, the kept sides set ``is_pair``."""
    parser = argparse.ArgumentParser(
        prog="prepare.sh",
        description=f"{corpus.does} {corpus.title}.",
        epilog="EXPECTED_COUNTS=skip in the environment turns off the checks that only the real corpus passes.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--from", dest="source", type=given_path, metavar="DIR", help="take the files from DIR; download nothing")
    add(
        "--mirror",
        action="append",
        metavar="URL",
        help="folder to download from, instead of the built-in mirrors; may be repeated",
    )
    add("--dest", type=given_path, metavar="DIR", help="folder of the result (default: in data-bin)")
    add("--work", type=given_path, metavar="DIR", help=f"downloads and text (default: downloads/{corpus.name})")
    add("--workers", type=positive, default=_num_cores(), metavar="N", help="processes (default: all cores)")
    text = "put text into the composed form of Unicode (default), or keep the form that it comes in"
    add("--nfc", action=argparse.BooleanOptionalAction, help=text)
    corpus.add_options(parser)
    parser.set_defaults(codes=None, dictionaries={})
    options = parser.parse_args(arguments)
    expected = os.environ.get("EXPECTED_COUNTS", "check")
    if expected not in ("check", "skip"):
        parser.error(f"EXPECTED_COUNTS is check or skip, not {expected}")
    options.check = expected == "check"
    corpus.settle(options, parser.error)
    options.is_pair = len(options.kept_sides) > 1
    options.nfc = options.nfc is not False
    if options.source and options.mirror:
        parser.error("--from downloads nothing, so --mirror has no use: give one of them")
    options.workers = min(options.workers, _num_cores())
    options.dest = options.dest or Path("data-bin") / options.result
    if options.dest.is_symlink() or not options.dest.name:  # it is replaced by renaming
        options.dest = Path(os.path.realpath(options.dest))
        if options.dest.is_symlink():
            parser.error(f"--dest {options.dest} is a symbolic link to itself: pass another --dest")
    options.work = options.work or Path("downloads") / corpus.name
    dest, work = (Path(os.path.realpath(folder)) for folder in (options.dest, options.work))
    if dest in (work, *work.parents):  # it is replaced as a whole
        parser.error(f"--dest {options.dest} is the folder of --work {options.work}, or holds it: pass another --dest")
    return options


def given_path(text: str) -> Path:
    """A path that is not empty."""
    if not text:
        raise argparse.ArgumentTypeError("a path is expected, not ''")
    return Path(text)


def positive(text: str) -> int:
    """A number from 1 to LARGEST."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= LARGEST:
        raise argparse.ArgumentTypeError(f"a positive number to {LARGEST:,} is expected, not '{text}'")
    return int(text)


def natural(text: str) -> int:
    """A number from 0."""
    return 0 if text == "0" else positive(text)


def ratio(text: str) -> float:
    """0 (no limit), or a number from 1."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if number != 0 and not 1 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"0 or a number from 1 is expected, not '{text}'")
    return number


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
