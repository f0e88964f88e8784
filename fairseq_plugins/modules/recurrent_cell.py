"""The contract between recurrent layers and the stacks that they make up, and the registry of ``--rnn-cell``.

Shapes: B batch rows, T time steps, C width of a layer's input, C_1 width of the stack's input, D width of the layer.
"""

from typing import Dict, List, Optional, Protocol, Sequence, Tuple

from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_plugins.flags.registry import Component, Registry

LayerState = Tuple[Tensor, ...]
"""State of one layer: tensors of shape (B, D) of which the first is its output, for an LSTM (h, c)."""


class Steps(Protocol):
    """A layer that runs step by step."""

    def __call__(self, t: int, late: Tensor, state: LayerState, *, stack_late: Tensor) -> LayerState:
        """State after step t, given what is known only then: the rest of the layer's input, ``late`` (B, C - C'),
        and of the stack's, ``stack_late`` (B, C_1 - C_1')."""


class RecurrentCell(Component, nn.Module):
    """One recurrent layer.

    A subclass registers itself with ``RECURRENT_CELLS.register``, names its flags in the dataclass ``Options``, sets
    ``hidden_size`` D and implements the methods below; it then is a value of ``--rnn-cell``. It may read, beside its
    own input, that of the stack's first layer.
    """

    hidden_size: int

    @classmethod
    def build_layers(
        cls, input_size: int, hidden_sizes: Sequence[int], *, weight_dropout: float, options: FairseqDataclass
    ) -> List["RecurrentCell"]:
        """The layers of a stack, bottom first.

        Args:
            input_size: C_1.
            hidden_sizes: width of each layer.
            weight_dropout: drop rate of the recurrent matrices' elements.
            options: an instance of ``Options``.
        """
        input_sizes = [input_size, *hidden_sizes[:-1]]
        return [cls(size, width, weight_dropout=weight_dropout) for size, width in zip(input_sizes, hidden_sizes)]

    @property
    def feature_groups(self) -> Dict[str, slice]:
        """Parts of the output's features that are told apart when they are analysed, by name; by default none."""
        return {}

    def initial_state(self, x: Tensor) -> LayerState:
        """The zero state for the rows of ``x``."""
        zeros = x.new_zeros(x.size(0), self.hidden_size)
        return zeros, zeros

    def forward(
        self,
        x: Tensor,
        state: Optional[LayerState] = None,
        *,
        stack_input: Optional[Tensor] = None,
        leading_padding: Optional[Tensor] = None,
    ) -> Tuple[Tensor, LayerState]:
        """Run over all time steps.

        Args:
            x: (B, T, C).
            state: that before the first step, or None for zeros.
            stack_input: what the stack's first layer reads, (B, T, C_1); a cell without short cuts ignores it.
            leading_padding: (B, T), True at padding in front of a row, where the state stays zero.

        Returns:
            output (B, T, D) and the state after the last step.
        """
        raise NotImplementedError

    def steps(self, known: Optional[Tensor] = None, *, stack_known: Optional[Tensor] = None) -> Steps:
        """Run step by step where a part of the input is known only then.

        Args:
            known: the first columns of the layer's input at all steps, (B, T, C'), or None where none is known.
            stack_known: the same of the stack's input, (B, T, C_1').
        """
        raise NotImplementedError


RECURRENT_CELLS: Registry[RecurrentCell] = Registry("--rnn-cell", help="recurrent layer")
"""Values of ``--rnn-cell``."""
