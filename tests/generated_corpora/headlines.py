"""A small corpus of news sentences and their headlines, in the layout of Rush et al.'s Gigaword.

A seeded grammar tells invented news. Its headlines keep who did what and leave out the rest: days, places, officials,
clauses and details; the passive becomes active, the past and the future become the present and the infinitive.
"""

import random
from pathlib import Path
from typing import List

from generated_corpora.invented_words import InventedWords
from generated_corpora.pairs import Pair, write_pairs

DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
SPEAKERS = ["officials", "police", "witnesses", "analysts", "local media"]
POSTS = ["president", "prime minister", "foreign minister", "spokesman"]
VEHICLES = ["bus", "train", "plane", "ferry"]


class Lexicon:
    """Invented names, and nouns, verbs and adjectives of the news."""

    def __init__(self, generator: random.Random):
        word = InventedWords(generator, syllable_counts=[1, 2, 2], excluded=["said"]).word
        self.companies, self.teams, self.people, self.places = ([word() for _ in range(40)] for _ in range(4))
        self.nouns, self.verbs, self.adjectives = ([word() for _ in range(30)] for _ in range(3))


class Newsroom:
    """Draws pairs of a sentence and its headline."""

    def __init__(self, lexicon: Lexicon, generator: random.Random):
        self.lexicon = lexicon
        self.generator = generator
        self._kinds = [self.takeover, self.deal, self.match, self.policy, self.accident]

    def item(self) -> Pair:
        """A sentence and its headline, tokenised and lower-cased."""
        sentence, headline = self.generator.choice(self._kinds)()
        return f"{sentence} .", headline

    def takeover(self) -> Pair:
        """What a company will do."""
        buyer, target = self.generator.sample(self.lexicon.companies, 2)
        verb, amount = self._pick(self.lexicon.verbs), self.generator.randint(10, 99)
        sentence = (
            f"{buyer}{self._apposition()} said {self._day()} it will {verb} {target} for {amount} million dollars"
        )
        return sentence, f"{buyer} to {verb} {target}"

    def deal(self) -> Pair:
        """What was done to a company."""
        buyer, target = self.generator.sample(self.lexicon.companies, 2)
        verb = self._pick(self.lexicon.verbs)
        sentence = f"{target}{self._apposition()} was {verb}ed by {buyer} {self._day()} , {self._source()} said"
        return sentence, f"{buyer} {verb}s {target}"

    def match(self) -> Pair:
        """Who won."""
        winner, loser = self.generator.sample(self.lexicon.teams, 2)
        goals = self.generator.randint(2, 6)
        score = f"{goals}-{self.generator.randint(0, goals - 1)}"
        place, scorer = self._pick(self.lexicon.places), self._pick(self.lexicon.people)
        sentence = f"{scorer} scored {self._day()} in {place} as {winner} defeated {loser} {score}"
        if self.generator.random() < 0.5:
            sentence = f"{loser} lost {score} to {winner} in {place} {self._day()} despite a goal by {scorer}"
        return sentence, f"{winner} beats {loser} {score}"

    def policy(self) -> Pair:
        """What a country intends."""
        country, verb, noun = map(self._pick, (self.lexicon.places, self.lexicon.verbs, self.lexicon.nouns))
        speaker, adjective = self._pick(self.lexicon.people), self._pick(self.lexicon.adjectives)
        said = f"{self._pick(POSTS)} {speaker} said {self._day()}"
        plan = f"{country} will {verb} its {adjective} {noun}s"
        sentence = f"{said} that {plan}" if self.generator.random() < 0.5 else f"{plan} , {said}"
        return sentence, f"{country} to {verb} {noun}s"

    def accident(self) -> Pair:
        """What happened where."""
        vehicle, place = self._pick(VEHICLES), self._pick(self.lexicon.places)
        count, adjective = self.generator.randint(2, 99), self._pick(self.lexicon.adjectives)
        sentence = f"at least {count} people died {self._day()} when a {adjective} {vehicle} crashed near {place}"
        return f"{sentence} , {self._source()} said", f"{vehicle} crash kills {count} in {place}"

    def _pick(self, words: List[str]) -> str:
        return self.generator.choice(words)

    def _day(self) -> str:
        return f"on {self._pick(DAYS)}"

    def _source(self) -> str:
        return self._pick(SPEAKERS)

    def _apposition(self) -> str:
        if self.generator.random() < 0.5:
            return ""
        adjective, noun = self._pick(self.lexicon.adjectives), self._pick(self.lexicon.nouns)
        return f" , the {adjective} maker of {noun}s based in {self._pick(self.lexicon.places)} ,"


def write_headlines(out: Path, *, num_pairs: int, seed: int = 1) -> None:
    """Write ``<split>.article.txt`` and ``<split>.title.txt``, ``train`` with ``num_pairs``."""
    generator = random.Random(seed)
    endings = (".article.txt", ".title.txt")
    write_pairs(out, Newsroom(Lexicon(generator), generator).item, num_pairs=num_pairs, endings=endings)
