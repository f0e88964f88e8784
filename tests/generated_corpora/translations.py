"""A small bilingual corpus: an English-like and a German-like language.

A seeded grammar makes pairs of sentences whose translation needs more than a word list: the verb moves to the end of
subordinate clauses and comes before the subject after a time word, articles and adjectives agree with the noun's gender
and number, verbs agree with the subject, and two nouns in a row are written as one compound.
"""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import List, Tuple

from generated_corpora.invented_words import InventedWords
from generated_corpora.pairs import Pair, write_pairs

ARTICLES = {"m": "der", "f": "die", "n": "das"}
ENDINGS = {"m": "er", "f": "e", "n": "es"}
TIMES = [("today", "heute"), ("often", "oft"), ("now", "jetzt"), ("never", "nie")]


@dataclass(frozen=True)
class Noun:
    """A noun in both languages; ``plural`` is the ending of the German-like plural."""

    source: str
    target: str
    gender: str
    plural: str


class Lexicon:
    """Invented words of both languages."""

    def __init__(self, generator: random.Random):
        word = InventedWords(generator, syllable_counts=[1, 2, 2]).word
        self.nouns = [
            Noun(word(), word(), generator.choice("mfn"), generator.choice(["en", "er", "e", "s"])) for _ in range(80)
        ]
        self.verbs = [(word(), word()) for _ in range(40)]
        self.adjectives = [(word(), word()) for _ in range(30)]


class Grammar:
    """Draws pairs of sentences."""

    def __init__(self, lexicon: Lexicon, generator: random.Random):
        self.lexicon = lexicon
        self.generator = generator

    def noun_phrase(self) -> Tuple[List[str], List[str], bool]:
        """Source and target words, and whether the phrase is plural."""
        draw = self.generator
        noun, is_plural = draw.choice(self.lexicon.nouns), draw.random() < 0.4
        source, target = [noun.source + ("s" if is_plural else "")], noun.target + (noun.plural if is_plural else "")
        if draw.random() < 0.25:
            first = draw.choice(self.lexicon.nouns)
            source, target = [first.source, *source], f"{first.target}s{target}"
        article, ending = ("die", "en") if is_plural else (ARTICLES[noun.gender], ENDINGS[noun.gender])
        target_words = [target]
        if draw.random() < 0.4:
            adjective, translated = draw.choice(self.lexicon.adjectives)
            source, target_words = [adjective, *source], [translated + ending, target]
        return ["the", *source], [article, *target_words], is_plural

    def verb(self, is_plural: bool) -> Pair:
        source, target = self.generator.choice(self.lexicon.verbs)
        return source + ("" if is_plural else "s"), target + ("en" if is_plural else "t")

    def sentence(self) -> Pair:
        """A pair of sentences with their punctuation."""
        source_subject, target_subject, is_plural = self.noun_phrase()
        source_object, target_object, _ = self.noun_phrase()
        source_verb, target_verb = self.verb(is_plural)
        kind = self.generator.random()
        if kind < 0.4:
            source = [*source_subject, source_verb, *source_object]
            target = [*target_subject, target_verb, *target_object]
        elif kind < 0.7:
            time, translated = self.generator.choice(TIMES)
            source = [*source_subject, source_verb, *source_object, time]
            target = [translated, target_verb, *target_subject, *target_object]
        else:
            source_other, target_other, other_plural = self.noun_phrase()
            inner, translated = self.verb(other_plural)
            source = [*source_subject, source_verb, "that", *source_other, inner, *source_object]
            target = [*target_subject, target_verb, "dass", *target_other, *target_object, translated]
        return " ".join(source) + ".", " ".join(target) + "."


def write_translations(out: Path, *, num_pairs: int, seed: int = 1) -> None:
    """Write ``<split>.en`` and ``<split>.de``, ``train`` with ``num_pairs``; the seed is of words and sentences."""
    generator = random.Random(seed)
    write_pairs(out, Grammar(Lexicon(generator), generator).sentence, num_pairs=num_pairs, endings=(".en", ".de"))
