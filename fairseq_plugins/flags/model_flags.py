"""The flags of one model: its own, and those of the parts that it is made of."""

from argparse import ArgumentParser
from typing import Any, Callable, Collection, Optional, Sequence, Type, Union

from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.utils import gen_parser_from_dataclass

from fairseq_plugins.flags.owners import Owners, join_owners
from fairseq_plugins.flags.registry import Registry
from fairseq_plugins.flags.values import flag_of


class ModelFlags:
    """Adds the flags of a model to a command, and sees that no two of its parts declare the same.

    The host drops the second of two flags with one name without a word. Here it is refused when the model is defined,
    and when a component is registered later. The host's general flags, such as ``--seed``, are taken, too.

    Args:
        own: the model's dataclass; the options of one inside it are prefixed with its name, as the host does.
        registries: of the parts.
        left_out: options of a dataclass of the host that the model does not offer.

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
    """What the host's ``gen_parser_from_dataclass`` takes for a parser: it passes on all flags but some."""

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
