"""Flags that take one of a few words."""

from typing import Sequence, Type

from fairseq.dataclass import ChoiceEnum


def choices(values: Sequence[str]) -> Type[str]:
    """The type of a dataclass field whose flag takes one of ``values``.

    A parsed value is a string. In a configuration of hydra it is a member of the host's enumeration, which compares,
    hashes and prints as a string does.
    """
    return ChoiceEnum(list(values))  # pyrefly: ignore[bad-return]


OnOff = choices(["on", "off"])
"""Of flags that switch something on or off, and say so."""
