"""Parts of a model that a flag chooses by name, each with flags of its own."""

import inspect
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from dataclasses import Field, field, fields, make_dataclass
from typing import (
    Any,
    Callable,
    Collection,
    DefaultDict,
    Dict,
    Generic,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
    Type,
    TypeVar,
    Union,
)

from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.utils import gen_parser_from_dataclass

from fairseq_plugins.options import check_choice, check_choices, flag_of

# Who declares an option; one that two declare is refused.


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


# The flags of one model: its own, and those of the parts that it is made of.


class ModelFlags:
    """Adds the flags of a model to a command, and sees that no two of its parts declare the same.

    fairseq drops the second of two flags with one name without a word. Here it is refused when the model is defined,
    and when a component is registered later. fairseq's general flags, such as ``--seed``, are taken, too.

    Args:
        own: the model's dataclass; the options of one inside it are prefixed with its name, as fairseq does.
        registries: of the parts.
        left_out: options of a dataclass of fairseq that the model does not offer.

    Raises:
        ValueError: if two parts declare one option.
    """

    def __init__(self, own: Type[FairseqDataclass], *registries: Registry[Any], left_out: Collection[str] = ()):
        self._add_own = _adds_flags(own, left_out=left_out)
        self._registries = registries
        self._fixed = join_owners(_added(FairseqConfig, prefix=None), _added(own))
        self.owners()
        for registry in registries:
            registry.stand_beside(self.owners)

    def owners(self) -> Owners:
        """All options of the command, each with who declares it.

        Raises:
            ValueError: if two parts declare one.
        """
        return join_owners(self._fixed, *(registry.owners() for registry in self._registries))

    def stand_beside(self, *configs: Union[Type[FairseqDataclass], Sequence[Type[FairseqDataclass]]]) -> None:
        """Refuse options, from now on, that tasks, criteria or optimisers with these dataclasses declare.

        A sequence holds alternatives, such as optimisers; the caller answers for it that no command has two of them.
        They may declare one option, which means in a command what the chosen one says. Errors name the first of them.

        Raises:
            ValueError: if two that are no alternatives declare one option, or a part declares one already.
        """
        groups = [config if isinstance(config, Sequence) else [config] for config in configs]
        self._fixed = join_owners(self._fixed, *map(_added_by_any, groups))
        self.owners()

    def add_args(self, parser: ArgumentParser) -> None:
        """Add the model's flags and those of its parts, without defaults (presets set them)."""
        self._add_own(parser)
        for registry in self._registries:
            registry.add_args(parser)


class _Offering:
    """What fairseq's ``gen_parser_from_dataclass`` takes for a parser: it passes on all flags but some."""

    def __init__(self, parser: ArgumentParser, left_out: Collection[str]):
        self._parser = parser
        self._left_out = {flag_of(name) for name in left_out}

    def add_argument(self, *flags: str, **settings: Any) -> None:
        if self._left_out.isdisjoint(flags):
            self._parser.add_argument(*flags, **settings)


def _adds_flags(
    config: Type[FairseqDataclass], *, prefix: Optional[str] = "", left_out: Collection[str] = ()
) -> Callable[[ArgumentParser], None]:
    def add(parser: ArgumentParser) -> None:
        offering: Any = _Offering(parser, left_out)
        gen_parser_from_dataclass(offering, config(), delete_default=True, with_prefix=prefix)

    return add


def _added(config: Type[FairseqDataclass], *, prefix: Optional[str] = "") -> Owners:
    """The options that a dataclass adds to a command, without those that it takes from others."""
    parser = ArgumentParser(add_help=False)
    _adds_flags(config, prefix=prefix)(parser)
    return {action.dest: config for action in parser._actions}


def _added_by_any(alternatives: Sequence[Type[FairseqDataclass]]) -> Owners:
    """The options that one of several dataclasses adds to a command, each with the first that does."""
    owners: Owners = {}
    for config in reversed(alternatives):
        owners.update(_added(config))
    return owners
