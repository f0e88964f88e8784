"""Files of a generated corpus of pairs."""

from pathlib import Path
from typing import Callable, Tuple

SPLITS = ("train", "valid", "test")

Pair = Tuple[str, str]


def write_pairs(out: Path, draw: Callable[[], Pair], *, num_pairs: int, endings: Tuple[str, str]) -> None:
    """Write the splits; no pair occurs twice.

    Args:
        out: directory of the text.
        draw: gives a pair.
        num_pairs: of the training text; the others have a twentieth, ten at least.
        endings: of the names of the two files of a split, such as ".en" and ".de".
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
