"""Recurrent decoder layers with attention on top.

Shapes: B sentences, T target steps, S source positions, C width of the target embedding, D_n width of layer n,
N index of the last recurrent layer, M width of the annotations.
"""

from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

import torch
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_plugins.modules.attention import Attention, Memory
from fairseq_plugins.modules.locked_dropout import LockedDropout
from fairseq_plugins.modules.recurrent_stack import RecurrentStack, StackState


@dataclass
class AttentionalState:
    """What a step hands to the next.

    Attributes:
        stack: state of the recurrent layers.
        fed: h~ of the last step, (B, D_N), where it is fed back.
    """

    stack: StackState
    fed: Optional[Tensor]


@dataclass
class AttentionalOutput:
    """What an :class:`AttentionalStack` returns.

    Attributes:
        layers: output of each recurrent layer and, with attention, h~, after their dropout, (B, T, D_n).
        top: the last of them before its dropout.
        attention: weights, (B, T, S), or None.
        state: after the last step.
    """

    layers: List[Tensor]
    top: Tensor
    attention: Optional[Tensor]
    state: AttentionalState


class AttentionalStack(nn.Module):
    """Recurrent layers, attention, and h~ fed back to the first layer where ``input_feeding`` asks (Luong et al. 2015).

    Without input feeding each layer runs over all target steps at once, and so does attention. With it only what
    depends on the step before is computed step by step, unless there is one step, as in decoding.

    Args:
        input_size: C.
        hidden_sizes: D_1 .. D_N.
        cell, cell_options: as :class:`RecurrentStack`.
        attention: built for D_N and M, or None.
        input_feeding: "on" or "off".
        dropout: standard dropout rate of every layer's output and of h~.

    Raises:
        ValueError: on input feeding without attention, and as :class:`RecurrentStack`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_sizes: Sequence[int],
        *,
        cell: str,
        cell_options: Optional[FairseqDataclass] = None,
        attention: Optional[Attention],
        input_feeding: str,
        dropout: float,
    ):
        super().__init__()
        self.feeds = input_feeding == "on"
        if self.feeds and attention is None:
            raise ValueError("--input-feeding on feeds the attention's output back: take an --attention, or off")
        self.stack = RecurrentStack(
            input_size + (hidden_sizes[-1] if self.feeds and hidden_sizes else 0),
            hidden_sizes,
            cell=cell,
            cell_options=cell_options,
            hidden_dropout=dropout,
            output_dropout=dropout,
            shared_mask_dims=(),
        )
        self.attention = attention
        self.dropout = LockedDropout(dropout, flag="--dropout", shared_dims=())

    def initial_state(self, stack_state: StackState) -> AttentionalState:
        """Start from the states of the layers (B, D_n), with h~_0 = 0."""
        fed = stack_state[-1][0] if self.feeds else None
        return AttentionalState(stack=stack_state, fed=None if fed is None else torch.zeros_like(fed))

    def forward(self, x: Tensor, memory: Optional[Memory], state: AttentionalState) -> AttentionalOutput:
        """Run over the embedded target tokens x (B, T, C)."""
        if self.feeds and x.size(1) > 1:
            return self._step_by_step(x, memory, state)
        if self.feeds:
            x = torch.cat([x, state.fed.unsqueeze(1)], dim=-1)
        outputs = self.stack(x, state.stack)
        new_state = AttentionalState(stack=outputs.state, fed=None)
        if self.attention is None:
            return AttentionalOutput(layers=outputs.layers, top=outputs.top, attention=None, state=new_state)
        top, weights = self.attention(outputs.top, memory)
        if self.feeds:
            new_state.fed = top.squeeze(1)
        layers = [*outputs.layers, self.dropout(top)]
        return AttentionalOutput(layers=layers, top=top, attention=weights, state=new_state)

    def _step_by_step(self, x: Tensor, memory: Memory, state: AttentionalState) -> AttentionalOutput:
        num_steps = x.size(1)
        first, *others = self.stack.layers
        runs = [first.steps(x, stack_known=x), *(layer.steps(stack_known=x) for layer in others)]
        masks = [_mask(dropout, x, layer.hidden_size) for dropout, layer in zip(self.stack.dropouts, self.stack.layers)]
        states, fed = list(state.stack), state.fed
        outputs, tops, weights = [[] for _ in runs], [], []
        for t in range(num_steps):
            late = fed
            for n, run in enumerate(runs):
                states[n] = run(t, late, states[n], stack_late=fed)
                late = states[n][0] if masks[n] is None else states[n][0] * masks[n][t]
                outputs[n].append(late)
            top, step_weights = self.attention(states[-1][0].unsqueeze(1), memory)
            fed = top.squeeze(1)
            tops.append(fed)
            weights.append(step_weights)
        top = torch.stack(tops, dim=1)
        return AttentionalOutput(
            layers=[*(torch.stack(steps, dim=1) for steps in outputs), self.dropout(top)],
            top=top,
            attention=torch.cat(weights, dim=1),
            state=AttentionalState(stack=states, fed=fed),
        )


def _mask(dropout: LockedDropout, x: Tensor, width: int) -> Optional[Tuple[Tensor, ...]]:
    """The dropout's mask for each step, (B, width), or None where nothing is dropped."""
    if not dropout.training or dropout.rate == 0.0:
        return None
    return dropout(x.new_ones(x.size(0), x.size(1), width)).unbind(1)
