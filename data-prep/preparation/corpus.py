"""What the framework asks of a corpus."""

from abc import ABC, abstractmethod
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from .lines import Row


class Step(NamedTuple):
    """A step between the raw text and the binaries."""

    name: str  # of its folder
    settings: dict[str, object]  # another value makes the step again
    make: Callable[[Path, Path], None]  # fills the second folder from the step before it, the first


class Corpus(ABC):
    """A corpus: its options, where its files are, the raw text of its splits, and how that becomes tokens.

    A row is a line of each side: of one side for a language model, of two for a pair.
    """

    name: str
    title: str

    @property
    def result_pattern(self) -> str:
        """Name of the result's folder, for a person."""
        return self.name

    def add_options(self, parser: ArgumentParser) -> None:  # noqa: B027
        """Add the corpus' own options, those that all corpora share aside."""

    @abstractmethod
    def settle(self, options: Namespace, error: Callable[[str], None]) -> None:
        """Check options that depend on each other; ``error`` ends the program with a message about usage.

        Sets ``result`` (name of the result's folder), ``subject`` (name of the folder of steps, may be empty),
        ``sides`` (names of the sides that ``read`` gives), ``kept_sides`` (those that are prepared),
        ``threshold`` (words seen less often become unknown) and ``joined_dictionary``.
        """

    @abstractmethod
    def recipe(self, options: Namespace) -> str:
        """One line that tells how a result is made, the first one of ``prepared.txt``."""

    @abstractmethod
    def variant(self, options: Namespace) -> str:
        """The part of the recipe on which the raw text depends."""

    @abstractmethod
    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """The files to read, by the names that the corpus gives them; DataError tells what ``folder`` lacks."""

    @abstractmethod
    def download(self, folder: Path, options: Namespace) -> None:
        """Bring the files into ``folder``; those that are there already stay."""

    @abstractmethod
    def read(self, files: dict[str, Path], options: Namespace, scratch: Path) -> dict[str, Iterable[Row]]:
        """Raw text of train, valid, test and the corpus' other splits; ``options.check`` demands the real corpus.

        A split may be a stream that is read once, while ``scratch`` is there: an empty folder for unpacked files.
        """

    def steps(self, options: Namespace) -> list[Step]:
        """The steps from raw text to what is binarised."""
        return []

    def check_dictionary(self, num_rows: int, files: dict[str, Path], options: Namespace) -> None:  # noqa: B027
        """DataError unless a dictionary with so many rows can be the real corpus'."""

    def words_of_text(self, options: Namespace) -> dict[str, str]:
        """How a raw line of a corpus of one side becomes words, for ``text.json``.

        ``tokenizer`` is "blanks", "moses" with its ``language``, or "characters"; ``case`` is "kept", "lower tokens",
        or "lower lines" where the tokenizer reads lines in lower case.
        """
        return {"tokenizer": "blanks", "case": "kept"}

    def add_files(self, folders: dict[str, Path], result: Path, options: Namespace) -> None:  # noqa: B027
        """Put into the result what a model needs besides the binaries; ``folders`` are those of the steps."""

    @abstractmethod
    def report(self, options: Namespace) -> str:
        """Where the result lies and what to run next."""
