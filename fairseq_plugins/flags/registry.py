"""Parts of a model that a flag chooses by name, each with flags of its own."""

from argparse import Namespace
from dataclasses import dataclass, fields
from typing import Callable, Dict, Generic, Set, Type, TypeVar

from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass


class Component:
    """What a :class:`Registry` holds: a class with a name and, in :attr:`Options`, its flags."""

    Options: Type[FairseqDataclass] = FairseqDataclass
    name: str

    @classmethod
    def applicable_options(cls, args: Namespace) -> Set[str]:
        """Names of the options that have an effect beside the others that ``args`` holds."""
        return option_names(cls.Options)


C = TypeVar("C", bound=Component)


class Registry(Dict[str, Type[C]], Generic[C]):
    """Components by the names that are the values of a flag.

    Args:
        flag: as on the command line, such as ``--output-layer``.
        help: what it chooses.
    """

    def __init__(self, flag: str, *, help: str):
        super().__init__()
        self.flag = flag
        self.help = help

    @property
    def destination(self) -> str:
        """Name of the flag's value in parsed arguments."""
        return self.flag.strip("-").replace("-", "_")

    def register(self, name: str) -> Callable[[Type[C]], Type[C]]:
        """Class decorator that makes a component a value of the flag."""

        def register(cls: Type[C]) -> Type[C]:
            assert name not in self, f"{self.flag} {name} is registered twice"
            self[name] = cls
            cls.name = name
            return cls

        return register

    def find(self, name: str) -> Type[C]:
        """The component of that name.

        Raises:
            ValueError: if there is none.
        """
        if name not in self:
            raise ValueError(f"{self.flag} {name}: choose one of {', '.join(sorted(self))}")
        return self[name]

    def all_option_names(self) -> Set[str]:
        """Names of the options of all components."""
        return option_names(*(component.Options for component in self.values()))

    def add_args(self, parser) -> None:
        """Add the flag and those of every component, without defaults (presets set them)."""
        parser.add_argument(self.flag, choices=sorted(self), help=self.help)
        classes = {component.Options for component in self.values()}
        most_derived_first = sorted(classes, key=lambda options: (-len(options.__mro__), options.__name__))
        all_options = dataclass(type("AllOptions", tuple(most_derived_first), {}))
        gen_parser_from_dataclass(parser, all_options(), delete_default=True)

    def read_options(self, args: Namespace) -> FairseqDataclass:
        """Options of the component that ``args`` names; those that are absent take their defaults.

        Raises:
            ValueError: if it does not exist, or if ``args`` holds options that have no effect with it.
        """
        name = getattr(args, self.destination)
        component = self.find(name)
        unused = sorted(
            option for option in self.all_option_names() - component.applicable_options(args) if hasattr(args, option)
        )
        if unused:
            flags = ", ".join(f"--{option.replace('_', '-')}" for option in unused)
            raise ValueError(f"{flags}: not a flag of {self.flag} {name}; leave it out or take another {self.flag}")
        return component.Options.from_namespace(args)


def option_names(*options: Type[FairseqDataclass]) -> Set[str]:
    """Names of the options that the given dataclasses declare."""
    return {option.name for cls in options for option in fields(cls) if not option.name.startswith("_")}
