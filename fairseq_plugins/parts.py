"""Parts of a model that a flag selects by name, each with flags of its own."""

import inspect
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from dataclasses import Field, field, fields, make_dataclass
from functools import cache
from typing import (
    Any,
    Callable,
    Collection,
    DefaultDict,
    Dict,
    Generic,
    Iterable,
    List,
    Optional,
    Sequence,
    Set,
    Tuple,
    Type,
    TypeVar,
    Union,
)

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_REGISTRY

from fairseq_plugins.options import UserError, check_choice, check_choices, flag_of


class Part:
    """Base of the classes in a :class:`Registry`, with a name and, in :attr:`Options`, flags."""

    Options: Type[FairseqDataclass] = FairseqDataclass
    name: str

    @classmethod
    def unused_options(cls, args: Namespace) -> Dict[str, str]:
        """Options that have no effect with the others in ``args``, each with the remedy for the error message."""
        return {}


P = TypeVar("P", bound=Part)

NONE = "none"
"""Name of the part that does nothing, the default of a registry that has one."""


class Registry(Dict[str, Type[P]], Generic[P]):
    """Parts by name. The names are the values of a flag.

    Args:
        flag: as on the command line, such as ``--output-layer``.
        help: help text of the flag.
    """

    def __init__(self, flag: str, *, help: str):
        super().__init__()
        self.flag = flag
        self.help = help

    @property
    def destination(self) -> str:
        """Name of the flag in parsed arguments."""
        return self.flag.strip("-").replace("-", "_")

    def register(self, name: str) -> Callable[[Type[P]], Type[P]]:
        """Class decorator that registers a part as a value of the flag.

        It raises UserError if the name is taken. The part's flags are checked by :func:`check_declarations`.
        """

        def register(cls: Type[P]) -> Type[P]:
            if name in self:
                raise UserError(f"{self.flag} {name} is registered twice: give {cls.__qualname__} another name")
            self[name] = cls
            cls.name = name
            return cls

        return register

    def find(self, name: str) -> Type[P]:
        """The part with this name.

        Raises:
            UserError: if there is none.
        """
        return self[check_choice(name, sorted(self), flag=self.flag)]

    def all_option_names(self) -> Set[str]:
        """Names of the options of all parts."""
        return option_names(*(part.Options for part in self.values()))

    def add_args(self, parser: ArgumentParser) -> None:
        """Add the flag and the flags of all parts, without defaults, which presets set.

        The help of an option begins with the names of its parts, unless all parts have it.
        """
        parser.add_argument(self.flag, choices=sorted(self), help=self.help)
        options: Dict[str, Field[Any]] = {}
        owners: DefaultDict[str, List[str]] = defaultdict(list)
        for part_name, part in sorted(self.items()):
            for option in fields(part.Options):
                options[option.name] = option
                owners[option.name].append(part_name)
        explained = [
            _explained(options[name], [] if len(owners[name]) == len(self) else owners[name])
            for name in sorted(self.all_option_names())
        ]
        all_options = make_dataclass("AllOptions", explained, bases=(FairseqDataclass,))
        gen_parser_from_dataclass(parser, all_options(), delete_default=True)

    def build(self, args: Namespace, **arguments: Any) -> P:
        """Build the part that ``args`` names, by default "none" if there is one, with its options and the arguments.

        Raises:
            UserError: as :meth:`read_options`, or of the part.
        """
        if NONE in self:
            vars(args).setdefault(self.destination, NONE)  # presets leave it out
        options = self.read_options(args)
        part: Callable[..., P] = self[getattr(args, self.destination)]
        return part(options=options, **arguments)

    def read_options(self, args: Namespace) -> FairseqDataclass:
        """Options of the part that ``args`` names. Absent options take their defaults.

        Raises:
            UserError: if the part does not exist, an option belongs to another part or has no effect, or a
                value is not among the choices of its option.
        """
        name = getattr(args, self.destination)
        part = self.find(name)
        foreign = sorted(
            option for option in self.all_option_names() - option_names(part.Options) if hasattr(args, option)
        )
        if foreign:
            flags = ", ".join(map(flag_of, foreign))
            raise UserError(f"{flags}: not a flag of {self.flag} {name}; leave it out or take another {self.flag}")
        for option, remedy in sorted(part.unused_options(args).items()):
            if hasattr(args, option):
                raise UserError(
                    f"{flag_of(option)} has no effect on this {self.flag} {name}: leave it out, or {remedy}"
                )
        return check_choices(part.Options.from_namespace(args))


def option_names(*options: Type[FairseqDataclass]) -> Set[str]:
    """Names of all options of the dataclasses."""
    return {option.name for cls in options for option in fields(cls) if not option.name.startswith("_")}


def _explained(option: Field[Any], parts: Sequence[str]) -> Tuple[str, Any, Field[Any]]:
    """Name, type and field of an option, with the names of its parts added to its help."""
    metadata = dict(option.metadata)
    if parts and "help" in metadata:
        metadata["help"] = f"{', '.join(parts)}: {metadata['help']}"
    # one of the two defaults is MISSING
    # pyrefly: ignore[no-matching-overload]
    explained = field(default=option.default, default_factory=option.default_factory, metadata=metadata)
    return option.name, option.type, explained


