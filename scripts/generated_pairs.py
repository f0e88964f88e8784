"""Files of a generated corpus of pairs, and the options of the scripts that write one."""

import argparse
import random
from pathlib import Path
from typing import Callable, Tuple

SPLITS = ("train", "valid", "test")

Pair = Tuple[str, str]


def main(description: str, *, build: Callable[[random.Random], Callable[[], Pair]], endings: Tuple[str, str]) -> None:
    """Write the splits that the command line asks for; no pair occurs twice.

    Args:
        description: of the command.
        build: makes the function that draws a pair.
        endings: of the names of the two files of a split, such as ".en" and ".de".
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="directory for the text")
    parser.add_argument("--pairs", type=int, default=6000, help="pairs for training (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of words and sentences (default: %(default)s)")
    args = parser.parse_args()
    if args.pairs < 20:
        parser.error(f"--pairs {args.pairs}: give at least 20")
    draw = build(random.Random(args.seed))
    args.out.mkdir(parents=True, exist_ok=True)
    seen = set()
    for split in SPLITS:
        num_pairs, pairs = args.pairs if split == "train" else max(args.pairs // 20, 10), []
        while len(pairs) < num_pairs:
            pair = draw()
            if pair not in seen:
                seen.add(pair)
                pairs.append(pair)
        for side, ending in enumerate(endings):
            (args.out / f"{split}{ending}").write_text("".join(f"{pair[side]}\n" for pair in pairs))
