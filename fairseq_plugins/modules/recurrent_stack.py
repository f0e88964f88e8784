"""A stack of recurrent layers that returns every layer's output and its state.

Shapes: B batch rows, T time steps, C input width, D_n width of layer n.
"""

from dataclasses import dataclass
from typing import List, Optional, Sequence

from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_plugins.modules.locked_dropout import LockedDropout
from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS, LayerState

StackState = List[LayerState]
"""States of the layers, bottom first."""


@dataclass
class StackOutput:
    """What a :class:`RecurrentStack` returns.

    Attributes:
        layers: output of each layer after its dropout, (B, T, D_n).
        top: output of the last layer before its dropout, (B, T, D_N).
        state: state after the last time step, one entry a layer.
    """

    layers: List[Tensor]
    top: Tensor
    state: StackState


class RecurrentStack(nn.Module):
    """Recurrent layers with dropout after each.

    Args:
        input_size: width C of the input.
        hidden_sizes: width D_n of each layer.
        cell: a value of ``--rnn-cell``.
        cell_options: an instance of the cell's ``Options``, or None for their defaults.
        weight_dropout: rate of each layer's recurrent weight drop.
        hidden_dropout: dropout rate between layers.
        output_dropout: dropout rate on the last layer.
        shared_mask_dims: dimensions of (B, T, D) that share a dropout mask: time for locked dropout, none for
            the standard one.

    Raises:
        ValueError: on an unknown cell, no layer, a width below one, a rate outside [0, 1) or options that do not fit.
    """

    def __init__(
        self,
        input_size: int,
        hidden_sizes: Sequence[int],
        *,
        cell: str = "lstm",
        cell_options: Optional[FairseqDataclass] = None,
        weight_dropout: float = 0.0,
        hidden_dropout: float = 0.0,
        output_dropout: float = 0.0,
        shared_mask_dims: Sequence[int] = (1,),
    ):
        super().__init__()
        cell_class = RECURRENT_CELLS.find(cell)
        if not hidden_sizes or min(hidden_sizes) < 1:
            raise ValueError(f"--hidden-sizes {list(hidden_sizes)}: every layer needs a width of at least 1")
        self.layers = nn.ModuleList(
            cell_class.build_layers(
                input_size, hidden_sizes, weight_dropout=weight_dropout, options=cell_options or cell_class.Options()
            )
        )
        self.dropouts = nn.ModuleList(
            LockedDropout(rate, flag=flag, shared_dims=shared_mask_dims)
            for rate, flag in [
                *[(hidden_dropout, "--dropout-hidden")] * (len(hidden_sizes) - 1),
                (output_dropout, "--dropout-output"),
            ]
        )

    def forward(
        self, x: Tensor, state: Optional[StackState] = None, *, leading_padding: Optional[Tensor] = None
    ) -> StackOutput:
        """Run all layers over x (B, T, C), from ``state`` or from zeros; zeros stay zeros at ``leading_padding``."""
        outputs, new_state, stack_input = [], [], x
        for n, (layer, dropout) in enumerate(zip(self.layers, self.dropouts)):
            layer_state = None if state is None else state[n]
            output, layer_state = layer(x, layer_state, stack_input=stack_input, leading_padding=leading_padding)
            x = dropout(output)
            outputs.append(x)
            new_state.append(layer_state)
        return StackOutput(layers=outputs, top=output, state=new_state)
