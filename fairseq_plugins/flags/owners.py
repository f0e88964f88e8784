"""Who declares an option; one that two declare is refused."""

import inspect
from dataclasses import fields
from typing import Dict, Mapping, Type, Union

from fairseq.dataclass import FairseqDataclass

from fairseq_plugins.flags.values import flag_of

Owners = Dict[str, Union[type, str]]
"""Options by their names in parsed arguments, each with the class, or in words the part, that declares it."""


def option_owners(options: Type[FairseqDataclass]) -> Owners:
    """The options of a dataclass, each with the one among it and its bases that declares it.

    Raises:
        ValueError: if a dataclass declares an option that it inherits. A flag has one help text, one type and one
            default, so where components differ in the default it is None and each component supplies its own.
    """
    names = {option.name for option in fields(options) if not option.name.startswith("_")}
    return join_owners(
        *({name: cls for name in inspect.get_annotations(cls) if name in names} for cls in reversed(options.__mro__))
    )


def join_owners(*parts: Mapping[str, Union[type, str]]) -> Owners:
    """The options of all parts, which stand on one command line.

    Raises:
        ValueError: if two owners declare one option.
    """
    owners: Owners = {}
    for part in parts:
        for name, owner in part.items():
            first = owners.setdefault(name, owner)
            if first != owner:
                raise ValueError(
                    f"{flag_of(name)} is declared by {_describe(first)} and by {_describe(owner)}: give one "
                    "of them another name, or let both inherit the dataclass that declares it"
                )
    return owners


def _describe(owner: Union[type, str]) -> str:
    return owner if isinstance(owner, str) else f"{owner.__module__}.{owner.__qualname__}"
