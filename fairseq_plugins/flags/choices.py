"""Flags that take one of a few words."""

from dataclasses import fields
from typing import Any, List, Sequence, Type, TypeVar, get_args

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from fairseq_plugins.flags.values import check_choice, flag_of

Config = TypeVar("Config", bound=FairseqDataclass)


def choices(values: Sequence[str]) -> Type[str]:
    """The type of a dataclass field whose flag takes one of ``values``.

    A parsed value is a string. In a configuration of hydra it is a member of the host's enumeration, which compares,
    hashes and prints as a string does.
    """
    return ChoiceEnum(list(values))  # pyrefly: ignore[bad-return]


OnOff = choices(["on", "off"])
"""Of flags that switch something on or off, and say so."""


def check_choices(config: Config) -> Config:
    """Return ``config`` if each of its flags that take one of a few words holds one of them, or None where it may.

    The command line is checked by its parser; flags from Python and from ``--model-overrides`` are not.

    Raises:
        ValueError: naming the flag, its value and the choices.
    """
    for field in fields(config):
        value = getattr(config, field.name)
        words = _words(field.type)
        if words and value is not None:
            check_choice(str(value), words, flag=flag_of(field.name))
    return config


def _words(field_type: Any) -> List[str]:
    """What a field of :func:`choices` may hold, Optional or not; nothing for other fields."""
    kinds = [kind for kind in (field_type, *get_args(field_type)) if isinstance(kind, type(OnOff))]
    return [str(member) for kind in kinds for member in kind]
