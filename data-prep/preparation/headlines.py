"""Corpora of headlines in plain English: what they have in common."""

import re
from argparse import Namespace
from collections.abc import Callable, Sequence

from .lines import Row
from .parallel_corpus import ParallelCorpus
from .tokens import moses


class HeadlineCorpus(ParallelCorpus):
    """A corpus of articles and titles, English text that is tokenised here, in lower case unless asked otherwise."""

    pairs = ["article-title"]
    max_ratio = 0.0
    max_length = 250
    lowercase = True
    recipe_of_two_dictionaries = "gigaword"
    recipe_of_one_dictionary = "agnews"

    def tokenizer(self, side: str, lowercase: bool) -> Callable[[str], str]:
        """Moses' for English."""
        return moses("en", lowercase)

    def joiner(self, side: str) -> Callable[[str], str]:
        """English on either side."""
        return super().joiner("en")

    def words_of_text(self, options: Namespace) -> dict[str, str]:
        """English ones on either side."""
        return {**super().words_of_text(options), "language": "en"}


def wordless(sides: Sequence[str], row: Row) -> str:
    """Which side has no letter and no digit, as a fault of the row, or ""."""
    return next((f"no word in {side}" for side, line in zip(sides, row) if not re.search(r"[^\W_]", line)), "")
