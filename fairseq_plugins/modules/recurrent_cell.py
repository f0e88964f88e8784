"""The contract between recurrent layers and the stacks that they make up, and the registry of ``--rnn-cell``.

Shapes: B batch rows, T time steps, C width of a layer's input, of which C' columns are known in advance, C_1 and C_1'
the same of the stack's input, D width of the layer.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_plugins.flags.registry import Component, Registry
from fairseq_plugins.modules.initialisation import StartsByLayer
from fairseq_plugins.modules.recurrent_state import map_state

LayerState = Dict[str, Tensor]
"""State of one layer by name, each (B, *), such as h and c of an LSTM."""


@dataclass(frozen=True)
class CellContext:
    """What a layer may read beside its own input.

    Attributes:
        stack_input: the columns known in advance of what the stack's first layer reads, (B, T, C_1').
        leading_padding: True at padding in front of a row, (B, T), or None where there is none.
        tokens: the words that the stack reads, (B, T), or None where nobody tells.
    """

    stack_input: Tensor
    leading_padding: Optional[Tensor] = None
    tokens: Optional[Tensor] = None


class Late(NamedTuple):
    """What only a step knows of the inputs.

    Attributes:
        input: the last columns of the layer's input, (B, C - C'), or None where all were known.
        stack_input: those of the stack's, (B, C_1 - C_1'), or None.
    """

    input: Optional[Tensor] = None
    stack_input: Optional[Tensor] = None


class RecurrentCell(StartsByLayer, Component, nn.Module):
    """One recurrent layer.

    A subclass registers itself with ``RECURRENT_CELLS.register``, names its flags in the dataclass ``Options``, sets
    ``hidden_size`` D and implements the constructor, :meth:`initial_state`, :meth:`prepare` and :meth:`step`; it then
    is a value of ``--rnn-cell`` in every recurrent model. The runs over a sequence and step by step follow from these;
    a subclass may override :meth:`forward` by something faster. One with recurrent matrices, or several stacked in one
    parameter, overrides :meth:`start_by_layer`.

    Args:
        input_size: C.
        hidden_size: D.
        options: an instance of ``Options``.
    """

    hidden_size: int

    @classmethod
    def build_layers(cls, input_size: int, hidden_sizes: Sequence[int], *, options: Any) -> List["RecurrentCell"]:
        """The layers of a stack, bottom first.

        Args:
            input_size: C_1.
            hidden_sizes: width of each layer.
            options: an instance of ``Options``.
        """
        input_sizes = [input_size, *hidden_sizes[:-1]]
        return [cls(size, width, options=options) for size, width in zip(input_sizes, hidden_sizes)]

    def start_by_layer(self) -> None:
        """Draw what ``--init by-layer`` starts in another way than input matrices and biases; here nothing."""

    @property
    def feature_groups(self) -> Dict[str, slice]:
        """Parts of the output (B, T, D) that are computed apart, by name; none where it is of one piece."""
        return {}

    def read_dictionary(self, dictionary: Dictionary) -> None:
        """Learn what the cell wants to know of the words; called once, where a model is built for them."""

    def initial_state(self, x: Tensor) -> LayerState:
        """The zero state for the rows of ``x``, (B, *)."""
        raise NotImplementedError

    def prepare(self, x: Tensor, context: CellContext) -> Any:
        """Compute or draw what all steps read: masks of a window, dropped matrices, products with the input.

        Args:
            x: the columns of the input that are known in advance, (B, T, C'), 0 <= C' <= C.
            context: what else can be read.
        """
        raise NotImplementedError

    def step(self, prepared: Any, t: int, late: Late, state: LayerState) -> Tuple[Tensor, LayerState]:
        """Output (B, D) of step t and the state after it.

        Args:
            prepared: what :meth:`prepare` returned.
            t: number of the step, from 0.
            late: the columns of the inputs that are known only now.
            state: that before the step.
        """
        raise NotImplementedError

    def forward(self, x: Tensor, state: LayerState, context: CellContext) -> Tuple[Tensor, LayerState]:
        """Run over all steps of x (B, T, C).

        Returns:
            output (B, T, D), zero at leading padding, and the state after the last step. Padding leaves a state of
            zeros alone, which is all that an encoder needs.
        """
        prepared = self.prepare(x, context)
        paddings = None if context.leading_padding is None else context.leading_padding.unbind(1)
        outputs = []
        for t in range(x.size(1)):
            output, new_state = self.step(prepared, t, Late(), state)
            if paddings is not None:
                output = output.masked_fill(paddings[t].unsqueeze(-1), 0)
                new_state = map_state(partial(_keep_at, paddings[t]), new_state, state)
            outputs.append(output)
            state = new_state
        return torch.stack(outputs, dim=1), state


def provide_dictionary(module: nn.Module, dictionary: Dictionary) -> None:
    """Let the recurrent layers in a module read the dictionary of its words.

    Raises:
        ValueError: if the dictionary lacks what a layer needs.
    """
    for cell in module.modules():
        if isinstance(cell, RecurrentCell):
            cell.read_dictionary(dictionary)


def _keep_at(padding: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Rows of ``old`` where padding (B) is, of ``new``, (B, *), elsewhere."""
    return torch.where(padding.view(-1, *[1] * (new.dim() - 1)), old, new)


RECURRENT_CELLS: Registry[RecurrentCell] = Registry("--rnn-cell", help="recurrent layer")
"""Values of ``--rnn-cell``."""
