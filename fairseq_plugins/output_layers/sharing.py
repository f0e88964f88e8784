"""Whether the output layer of a model uses the input embedding: what the layer allows and what the user asks for."""

from argparse import Namespace
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Mapping, Optional, Tuple, Union, cast

from torch import nn

from fairseq_plugins.output_layers.base import OUTPUT_LAYERS, Sharing

SharingValue = Union[str, bool]


class Wish(IntEnum):
    """What the user asks for."""

    SEPARATE = 0
    WHERE_POSSIBLE = 1
    SHARED = 2


@dataclass(frozen=True)
class SharingFlags:
    """The flags of a model that say whether the output layer uses the input embedding; without any it does if it may.

    Attributes:
        wishes: what the values of each flag ask for; of several flags the greatest wish holds. The first flag is the
            one that :meth:`complete` sets.
        substitute: the layer that is taken where sharing is asked for, no layer is named, and the preset's never
            shares; None where that is an error.
        cannot_share: the error where sharing is asked for and the ``{layer}`` that was named never shares.
        must_share: the error where a separate matrix is asked for and the ``{layer}`` has none.
    """

    wishes: Mapping[str, Mapping[SharingValue, Wish]] = field(default_factory=dict)
    substitute: Optional[str] = None
    cannot_share: str = ""
    must_share: str = ""

    def wish(self, args: Namespace) -> Optional[Wish]:
        """What ``args`` ask for; None where they leave it open."""
        given = [values[getattr(args, flag)] for flag, values in self.wishes.items() if hasattr(args, flag)]
        return max(given, default=None)

    def complete(self, args: Namespace, preset: Mapping[str, Any]) -> None:
        """Set the flag in ``args`` where the layer leaves no choice; called before the preset sets what is left open.

        Where no layer is named, it is the preset's, or where sharing is asked for in vain the ``substitute``.
        """
        name = getattr(args, OUTPUT_LAYERS.destination, None)
        if name is None:
            name = preset[OUTPUT_LAYERS.destination]
            never_shares = OUTPUT_LAYERS.find(name).sharing is Sharing.NEVER
            if never_shares and self.substitute is not None and self.wish(args) is Wish.SHARED:
                name = self.substitute
                setattr(args, OUTPUT_LAYERS.destination, name)
        only_wish = {Sharing.NEVER: Wish.SEPARATE, Sharing.REQUIRED: Wish.SHARED}.get(OUTPUT_LAYERS.find(name).sharing)
        if only_wish is not None:
            flag, value = self._setting(only_wish)
            vars(args).setdefault(flag, value)

    def shares(self, args: Namespace) -> bool:
        """Whether the output layer that ``args`` name uses the embedding.

        Raises:
            ValueError: if the layer cannot do as ``args`` ask.
        """
        layer = OUTPUT_LAYERS.find(args.output_layer)
        wish = self.wish(args)
        if layer.sharing is Sharing.NEVER and wish is Wish.SHARED:
            raise ValueError(self.cannot_share.format(layer=layer.name))
        if layer.sharing is Sharing.REQUIRED and wish is Wish.SEPARATE:
            raise ValueError(self.must_share.format(layer=layer.name))
        return layer.sharing is not Sharing.NEVER and wish is not Wish.SEPARATE

    def shared_weight(self, args: Namespace, embedding: nn.Embedding) -> Optional[nn.Parameter]:
        """The matrix of the input embedding if the output layer uses it, as :meth:`shares` says, or None.

        Raises:
            ValueError: if the layer cannot do as ``args`` ask.
        """
        return cast(nn.Parameter, embedding.weight) if self.shares(args) else None

    def _setting(self, wish: Wish) -> Tuple[str, SharingValue]:
        flag, values = next(iter(self.wishes.items()))
        return flag, next(value for value, meaning in values.items() if meaning is wish)
