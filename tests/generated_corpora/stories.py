"""A small English-like text.

A seeded grammar tells short stories: each keeps its topic, its two characters and their pronouns over
several sentences, subjects agree with verbs in number, and words follow Zipf's law within their class.
A model that remembers earlier sentences therefore predicts better than one that does not.
"""

import random
from pathlib import Path
from typing import Iterator, List, Sequence, Tuple

from generated_corpora.invented_words import InventedWords

NUM_TOPICS = 12
NOUNS_PER_TOPIC = 30
VERBS_PER_TOPIC = 15
ADJECTIVES_PER_TOPIC = 15
SPLITS = {"train": 0.84, "valid": 0.08, "test": 0.08}
PRONOUNS = {"she": "her", "he": "his"}


class Lexicon:
    """Invented words: names, and nouns, verbs and adjectives of every topic."""

    def __init__(self, generator: random.Random):
        word = InventedWords(generator, syllable_counts=[1, 2, 2, 3]).word
        self.names: List[Tuple[str, str]] = [(word().capitalize(), pronoun) for _ in range(20) for pronoun in PRONOUNS]
        self.topics = [
            {
                "noun": [word() for _ in range(NOUNS_PER_TOPIC)],
                "verb": [word() for _ in range(VERBS_PER_TOPIC)],
                "adjective": [word() for _ in range(ADJECTIVES_PER_TOPIC)],
            }
            for _ in range(NUM_TOPICS)
        ]


def tell_story(lexicon: Lexicon, generator: random.Random) -> Iterator[str]:
    """Sentences of one story, one a line."""

    def pick(words: Sequence[str]) -> str:
        return generator.choices(words, weights=[1 / rank for rank in range(1, len(words) + 1)])[0]

    def noun_phrase(owner: str = "") -> Tuple[str, bool]:
        is_plural = generator.random() < 0.4
        determiner = owner or ("the" if generator.random() < 0.6 else "some" if is_plural else "a")
        adjective = [pick(topic["adjective"])] if generator.random() < 0.4 else []
        noun = pick(topic["noun"]) + ("s" if is_plural else "")
        return " ".join([determiner, *adjective, noun]), is_plural

    def verb(is_plural: bool) -> str:
        return pick(topic["verb"]) + ("" if is_plural else "s")

    topic = generator.choice(lexicon.topics)
    characters = generator.sample(lexicon.names, 2)
    (name, pronoun), (other, _) = characters
    yield f"{name} {verb(False)} {noun_phrase()[0]} near {other} ."
    for _ in range(generator.randint(3, 7)):
        kind = generator.random()
        if kind < 0.35:
            yield f"{pronoun} {verb(False)} {noun_phrase(PRONOUNS[pronoun])[0]} ."
        elif kind < 0.6:
            subject, is_plural = noun_phrase()
            yield f"{subject} {verb(is_plural)} {noun_phrase()[0]} ."
        elif kind < 0.8:
            subject, is_plural = noun_phrase()
            relative, relative_plural = noun_phrase()
            yield f"{subject} that {relative} {verb(relative_plural)} {verb(is_plural)} {other} ."
        else:
            yield f"{name} and {other} {verb(True)} {generator.randint(2, 9)} {pick(topic['noun'])}s ."


def write_stories(out: Path, *, num_stories: int, seed: int = 1) -> None:
    """Write ``train.txt``, ``valid.txt`` and ``test.txt``, a sentence a line; the seed is that of words and stories."""
    assert num_stories >= 20, "every split needs a story"
    generator = random.Random(seed)
    lexicon = Lexicon(generator)
    stories = ["\n".join(tell_story(lexicon, generator)) + "\n" for _ in range(num_stories)]
    out.mkdir(parents=True, exist_ok=True)
    start = 0.0
    for split, share in SPLITS.items():
        first, last = round(start * num_stories), round((start + share) * num_stories)
        (out / f"{split}.txt").write_text("".join(stories[first:last]))
        start += share
