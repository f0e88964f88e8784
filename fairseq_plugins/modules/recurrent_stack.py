"""A stack of recurrent layers that returns every layer's output and its state.

Shapes: B batch rows, T time steps, C input width, D_n width of layer n.
"""

from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Sequence, Tuple, Type

from torch import Tensor, nn

from fairseq_plugins.modules.locked_dropout import LockedDropout

LayerState = Tuple[Tensor, ...]
"""State of one layer: tensors of shape (B, D), for an LSTM (h, c)."""

StackState = List[LayerState]

RECURRENT_CELLS: Dict[str, Type[nn.Module]] = {}
"""Values of ``--rnn-cell``. A cell is built as ``cell(input_size, hidden_size, weight_dropout=p)`` and
called as ``output, state = cell(x, state)`` with x (B, T, C), output (B, T, D) and state None at first. With
``leading_padding`` (B, T), True at padding in front of a row, the state stays zero there. For encoder-decoders
``initial_state(x)`` gives the zero state, and ``steps(known)`` runs the layer step by step (:mod:`.lstm`)."""


def register_cell(name: str) -> Callable[[Type[nn.Module]], Type[nn.Module]]:
    """Class decorator that makes a recurrent layer a value of ``--rnn-cell``."""

    def register(cls: Type[nn.Module]) -> Type[nn.Module]:
        assert name not in RECURRENT_CELLS, f"recurrent cell {name} is registered twice"
        RECURRENT_CELLS[name] = cls
        return cls

    return register


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
        cell: a name in :data:`RECURRENT_CELLS`.
        weight_dropout: rate of each layer's recurrent weight drop.
        hidden_dropout: dropout rate between layers.
        output_dropout: dropout rate on the last layer.
        shared_mask_dims: dimensions of (B, T, D) that share a dropout mask: time for locked dropout, none for
            the standard one.

    Raises:
        ValueError: on an unknown cell, no layer, a width below one or a rate outside [0, 1).
    """

    def __init__(
        self,
        input_size: int,
        hidden_sizes: Sequence[int],
        *,
        cell: str = "lstm",
        weight_dropout: float = 0.0,
        hidden_dropout: float = 0.0,
        output_dropout: float = 0.0,
        shared_mask_dims: Sequence[int] = (1,),
    ):
        super().__init__()
        if cell not in RECURRENT_CELLS:
            raise ValueError(f"--rnn-cell {cell}: choose one of {', '.join(sorted(RECURRENT_CELLS))}")
        if not hidden_sizes or min(hidden_sizes) < 1:
            raise ValueError(f"--hidden-sizes {list(hidden_sizes)}: every layer needs a width of at least 1")
        input_sizes = [input_size, *hidden_sizes[:-1]]
        self.layers = nn.ModuleList(
            RECURRENT_CELLS[cell](width_in, width, weight_dropout=weight_dropout)
            for width_in, width in zip(input_sizes, hidden_sizes)
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
        options = {} if leading_padding is None else {"leading_padding": leading_padding}
        outputs, new_state = [], []
        for n, (layer, dropout) in enumerate(zip(self.layers, self.dropouts)):
            output, layer_state = layer(x, None if state is None else state[n], **options)
            x = dropout(output)
            outputs.append(x)
            new_state.append(layer_state)
        return StackOutput(layers=outputs, top=output, state=new_state)
