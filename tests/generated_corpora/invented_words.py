"""Words of languages that do not exist, for generated corpora."""

import random
from typing import Sequence

ONSETS = ["b", "br", "c", "d", "f", "g", "gl", "h", "k", "l", "m", "n", "p", "pr", "r", "s", "st", "t", "v", "w"]
VOWELS = ["a", "e", "i", "o", "u", "ai", "ea", "ou"]
CODAS = ["b", "ck", "d", "ft", "l", "m", "n", "nd", "p", "r", "rt", "sk", "st", "t"]


class InventedWords:
    """Draws words of one to three syllables, none twice.

    Args:
        generator: source of chance.
        syllable_counts: numbers of syllables to choose from; one that occurs more often is chosen more often.
        excluded: real words that must not come out.
    """

    def __init__(self, generator: random.Random, *, syllable_counts: Sequence[int], excluded: Sequence[str] = ()):
        self._generator = generator
        self._syllable_counts = syllable_counts
        self._used = set(excluded)

    def word(self) -> str:
        """A new word."""
        draw = self._generator.choice
        while True:
            num_syllables = draw(self._syllable_counts)
            syllables = [draw(ONSETS) + draw(VOWELS) for _ in range(num_syllables)]
            word = "".join(syllables) + draw(CODAS)
            if word not in self._used:
                self._used.add(word)
                return word
