"""Small corpora in invented languages, by seeded grammars: pairs of sentences, headlines, stories, trees."""

import gzip
import random
from pathlib import Path
from typing import Callable, Iterator, List, NamedTuple, Sequence, Tuple

SPLITS = ("train", "valid", "test")
ONSETS = ["b", "br", "c", "d", "f", "g", "gl", "h", "k", "l", "m", "n", "p", "pr", "r", "s", "st", "t", "v", "w"]
VOWELS = ["a", "e", "i", "o", "u", "ai", "ea", "ou"]
CODAS = ["b", "ck", "d", "ft", "l", "m", "n", "nd", "p", "r", "rt", "sk", "st", "t"]

Pair = Tuple[str, str]


def invented_words(
    generator: random.Random, syllable_counts: Sequence[int], excluded: Sequence[str] = ()
) -> Iterator[str]:
    """Words of one to three syllables, none twice, none of the ``excluded``."""
    used = set(excluded)
    draw = generator.choice
    while True:
        num_syllables = draw(syllable_counts)
        syllables = [draw(ONSETS) + draw(VOWELS) for _ in range(num_syllables)]
        word = "".join(syllables) + draw(CODAS)
        if word not in used:
            used.add(word)
            yield word


def write_pairs(out: Path, draw: Callable[[], Pair], *, num_pairs: int, endings: Tuple[str, str]) -> None:
    """Write splits with ``endings``, such as ".en" and ".de". No pair occurs twice.

    train has ``num_pairs``, each other split a twentieth, at least ten.
    """
    out.mkdir(parents=True, exist_ok=True)
    seen = set()
    for split in SPLITS:
        num_wanted, pairs = num_pairs if split == "train" else max(num_pairs // 20, 10), []
        while len(pairs) < num_wanted:
            pair = draw()
            if pair not in seen:
                seen.add(pair)
                pairs.append(pair)
        for side, ending in enumerate(endings):
            (out / f"{split}{ending}").write_text("".join(f"{pair[side]}\n" for pair in pairs))


# Headlines of invented news, in the layout of Rush et al.'s Gigaword. They keep who did what and leave out the rest.
# The passive becomes active, the past and the future become the present and the infinitive.

DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
SPEAKERS = ["officials", "police", "witnesses", "analysts", "local media"]
POSTS = ["president", "prime minister", "foreign minister", "spokesman"]
VEHICLES = ["bus", "train", "plane", "ferry"]


class Newsroom:
    """Draws pairs of a sentence and its headline, tokenised and lower-cased."""

    def __init__(self, generator: random.Random):
        words = invented_words(generator, [1, 2, 2], excluded=["said"])
        self.companies, self.teams, self.people, self.places = ([next(words) for _ in range(40)] for _ in range(4))
        self.nouns, self.verbs, self.adjectives = ([next(words) for _ in range(30)] for _ in range(3))
        self.generator, self.pick = generator, generator.choice

    def item(self) -> Pair:
        sentence, headline = self.pick([self.takeover, self.deal, self.match, self.policy, self.accident])()
        return f"{sentence} .", headline

    def takeover(self) -> Pair:
        buyer, target = self.generator.sample(self.companies, 2)
        verb, amount = self.pick(self.verbs), self.generator.randint(10, 99)
        sentence = f"{buyer}{self.apposition()} said {self.day()} it will {verb} {target} for {amount} million dollars"
        return sentence, f"{buyer} to {verb} {target}"

    def deal(self) -> Pair:
        buyer, target = self.generator.sample(self.companies, 2)
        verb = self.pick(self.verbs)
        sentence = f"{target}{self.apposition()} was {verb}ed by {buyer} {self.day()} , {self.pick(SPEAKERS)} said"
        return sentence, f"{buyer} {verb}s {target}"

    def match(self) -> Pair:
        winner, loser = self.generator.sample(self.teams, 2)
        goals = self.generator.randint(2, 6)
        score = f"{goals}-{self.generator.randint(0, goals - 1)}"
        place, scorer = self.pick(self.places), self.pick(self.people)
        sentence = f"{scorer} scored {self.day()} in {place} as {winner} defeated {loser} {score}"
        if self.generator.random() < 0.5:
            sentence = f"{loser} lost {score} to {winner} in {place} {self.day()} despite a goal by {scorer}"
        return sentence, f"{winner} beats {loser} {score}"

    def policy(self) -> Pair:
        country, verb, noun = map(self.pick, (self.places, self.verbs, self.nouns))
        speaker, adjective = self.pick(self.people), self.pick(self.adjectives)
        said = f"{self.pick(POSTS)} {speaker} said {self.day()}"
        plan = f"{country} will {verb} its {adjective} {noun}s"
        sentence = f"{said} that {plan}" if self.generator.random() < 0.5 else f"{plan} , {said}"
        return sentence, f"{country} to {verb} {noun}s"

    def accident(self) -> Pair:
        vehicle, place = self.pick(VEHICLES), self.pick(self.places)
        count, adjective = self.generator.randint(2, 99), self.pick(self.adjectives)
        sentence = f"at least {count} people died {self.day()} when a {adjective} {vehicle} crashed near {place}"
        return f"{sentence} , {self.pick(SPEAKERS)} said", f"{vehicle} crash kills {count} in {place}"

    def day(self) -> str:
        return f"on {self.pick(DAYS)}"

    def apposition(self) -> str:
        if self.generator.random() < 0.5:
            return ""
        adjective, noun = self.pick(self.adjectives), self.pick(self.nouns)
        return f" , the {adjective} maker of {noun}s based in {self.pick(self.places)} ,"


def write_headlines(out: Path, *, num_pairs: int, seed: int = 1) -> None:
    """Write ``<split>.article.txt`` and ``<split>.title.txt``, ``train`` with ``num_pairs``."""
    newsroom = Newsroom(random.Random(seed))
    write_pairs(out, newsroom.item, num_pairs=num_pairs, endings=(".article.txt", ".title.txt"))


# Trees of a small grammar, and candidates that a careless parser could propose for them.

NOUNS, VERBS, RARE = ["dog", "cat", "tree", "house"], ["sees", "likes", "finds"], ["Zanzibar", "unwinding", "1990"]
NUM_TREES = {"train": 40, "valid": 6, "test": 5}


def sentence_trees(generator: random.Random) -> List[str]:
    """The tree of a sentence, then others over the same words."""

    def noun_phrase() -> str:
        return f"(NP (DT The) (NN {generator.choice([*NOUNS, *NOUNS, *NOUNS, *RARE])}))"

    subject, verb, target, place = noun_phrase(), generator.choice(VERBS), noun_phrase(), noun_phrase()
    phrase = f"(PP (IN in) {place})"
    return [
        f"(S1 (S {subject} (VP (VBZ {verb}) {target} {phrase}) (. .)))",
        f"(S1 (S {subject} (VP (VBZ {verb}) (NP {target} {phrase})) (. .)))",
        f"(S1 (S {subject} (VP (VBZ {verb}) {target}) {phrase} (. .)))",
        f"(S1 (FRAG {subject} (VP (VBZ {verb}) {target}) {phrase} (. .)))",
    ]


def candidates(split: str) -> List[List[str]]:
    """The trees of each sentence of a split, the right one first."""
    generator = random.Random(split)
    return [sentence_trees(generator) for _ in range(NUM_TREES[split])]


def gold_trees(split: str) -> List[str]:
    """The right trees of a split."""
    return [trees[0] for trees in candidates(split)]


def write_parses(folder: Path) -> None:
    """Write ``gold.SPLIT.trees`` and ``nbest.SPLIT.txt.gz`` in the parser's form, the right tree second."""
    folder.mkdir(parents=True)
    for split in NUM_TREES:
        (folder / f"gold.{split}.trees").write_text("".join(f"{tree}\n" for tree in gold_trees(split)))
        with gzip.open(folder / f"nbest.{split}.txt.gz", "wt") as file:
            for number, (right, *wrong) in enumerate(candidates(split)):
                proposed = [wrong[0], right, *wrong[1:]]
                pairs = "".join(f"{-20 - place}\n{tree}\n" for place, tree in enumerate(proposed))
                file.write(f"{len(proposed)}\t{split}.{number}\n{pairs}\n")


# Stories: each keeps its topic, its two characters and their pronouns over several sentences, subjects agree with verbs
# in number, and words follow Zipf's law within their class. So memory of earlier sentences helps to predict.

NUM_TOPICS = 12
TOPIC_WORDS = {"noun": 30, "verb": 15, "adjective": 15}
SHARES = {"train": 0.84, "valid": 0.08, "test": 0.08}
PRONOUNS = {"she": "her", "he": "his"}


def tell_story(names: List[Pair], topic: dict, generator: random.Random) -> Iterator[str]:
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

    (name, pronoun), (other, _) = generator.sample(names, 2)
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
    words = invented_words(generator, [1, 2, 2, 3])
    names = [(next(words).capitalize(), pronoun) for _ in range(20) for pronoun in PRONOUNS]
    topics = [
        {kind: [next(words) for _ in range(count)] for kind, count in TOPIC_WORDS.items()} for _ in range(NUM_TOPICS)
    ]
    stories = [
        "".join(f"{line}\n" for line in tell_story(names, generator.choice(topics), generator))
        for _ in range(num_stories)
    ]
    out.mkdir(parents=True, exist_ok=True)
    start = 0.0
    for split, share in SHARES.items():
        first, last = round(start * num_stories), round((start + share) * num_stories)
        (out / f"{split}.txt").write_text("".join(stories[first:last]))
        start += share


# An English-like and a German-like language. The verb moves to the end of subordinate clauses and comes before the
# subject after a time word, articles and adjectives agree with the noun's gender and number, verbs agree with the
# subject, and two nouns in a row are written as one compound.

ARTICLES = {"m": "der", "f": "die", "n": "das"}
ENDINGS = {"m": "er", "f": "e", "n": "es"}
TIMES = [("today", "heute"), ("often", "oft"), ("now", "jetzt"), ("never", "nie")]


class Noun(NamedTuple):
    source: str
    target: str
    gender: str
    plural: str  # the ending of the German-like plural


class Grammar:
    """Draws pairs of sentences."""

    def __init__(self, generator: random.Random):
        words = invented_words(generator, [1, 2, 2])
        self.nouns = [
            Noun(next(words), next(words), generator.choice("mfn"), generator.choice(["en", "er", "e", "s"]))
            for _ in range(80)
        ]
        self.verbs = [(next(words), next(words)) for _ in range(40)]
        self.adjectives = [(next(words), next(words)) for _ in range(30)]
        self.generator = generator

    def noun_phrase(self) -> Tuple[List[str], List[str], bool]:
        """Source and target words, and whether the phrase is plural."""
        draw = self.generator
        noun, is_plural = draw.choice(self.nouns), draw.random() < 0.4
        source, target = [noun.source + ("s" if is_plural else "")], noun.target + (noun.plural if is_plural else "")
        if draw.random() < 0.25:
            first = draw.choice(self.nouns)
            source, target = [first.source, *source], f"{first.target}s{target}"
        article, ending = ("die", "en") if is_plural else (ARTICLES[noun.gender], ENDINGS[noun.gender])
        target_words = [target]
        if draw.random() < 0.4:
            adjective, translated = draw.choice(self.adjectives)
            source, target_words = [adjective, *source], [translated + ending, target]
        return ["the", *source], [article, *target_words], is_plural

    def verb(self, is_plural: bool) -> Pair:
        source, target = self.generator.choice(self.verbs)
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
    write_pairs(out, Grammar(random.Random(seed)).sentence, num_pairs=num_pairs, endings=(".en", ".de"))
