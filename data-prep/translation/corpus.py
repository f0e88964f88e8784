"""What the pipeline asks of a corpus."""

from abc import ABC, abstractmethod
from argparse import Namespace
from pathlib import Path
from typing import Any, ClassVar

from .lines import Pair


class Corpus(ABC):
    """One parallel corpus: where its files are, and the raw text of its splits."""

    name: str
    title: str
    pairs: list[str]
    num_merges: int
    max_ratio: float
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
    def read(self, files: dict[str, Path], options: Namespace) -> dict[str, Pair]:
        """Raw text of train, valid, test and the corpus' other splits; ``options.check`` demands the real corpus."""
