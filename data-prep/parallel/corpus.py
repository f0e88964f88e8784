"""What the pipeline asks of a corpus."""

from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

from .lines import Pair
from .tokens import moses


class Corpus(ABC):
    """One parallel corpus: where its files are, and the raw text of its splits.

    The two sides have names that the host takes for languages: ``de`` and ``en``, or ``article`` and ``title``.
    """

    name: str
    title: str
    pairs: list[str]  # SOURCE-TARGET; where there is but one, nobody has to name it
    num_merges: int
    max_ratio: float
    max_length: int = 100
    lowercase: bool = False
    symbols: tuple[str, ...] = ()  # tokens that stay whole whatever the subwords
    extra_options: ClassVar[dict[str, dict[str, Any]]] = {}  # flag -> arguments of add_argument

    def recipe(self, options: Namespace) -> str:
        """What ``prepared.txt`` tells of the corpus' own options."""
        return ""

    @abstractmethod
    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """The files to read, by the names that the corpus gives them; DataError tells what ``folder`` lacks."""

    @abstractmethod
    def download(self, folder: Path, options: Namespace) -> None:
        """Bring the files into ``folder``; those that are there already stay."""

    @abstractmethod
    def read(self, files: dict[str, Path], options: Namespace, scratch: Path) -> dict[str, Iterable[Pair]]:
        """Raw text of train, valid, test and the corpus' other splits; ``options.check`` demands the real corpus.

        A split may be a stream that is read once, while ``scratch`` is there: an empty folder for unpacked files.
        """

    def tokenizer(self, side: str, lowercase: bool) -> Callable[[str], str]:
        """A function from a raw line of a side to its tokens with one space between them."""
        return moses(side, lowercase)
