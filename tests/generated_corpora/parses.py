"""Trees of a small grammar, and candidates that a careless parser could propose for them."""

import gzip
import random
from pathlib import Path
from typing import List

NOUNS, VERBS, RARE = ["dog", "cat", "tree", "house"], ["sees", "likes", "finds"], ["Zanzibar", "unwinding", "1990"]
SIZES = {"train": 40, "valid": 6, "test": 5}


def _noun_phrase(generator: random.Random) -> str:
    noun = generator.choice([*NOUNS, *NOUNS, *NOUNS, *RARE])
    return f"(NP (DT The) (NN {noun}))"


def sentence_trees(generator: random.Random) -> List[str]:
    """The tree of a sentence, then others over the same words."""
    subject, verb, target, place = (
        _noun_phrase(generator),
        generator.choice(VERBS),
        _noun_phrase(generator),
        _noun_phrase(generator),
    )
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
    return [sentence_trees(generator) for _ in range(SIZES[split])]


def gold_trees(split: str) -> List[str]:
    """The right trees of a split."""
    return [trees[0] for trees in candidates(split)]


def write_parses(folder: Path) -> None:
    """Write ``gold.SPLIT.trees`` and ``nbest.SPLIT.txt.gz`` in the parser's form, the right tree second."""
    folder.mkdir(parents=True)
    for split in SIZES:
        (folder / f"gold.{split}.trees").write_text("".join(f"{tree}\n" for tree in gold_trees(split)))
        with gzip.open(folder / f"nbest.{split}.txt.gz", "wt") as file:
            for number, (right, *wrong) in enumerate(candidates(split)):
                proposed = [wrong[0], right, *wrong[1:]]
                pairs = "".join(f"{-20 - place}\n{tree}\n" for place, tree in enumerate(proposed))
                file.write(f"{len(proposed)}\t{split}.{number}\n{pairs}\n")