class ModelFlags:
    """The flags of a model and its parts.

    Args:
        own: the model's dataclass. Options of a nested dataclass are prefixed with its name, as in fairseq.
        registries: registries of the parts.
        left_out: options of fairseq's dataclass that the model does not offer.
    """

    def __init__(self, own: Type[FairseqDataclass], *registries: Registry[Any], left_out: Collection[str] = ()):
        self.own, self.registries = own, registries
        self._left_out = left_out

    def add_args(self, parser: ArgumentParser) -> None:
        """Add the flags of the model and of its parts, without defaults, which architectures set.

        Raises:
            UserError: if a flag is declared twice.
        """
        check_declarations(self)
        own = ArgumentParser(add_help=False, argument_default=parser.argument_default)
        gen_parser_from_dataclass(own, self.own(), delete_default=True, with_prefix="")
        for action in own._actions:
            if action.dest not in self._left_out:
                parser._add_action(action)
        for registry in self.registries:
            registry.add_args(parser)

    def defaults(self) -> Dict[str, Any]:
        """Default of each option of the model and its parts, None if the part decides."""
        options = [self.own, *(part.Options for registry in self.registries for part in registry.values())]
        absent = {registry.destination: NONE for registry in self.registries if NONE in registry}
        return {option.name: option.default for cls in options for option in fields(cls)} | absent


def check_declarations(model: ModelFlags) -> None:
    """Check that no two parts of one command line declare the same flag: fairseq silently drops the second.

    It is called when the flags of a model are added to a parser. By then all parts are registered, the user's own
    ones as well. A part may not declare a flag that fairseq, the model or another part declares, or a task, criterion
    or optimizer from outside fairseq. Alternatives, such as two optimizers, may declare the same flag.

    Raises:
        UserError: naming the flag and both owners.
    """
    of_parts = [part.Options for registry in model.registries for part in registry.values()]
    sources: List[Iterable[Tuple[str, Owner]]] = [
        ((name, FairseqConfig) for name in _names_in(FairseqConfig, None)),
        ((name, model.own) for name in _names_in(model.own, "")),
        ((registry.destination, f"the registry of {registry.flag}") for registry in model.registries),
        ((name, _declaring(options, name)) for options in of_parts for name in _names_of_options(options)),
    ]
    optimizers: Any = REGISTRIES["optimizer"]["registry"]
    for known in (TASK_REGISTRY, CRITERION_REGISTRY, optimizers):
        alternatives = [cls for cls in known.values() if not cls.__module__.startswith("fairseq.")]
        sources.append({name: cls for cls in alternatives[::-1] for name in _names_of(cls)}.items())
    owners: Dict[str, Owner] = {}
    for name, owner in (declared for source in sources for declared in source):
        first = owners.setdefault(name, owner)
        if first != owner:
            raise UserError(
                f"{flag_of(name)} is declared by {_describe(first)} and by {_describe(owner)}: give one of them "
                "another name, or let both inherit the dataclass that declares it"
            )


Owner = Union[type, str]
"""The class that declares an option, or a description."""


def _declaring(options: Type[FairseqDataclass], name: str) -> type:
    return next(cls for cls in options.__mro__ if name in inspect.get_annotations(cls))


def _describe(owner: Owner) -> str:
    return owner if isinstance(owner, str) else f"{owner.__module__}.{owner.__qualname__}"


@cache
def _names_in(config: Type[FairseqDataclass], prefix: Optional[str]) -> List[str]:
    """Names of the options that a dataclass adds to a command, without those that it interpolates from others."""
    parser = ArgumentParser(add_help=False)
    gen_parser_from_dataclass(parser, config(), delete_default=True, with_prefix=prefix)
    return [action.dest for action in parser._actions]


def _names_of_options(options: Type[FairseqDataclass]) -> List[str]:
    """Names of the options of a part. Raises UserError if fairseq cannot make flags of them."""
    try:
        return _names_in(options, "")
    except Exception as error:  # fairseq raises errors of many kinds
        raise UserError(
            f"{_describe(options)} becomes no flags ({error}): let it inherit fairseq's FairseqDataclass, give each "
            "field a default and a type such as float, str or Optional[int], and leave out from __future__ import "
            "annotations"
        ) from error


@cache
def _names_of(cls: Any) -> List[str]:
    """Names of the options that a task, criterion or optimizer adds to the options of its base class in fairseq."""
    base: Any = next(base for base in cls.__mro__ if base.__module__.startswith("fairseq."))
    known = flag_names(base)
    return [name for name in flag_names(cls) if name not in known]


def flag_names(cls: Any) -> List[str]:
    """Names of the options that a model, task, criterion or optimizer adds to a command."""
    parser = ArgumentParser(add_help=False)
    cls.add_args(parser)
    return [action.dest for action in parser._actions]
