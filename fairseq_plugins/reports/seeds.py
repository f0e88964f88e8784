"""Seeds of trainings that are taken for draws of one system."""

from pathlib import Path
from typing import Dict, Iterable, Tuple


def check_seeds(trainings: Iterable[Tuple[str, int, Path]]) -> None:
    """Refuse two trainings of one name and seed, over which no mean can be taken.

    Args:
        trainings: name, seed and ``--save-dir`` of each.

    Raises:
        ValueError: for the first such two.
    """
    first: Dict[Tuple[str, int], Path] = {}
    for name, seed, path in trainings:
        if (name, seed) in first:
            raise ValueError(
                f"--path: {first[name, seed]} and {path} are both {name} with seed {seed}, and trainings of a name "
                "differ in their seed: leave one out, or give it another name"
            )
        first[name, seed] = path
