"""The flags of one model: its own, and those of the parts that it is made of."""

from argparse import ArgumentParser
from functools import partial
from typing import Callable, Set, Type

from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.utils import gen_parser_from_dataclass

from fairseq_plugins.flags.owners import Owners, join_owners
from fairseq_plugins.flags.registry import Registry


class ModelFlags:
    """Adds the flags of a model to a command, and sees that no two of its parts declare the same.

    The host drops the second of two flags with one name without a word. Here it is refused when the model is defined,
    and when a component is registered later. The host's general flags, such as ``--seed``, are taken, too.

    Args:
        own: the model's dataclass; the options of one inside it are prefixed with its name, as the host does.
        registries: of the parts.

    Raises:
        ValueError: if two parts declare one option.
    """

    def __init__(self, own: Type[FairseqDataclass], *registries: Registry):
        self._add_own = partial(
            gen_parser_from_dataclass, dataclass_instance=own(), delete_default=True, with_prefix=""
        )
        self._registries = registries
        self._fixed = join_owners(
            {name: FairseqConfig for name in _added_names(_add_general_flags)},
            {name: own for name in _added_names(self._add_own)},
        )
        self.owners()
        for registry in registries:
            registry.stand_beside(self.owners)

    def owners(self) -> Owners:
        """All options of the command, each with who declares it.

        Raises:
            ValueError: if two parts declare one.
        """
        return join_owners(self._fixed, *(registry.owners() for registry in self._registries))

    def add_args(self, parser: ArgumentParser) -> None:
        """Add the model's flags and those of its parts, without defaults (presets set them)."""
        self._add_own(parser)
        for registry in self._registries:
            registry.add_args(parser)


_add_general_flags = partial(gen_parser_from_dataclass, dataclass_instance=FairseqConfig())


def _added_names(add_args: Callable[[ArgumentParser], None]) -> Set[str]:
    parser = ArgumentParser(add_help=False)
    add_args(parser)
    return {action.dest for action in parser._actions}
