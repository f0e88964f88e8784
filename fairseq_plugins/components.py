"""Parts of a model that a flag selects by name, each with flags of its own."""

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

from fairseq_plugins.options import UserError, check_choice, check_choices, flag_of

# fairseq silently drops the second of two flags with the same name. So every option has one owner, which declares it,
# and an option with two owners is an error.

Owners = Dict[str, Union[type, str]]
"""Maps the name of an option in parsed arguments to the class that declares it, or to a description of its owner."""


def option_owners(options: Type[FairseqDataclass]) -> Owners:
    """The options of a dataclass, each with the class among it and its bases that declares it.

    Raises:
        UserError: if a dataclass declares an option that it inherits. A flag has one help text, one type and one
            default. If components need different defaults, it is None and each component replaces it.
    """
    names = {option.name for option in fields(options) if not option.name.startswith("_")}
    return join_owners(
        *({name: cls for name in inspect.get_annotations(cls) if name in names} for cls in reversed(options.__mro__))
    )


def join_owners(*parts: Mapping[str, Union[type, str]]) -> Owners:
    """The options of all parts of one command line.

    Raises:
        UserError: if two owners declare the same option.
    """
    owners: Owners = {}
    for part in parts:
        for name, owner in part.items():
            first = owners.setdefault(name, owner)
            if first != owner:
                raise UserError(
                    f"{flag_of(name)} is declared by {_describe(first)} and by {_describe(owner)}: give one "
                    "of them another name, or let both inherit the dataclass that declares it"
                )
    return owners


def _describe(owner: Union[type, str]) -> str:
    return owner if isinstance(owner, str) else f"{owner.__module__}.{owner.__qualname__}"


class Component:
    """Base of the classes in a :class:`Registry`, with a name and, in :attr:`Options`, flags."""

    Options: Type[FairseqDataclass] = FairseqDataclass
    name: str

    @classmethod
    def unused_options(cls, args: Namespace) -> Dict[str, str]:
        """Options that have no effect with the others in ``args``, each with the remedy for the error message."""
        return {}


C = TypeVar("C", bound=Component)


class Registry(Dict[str, Type[C]], Generic[C]):
    """Components by name. The names are the values of a flag.

    Args:
        flag: as on the command line, such as ``--output-layer``.
        help: help text of the flag.
    """

    def __init__(self, flag: str, *, help: str):
        super().__init__()
        self.flag = flag
        self.help = help
        self._commands: List[Callable[[], Owners]] = [self.owners]

    @property
    def destination(self) -> str:
        """Name of the flag in parsed arguments."""
        return self.flag.strip("-").replace("-", "_")

    def register(self, name: str) -> Callable[[Type[C]], Type[C]]:
        """Class decorator that registers a component as a value of the flag.

        It raises UserError if the name is taken, or if another part of a model declares an option of the component.
        """

        def register(cls: Type[C]) -> Type[C]:
            if name in self:
                raise UserError(f"{self.flag} {name} is registered twice: give {cls.__qualname__} another name")
            for command in self._commands:
                join_owners(command(), option_owners(cls.Options))
            self[name] = cls
            cls.name = name
            return cls

        return register

    def find(self, name: str) -> Type[C]:
        """The component with this name.

        Raises:
            UserError: if there is none.
        """
        return self[check_choice(name, sorted(self), flag=self.flag)]

    def all_option_names(self) -> Set[str]:
        """Names of the options of all components."""
        return option_names(*(component.Options for component in self.values()))

    def owners(self) -> Owners:
        """The flag and the options of all components, each with its owner."""
        own = {self.destination: f"the registry of {self.flag}"}
        return join_owners(own, *(option_owners(component.Options) for component in self.values()))

    def stand_beside(self, owners: Callable[[], Owners]) -> None:
        """From now on, :meth:`register` also rejects options that ``owners()`` assigns to another owner."""
        self._commands.append(owners)

    def add_args(self, parser: ArgumentParser) -> None:
        """Add the flag and the flags of all components, without defaults, which presets set.

        The help of an option begins with the names of its components, unless all components have it.
        """
        parser.add_argument(self.flag, choices=sorted(self), help=self.help)
        options: Dict[str, Field[Any]] = {}
        owners: DefaultDict[str, List[str]] = defaultdict(list)
        for component_name, component in sorted(self.items()):
            for option in fields(component.Options):
                options[option.name] = option
                owners[option.name].append(component_name)
        explained = [
            _explained(options[name], [] if len(owners[name]) == len(self) else owners[name])
            for name in sorted(self.all_option_names())
        ]
        all_options = make_dataclass("AllOptions", explained, bases=(FairseqDataclass,))
        gen_parser_from_dataclass(parser, all_options(), delete_default=True)

    def read_options(self, args: Namespace) -> FairseqDataclass:
        """Options of the component that ``args`` names. Absent options take their defaults.

        Raises:
            UserError: if the component does not exist, an option belongs to another component or has no effect, or a
                value is not among the choices of its option.
        """
        name = getattr(args, self.destination)
        component = self.find(name)
        foreign = sorted(
            option for option in self.all_option_names() - option_names(component.Options) if hasattr(args, option)
        )
        if foreign:
            flags = ", ".join(map(flag_of, foreign))
            raise UserError(f"{flags}: not a flag of {self.flag} {name}; leave it out or take another {self.flag}")
        for option, remedy in sorted(component.unused_options(args).items()):
            if hasattr(args, option):
                raise UserError(
                    f"{flag_of(option)} has no effect on this {self.flag} {name}: leave it out, or {remedy}"
                )
        return check_choices(component.Options.from_namespace(args))


