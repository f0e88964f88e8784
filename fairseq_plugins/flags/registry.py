"""Parts of a model that a flag chooses by name, each with flags of its own."""

from argparse import ArgumentParser, Namespace
from collections import defaultdict
from dataclasses import Field, field, fields, make_dataclass
from typing import Any, Callable, DefaultDict, Dict, Generic, List, Sequence, Set, Tuple, Type, TypeVar

from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass

from fairseq_plugins.flags.choices import check_choices
from fairseq_plugins.flags.owners import Owners, join_owners, option_owners
from fairseq_plugins.flags.values import check_choice, flag_of


class Component:
    """What a :class:`Registry` holds: a class with a name and, in :attr:`Options`, its flags."""

    Options: Type[FairseqDataclass] = FairseqDataclass
    name: str

    @classmethod
    def unused_options(cls, args: Namespace) -> Dict[str, str]:
        """Names of the options that have no effect beside the others that ``args`` holds, with what gives them one."""
        return {}


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
        self._commands: List[Callable[[], Owners]] = [self.owners]

    @property
    def destination(self) -> str:
        """Name of the flag's value in parsed arguments."""
        return self.flag.strip("-").replace("-", "_")

    def register(self, name: str) -> Callable[[Type[C]], Type[C]]:
        """Class decorator that makes a component a value of the flag.

        The decorator raises ValueError if the name is taken, or if another part of a model declares an option of the
        component.
        """

        def register(cls: Type[C]) -> Type[C]:
            if name in self:
                raise ValueError(f"{self.flag} {name} is registered twice: give {cls.__qualname__} another name")
            for command in self._commands:
                join_owners(command(), option_owners(cls.Options))
            self[name] = cls
            cls.name = name
            return cls

        return register

    def find(self, name: str) -> Type[C]:
        """The component of that name.

        Raises:
            ValueError: if there is none.
        """
        return self[check_choice(name, sorted(self), flag=self.flag)]

    def all_option_names(self) -> Set[str]:
        """Names of the options of all components."""
        return option_names(*(component.Options for component in self.values()))

    def owners(self) -> Owners:
        """The flag and the options of all components, each with who declares it."""
        own = {self.destination: f"the registry of {self.flag}"}
        return join_owners(own, *(option_owners(component.Options) for component in self.values()))

    def stand_beside(self, owners: Callable[[], Owners]) -> None:
        """From now on, refuse a component that declares an option which ``owners()`` says belongs to another class."""
        self._commands.append(owners)

    def add_args(self, parser: ArgumentParser) -> None:
        """Add the flag and those of every component, without defaults (presets set them).

        Help texts begin with the names of the components that have the option, where some have not.
        """
        parser.add_argument(self.flag, choices=sorted(self), help=self.help)
        options: Dict[str, Field[Any]] = {}
        having: DefaultDict[str, List[str]] = defaultdict(list)
        for component_name, component in sorted(self.items()):
            for option in fields(component.Options):
                options[option.name] = option
                having[option.name].append(component_name)
        explained = [
            _explained(options[name], [] if len(having[name]) == len(self) else having[name])
            for name in sorted(self.all_option_names())
        ]
        all_options = make_dataclass("AllOptions", explained, bases=(FairseqDataclass,))
        gen_parser_from_dataclass(parser, all_options(), delete_default=True)

    def read_options(self, args: Namespace) -> FairseqDataclass:
        """Options of the component that ``args`` names; those that are absent take their defaults.

        Raises:
            ValueError: if it does not exist, or if ``args`` holds options that have no effect with it, or for an option
                that takes one of a few words another one.
        """
        name = getattr(args, self.destination)
        component = self.find(name)
        foreign = sorted(
            option for option in self.all_option_names() - option_names(component.Options) if hasattr(args, option)
        )
        if foreign:
            flags = ", ".join(map(flag_of, foreign))
            raise ValueError(f"{flags}: not a flag of {self.flag} {name}; leave it out or take another {self.flag}")
        for option, remedy in sorted(component.unused_options(args).items()):
            if hasattr(args, option):
                raise ValueError(
                    f"{flag_of(option)} has no effect on this {self.flag} {name}: leave it out, or {remedy}"
                )
        return check_choices(component.Options.from_namespace(args))


def option_names(*options: Type[FairseqDataclass]) -> Set[str]:
    """Names of the options that the given dataclasses have."""
    return set().union(*map(option_owners, options))


def _explained(option: Field[Any], components: Sequence[str]) -> Tuple[str, Any, Field[Any]]:
    """Name and type of an option, and the option with the names of the components that have it in its help."""
    metadata = dict(option.metadata)
    if components and "help" in metadata:
        metadata["help"] = f"{', '.join(components)}: {metadata['help']}"
    # one of the two defaults is missing
    # pyrefly: ignore[no-matching-overload]
    explained = field(default=option.default, default_factory=option.default_factory, metadata=metadata)
    return option.name, option.type, explained
