"""Values of flags: numbers, choices and named paths, read and checked. User errors."""

import argparse
import math
import re
from dataclasses import fields
from numbers import Integral
from pathlib import Path
from typing import Any, Callable, Collection, List, Literal, Mapping, Sequence, Tuple, Type, TypeVar, get_args

from fairseq.dataclass import ChoiceEnum, FairseqDataclass


class UserError(ValueError, argparse.ArgumentTypeError):
    """A mistake of the user, with the remedy. Commands end with this one line and exit status 2; all other errors keep
    their traceback. Functions that argparse calls for the ``type`` of an argument raise it as well."""


def flag_of(destination: str) -> str:
    """Return the flag of argparse's name for it: ``--init-range`` for ``init_range``."""
    return f"--{destination.replace('_', '-')}"


def get_flag(flags: object, name: str) -> Any:
    """A flag of a configuration or of the flags of argparse, or None."""
    return flags.get(name) if isinstance(flags, Mapping) else getattr(flags, name, None)


def whole_number(*, at_least: int) -> Callable[[str], int]:
    """Return a type of arguments: a whole number that is not less than ``at_least``."""

    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < at_least:
            raise UserError(f"{text}: give a whole number of at least {at_least}")
        return int(text)

    return read


count = whole_number(at_least=1)
"""Type of arguments that count something."""

Number = TypeVar("Number", int, float)


def parse_numbers(text: Any, kind: Type[Number], *, flag: str, example: str) -> List[Number]:
    """Read a list of numbers of a kind, such as ``"0 0 5 15"`` or ``"0.9,0.6"``, or ``[0, 0, 5, 15]`` of a YAML file.

    Raises:
        UserError: if the list is empty or an item is not such a number. The message gives the example.
    """
    try:
        numbers: List[Number] = [kind(item) for item in str(text).strip("[]").replace(",", " ").split()]
    except ValueError:
        numbers = []
    if not numbers:
        wanted = "whole numbers" if kind is int else "numbers"
        raise UserError(f'{flag} "{text}": give {wanted}, for example {flag} "{example}"')
    return numbers


def split_name(text: str) -> Tuple[str, str]:
    """Split NAME=PATH. The NAME is empty where the whole text is a path: it exists, or has no "=" after a NAME."""
    name, _, path = text.partition("=")
    return ("", text) if not name or "=" not in text or Path(text).exists() else (name, path)


def named_paths(
    texts: Sequence[str], *, repeated_names: Literal["allowed", "refused"] = "allowed"
) -> List[Tuple[str, Path]]:
    """Split each ``NAME=PATH`` into NAME and PATH.

    Args:
        texts: from the command line.
        repeated_names: whether a NAME may be given twice.

    Raises:
        UserError: if a text has no NAME or no PATH, or a NAME is repeated and may not be.
    """
    named = [split_name(text) for text in texts]
    for text, (name, path) in zip(texts, named):
        if not name or not path:
            raise UserError(f"{text}: give it as NAME=PATH")
    if repeated_names == "refused" and len(dict(named)) < len(named):
        raise UserError("give each NAME once")
    return [(name, Path(path)) for name, path in named]


def optionally_named_paths(texts: Sequence[str]) -> List[Tuple[str, str]]:
    """Split texts that are NAME=PATH or a path, which then is its own name.

    A text is a path as in :func:`split_name`, or if a "/" comes before the "=".

    Args:
        texts: from the command line.

    Raises:
        UserError: if some have a NAME and others none, or a NAME has no PATH.
    """
    parts: List[Tuple[str, str]] = []
    unnamed: List[str] = []
    for text in texts:
        name, path = split_name(text)
        if not name or "/" in name:
            unnamed.append(text)
            name = path = text
        elif not path:
            raise UserError(f"{text}: give it as NAME=PATH")
        parts.append((name, path))
    if unnamed and len(unnamed) < len(texts):
        raise UserError(
            f"{unnamed[0]}: give it as NAME=PATH as the others, without : or / in NAME, or give none a NAME"
        )
    return parts


# Checks return the value, or raise UserError with the flag and the remedy.


def check_choice(value: str, choices: Collection[str], *, flag: str) -> str:
    """Check that ``value`` is one of the choices."""
    if value not in choices:
        raise UserError(f"{flag} {value}: choose one of {', '.join(choices)}")
    return value


def check_dropout(rate: float, *, flag: str) -> float:
    """Check a dropout probability in [0, 1)."""
    if not 0.0 <= rate < 1.0:
        raise UserError(f"{flag} {rate}: a dropout rate is the probability to drop, 0 <= rate < 1")
    return rate


def check_positive(value: float, *, flag: str) -> float:
    """Check that a number is above zero and finite."""
    if not 0 < value < math.inf:
        raise UserError(f"{flag} {value}: give a value above 0{', and finite' if value == math.inf else ''}")
    return value


def check_not_negative(value: float, *, flag: str) -> float:
    """Check that a number is zero or more and finite."""
    if not 0 <= value < math.inf:
        raise UserError(f"{flag} {value}: give 0 or more{', and finite' if value == math.inf else ''}")
    return value


def check_whole(value: int, *, flag: str, least: int = 0) -> int:
    """Check that a number is whole and not less than ``least``. Values from Python may have any type."""
    if not isinstance(value, Integral):
        raise UserError(f"{flag} {value}: give a whole number")
    if value < least:
        raise UserError(f"{flag} {value}: give at least {least}")
    return value


def check_at_least_one(value: int, *, flag: str) -> int:
    """Check that a number is whole and at least 1."""
    return check_whole(value, flag=flag, least=1)


Config = TypeVar("Config", bound=FairseqDataclass)


def choices(values: Sequence[str]) -> Type[str]:
    """Return the type of a dataclass field whose flag takes one of ``values``.

    A parsed value is a string. In a configuration of hydra it is a member of fairseq's enumeration, which compares,
    hashes and prints like a string.
    """
    return ChoiceEnum(list(values))  # pyrefly: ignore[bad-return]


OnOff = choices(["on", "off"])
"""Type of flags with the values "on" and "off"."""


def check_choices(config: Config) -> Config:
    """Return ``config`` if each field of type :func:`choices` has one of its choices, or None if it may.

    The parser checks the command line. It does not check flags from Python and from ``--model-overrides``.

    Raises:
        UserError: naming the flag, its value and the choices.
    """
    for field in fields(config):
        value = getattr(config, field.name)
        types = [kind for kind in (field.type, *get_args(field.type)) if isinstance(kind, type(OnOff))]  # or Optional
        words = [str(member) for kind in types for member in kind]
        if words and value is not None:
            check_choice(str(value), words, flag=flag_of(field.name))
    return config
