"""Reading and checking values that come from the command line."""

import math
import re
from numbers import Integral
from pathlib import Path
from typing import Collection, List, Literal, Optional, Sequence, Tuple


def flag_of(destination: str) -> str:
    """The flag that argparse keeps under a name: ``--init-range`` of ``init_range``."""
    return f"--{destination.replace('_', '-')}"


def parse_int_list(text: str, *, flag: str, example: str = "400 400 200") -> List[int]:
    """Read a list of whole numbers such as ``"0 0 5 15"`` or ``"0,0,5,15"``.

    Args:
        text: from the command line.
        flag: that it is the value of, for the message.
        example: of a value that makes sense, for the message.

    Raises:
        ValueError: if the list is empty or an item is not a whole number.
    """
    items = text.replace(",", " ").split()
    if not items or not all(re.fullmatch(r"-?[0-9]+", item) for item in items):
        raise ValueError(f'{flag} "{text}": give whole numbers, for example {flag} "{example}"')
    return [int(item) for item in items]


def parse_float_list(text: str, *, flag: str) -> List[float]:
    """Read a list of numbers such as ``"0.9 0.9 0.6"`` or ``"0.9,0.9,0.6"``.

    Raises:
        ValueError: if the list is empty or an item is not a number.
    """
    try:
        numbers: List[float] = [float(item) for item in text.replace(",", " ").split()]
    except ValueError:
        numbers = []
    if not numbers:
        raise ValueError(f'{flag} "{text}": give numbers, for example {flag} "0.9 0.9 0.6"')
    return numbers


def named_paths(
    texts: Sequence[str], *, repeated_names: Literal["allowed", "refused"] = "allowed"
) -> List[Tuple[str, Path]]:
    """NAME and PATH of each ``NAME=PATH``.

    Args:
        texts: from the command line.
        repeated_names: what is done with a NAME that is given twice.

    Raises:
        ValueError: where a text has no NAME or no PATH, or a NAME is given twice and may not.
    """
    named = [text.partition("=") for text in texts]
    for text, (name, _, path) in zip(texts, named):
        if not name or not path or (Path(text).exists() and not Path(path).exists()):  # such as runs/lr=0.1
            raise ValueError(f"{text}: give it as NAME=PATH")
    if repeated_names == "refused" and len({name for name, _, _ in named}) < len(named):
        raise ValueError("give each NAME once")
    return [(name, Path(path)) for name, _, path in named]


def optionally_named_paths(texts: Sequence[str]) -> List[Tuple[str, str]]:
    """NAME and PATH of each text that is NAME=PATH, or a path, which is its own name.

    A text is a path if it is there, or if it has no "=", or nothing or a "/" before it.

    Args:
        texts: from the command line.

    Raises:
        ValueError: if some have a NAME and others none, or a NAME has no PATH.
    """
    parts = [_name_and_path(text) for text in texts]
    unnamed = [text for text, part in zip(texts, parts) if part is None]
    if unnamed and len(unnamed) < len(texts):
        raise ValueError(
            f"{unnamed[0]}: give it as NAME=PATH as the others, without : or / in NAME, or give none a NAME"
        )
    return [part or (text, text) for text, part in zip(texts, parts)]


def _name_and_path(text: str) -> Optional[Tuple[str, str]]:
    name, separator, path = text.partition("=")
    if not separator or not name or "/" in name or Path(text).exists():
        return None
    if not path:
        raise ValueError(f"{text}: give it as NAME=PATH")
    return name, path


def check_choice(value: str, choices: Collection[str], *, flag: str) -> str:
    """Return ``value`` if it is one of the choices.

    Raises:
        ValueError: if it is not.
    """
    if value not in choices:
        raise ValueError(f"{flag} {value}: choose one of {', '.join(choices)}")
    return value


def check_dropout(rate: float, *, flag: str) -> float:
    """Return ``rate`` if it is a probability to drop, that is within [0, 1).

    Raises:
        ValueError: if it is not.
    """
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"{flag} {rate}: a dropout rate is the probability to drop, 0 <= rate < 1")
    return rate


def check_positive(value: float, *, flag: str) -> float:
    """Return ``value`` if it is greater than zero and finite.

    Raises:
        ValueError: if it is not.
    """
    if not value > 0:
        raise ValueError(f"{flag} {value}: give a value above 0")
    return _check_finite(value, flag=flag)


def check_whole(value: int, *, flag: str) -> int:
    """Return ``value`` if it is a whole number; from Python it may be anything.

    Raises:
        ValueError: if it is not.
    """
    if not isinstance(value, Integral):
        raise ValueError(f"{flag} {value}: give a whole number")
    return value


def check_at_least_one(value: int, *, flag: str) -> int:
    """Return ``value`` if it is a whole number of 1 or more.

    Raises:
        ValueError: if it is not.
    """
    if check_whole(value, flag=flag) < 1:
        raise ValueError(f"{flag} {value}: give at least 1")
    return value


def check_not_negative(value: float, *, flag: str) -> float:
    """Return ``value`` if it is zero or more and finite.

    Raises:
        ValueError: if it is not.
    """
    if not value >= 0:
        raise ValueError(f"{flag} {value}: give 0 or more")
    return _check_finite(value, flag=flag)


def _check_finite(value: float, *, flag: str) -> float:
    if value == math.inf:
        raise ValueError(f"{flag} {value}: give a finite value")
    return value
