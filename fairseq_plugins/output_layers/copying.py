"""What every kind of copying of source words has in common, and how a model is built with one.

Shapes: B sentences, T target steps, D_N width of the last layer.
"""

from argparse import Namespace
from typing import Any, Callable, Optional

from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_plugins.flags.registry import Component, Registry
from fairseq_plugins.ops.interpolation import Interpolation
from fairseq_plugins.output_layers.decoder_states import DecoderStates
from fairseq_plugins.output_layers.scores import Scores


class Copying(Component, nn.Module):
    """Gives source words a probability of their own, whatever the output layer.

    A subclass registers itself with ``COPYING.register``, names its flags in the dataclass ``Options`` and implements
    :meth:`interpolation` and :meth:`blended`; it then is a value of ``--copying``. :func:`build_copying` calls the
    constructor with keywords: ``source`` and ``target``, the dictionaries, ``width``, D_N, and ``options``, an instance
    of ``Options``.

    Attributes:
        needs_attention: whether the states must have an attention to the source.
    """

    needs_attention = True

    def interpolation(self, states: DecoderStates, target: Tensor) -> Optional[Interpolation]:
        """What the loss of targets (B, T) makes of the output layer's probabilities; None leaves them."""
        raise NotImplementedError

    def blended(self, scores: Scores, states: DecoderStates) -> Scores:
        """The distribution with the copied words."""
        raise NotImplementedError


COPYING: Registry[Copying] = Registry("--copying", help="whether source words are copied to the target (default: none)")
"""Values of ``--copying``."""


@COPYING.register("none")
class NoCopying(Copying):
    """Leaves the output layer's probabilities as they are."""

    needs_attention = False

    def __init__(self, **unused: Any):
        super().__init__()

    def interpolation(self, states: DecoderStates, target: Tensor) -> None:
        return None

    def blended(self, scores: Scores, states: DecoderStates) -> Scores:
        return scores


def build_copying(
    args: Namespace, *, source: Dictionary, target: Dictionary, width: int, attention_removed_by: Optional[str]
) -> Copying:
    """Build what ``args.copying`` names, by default nothing.

    Args:
        args: parsed flags.
        source, target: the dictionaries.
        width: of the last layer.
        attention_removed_by: the flag that leaves targets without attention, or None where all have it.

    Raises:
        ValueError: if it does not exist, or needs an attention that is not there.
    """
    vars(args).setdefault(COPYING.destination, NoCopying.name)  # presets name none
    options = COPYING.read_options(args)
    copying_class: Callable[..., Copying] = COPYING[args.copying]
    copying = copying_class(source=source, target=target, width=width, options=options)
    if attention_removed_by is not None and copying.needs_attention:
        raise ValueError(f"--copying {copying.name} needs attention to the source: leave out {attention_removed_by}")
    return copying
