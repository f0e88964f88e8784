"""Small corpora by seeded grammars: stories in an invented language, and trees."""

import gzip
import random
from pathlib import Path
from typing import Iterator, List, Sequence, Tuple

SPLITS = ("train", "valid", "test")
ONSETS = ["b", "br", "c", "d", "f", "g", "gl", "h", "k", "l", "m", "n", "p", "pr", "r", "s", "st", "t", "v", "w"]
VOWELS = ["a", "e", "i", "o", "u", "ai", "ea", "ou"]
CODAS = ["b", "ck", "d", "ft", "l", "m", "n", "nd", "p", "r", "rt", "sk", "st", "t"]


def invented_words(generator: random.Random, syllable_counts: Sequence[int]) -> Iterator[str]:
    """Words of one to three syllables, none twice."""
    used = set()
    draw = generator.choice
    while True:
        num_syllables = draw(syllable_counts)
        syllables = [draw(ONSETS) + draw(VOWELS) for _ in range(num_syllables)]
        word = "".join(syllables) + draw(CODAS)
        if word not in used:
            used.add(word)
            yield word


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


def tell_story(names: List[Tuple[str, str]], topic: dict, generator: random.Random) -> Iterator[str]:
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