def option_names(*options: Type[FairseqDataclass]) -> Set[str]:
    """Names of all options of the dataclasses."""
    return set().union(*map(option_owners, options))


def _explained(option: Field[Any], components: Sequence[str]) -> Tuple[str, Any, Field[Any]]:
    """Name, type and field of an option, with the names of its components added to its help."""
    metadata = dict(option.metadata)
    if components and "help" in metadata:
        metadata["help"] = f"{', '.join(components)}: {metadata['help']}"
    # one of the two defaults is MISSING
    # pyrefly: ignore[no-matching-overload]
    explained = field(default=option.default, default_factory=option.default_factory, metadata=metadata)
    return option.name, option.type, explained


class ModelFlags:
    """The flags of a model and its parts, of which no two may declare the same option.

    This is checked when the model is defined, and again when a component is registered later. fairseq's general flags,
    such as ``--seed``, count as declared.

    Args:
        own: the model's dataclass. Options of a nested dataclass are prefixed with its name, as in fairseq.
        registries: registries of the parts.
        left_out: options of fairseq's dataclass that the model does not offer.

    Raises:
        UserError: if two parts declare the same option.
    """

    def __init__(self, own: Type[FairseqDataclass], *registries: Registry[Any], left_out: Collection[str] = ()):
        self._own, self._left_out = own, left_out
        self._registries = registries
        self._fixed = join_owners(_added(FairseqConfig, prefix=None), _added(own))
        self.owners()
        for registry in registries:
            registry.stand_beside(self.owners)

    def owners(self) -> Owners:
        """All options of the command, each with its owner.

        Raises:
            UserError: if two parts declare the same option.
        """
        return join_owners(self._fixed, *(registry.owners() for registry in self._registries))

    def stand_beside(self, *configs: Union[Type[FairseqDataclass], Sequence[Type[FairseqDataclass]]]) -> None:
        """From now on, reject options that tasks, criteria or optimisers with these dataclasses declare.

        A sequence contains alternatives, such as optimisers, of which a command has one. They may declare the same
        option. Errors name the first of them.

        Raises:
            UserError: if two that are not alternatives declare the same option, or a part has declared one.
        """
        groups = [config if isinstance(config, Sequence) else [config] for config in configs]
        self._fixed = join_owners(self._fixed, *map(_added_by_any, groups))
        self.owners()

    def add_args(self, parser: ArgumentParser) -> None:
        """Add the flags of the model and of its parts, without defaults, which presets set."""
        filtered: Any = _FilteredParser(parser, self._left_out)
        gen_parser_from_dataclass(filtered, self._own(), delete_default=True, with_prefix="")
        for registry in self._registries:
            registry.add_args(parser)


class _FilteredParser:
    """Stands in for the parser of fairseq's ``gen_parser_from_dataclass``, and does not add the flags ``left_out``."""

    def __init__(self, parser: ArgumentParser, left_out: Collection[str]):
        self._parser = parser
        self._left_out = {flag_of(name) for name in left_out}

    def add_argument(self, *flags: str, **settings: Any) -> None:
        if self._left_out.isdisjoint(flags):
            self._parser.add_argument(*flags, **settings)


def _added(config: Type[FairseqDataclass], *, prefix: Optional[str] = "") -> Owners:
    """The options that a dataclass adds to a command, without those that it interpolates from others."""
    parser = ArgumentParser(add_help=False)
    gen_parser_from_dataclass(parser, config(), delete_default=True, with_prefix=prefix)
    return {action.dest: config for action in parser._actions}


def _added_by_any(alternatives: Sequence[Type[FairseqDataclass]]) -> Owners:
    """The options of several alternatives, each with the first that adds it to a command."""
    owners: Owners = {}
    for config in reversed(alternatives):
        owners.update(_added(config))
    return owners
