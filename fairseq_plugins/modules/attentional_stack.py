"""Recurrent decoder layers with attention on top.

Shapes: B sentences, T target steps, S source positions, C width of the target embedding, D_n width of layer n,
N index of the last recurrent layer, M width of the annotations.
"""

from dataclasses import dataclass
from typing import List, NotRequired, Optional, Sequence, TypedDict

import torch
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_plugins.modules.attention import Attention, Memory
from fairseq_plugins.modules.dropout import MASKS, BroadcastDropout
from fairseq_plugins.modules.recurrent_stack import RecurrentStack, StackState
from fairseq_plugins.modules.recurrent_state import state_tensors


class AttentionalState(TypedDict):
    """State of an :class:`AttentionalStack` after a step.

    Attributes:
        layers: that of the recurrent layers.
        fed: the last h~, (B, D_N), where it is fed back.
    """

    layers: StackState
    fed: NotRequired[Tensor]


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
        hidden_dropout: standard dropout rate between layers.
        output_dropout: that of the last layer and of h~, which no other layer and no attention reads.

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
        hidden_dropout: float,
        output_dropout: float,
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
            hidden_dropout=hidden_dropout,
            output_dropout=output_dropout,
            masks="standard",
        )
        self.attention = attention
        self.dropout = BroadcastDropout(output_dropout, flag="--dropout-output", shared_dims=MASKS["standard"])

    def initial_state(self, layers: StackState) -> AttentionalState:
        """Start from states of the layers, with h~_0 = 0, (B, D_N)."""
        if not self.feeds:
            return {"layers": layers}
        like = next(state_tensors(layers))
        return {"layers": layers, "fed": like.new_zeros(like.size(0), self.stack.layers[-1].hidden_size)}

    def forward(
        self, x: Tensor, memory: Optional[Memory], state: AttentionalState, *, tokens: Optional[Tensor] = None
    ) -> AttentionalOutput:
        """Run over the embedded target tokens x (B, T, C); ``tokens`` (B, T) are for cells to read."""
        if self.attention is None:
            outputs = self.stack(x, state["layers"], tokens=tokens)
            return AttentionalOutput(outputs.layers, outputs.top, None, {"layers": outputs.state})
        assert memory is not None
        if self.feeds and x.size(1) > 1:
            return self._step_by_step(x, self.attention, memory, state, tokens=tokens)
        if self.feeds:
            x = torch.cat([x, state["fed"].unsqueeze(1)], dim=-1)
        outputs = self.stack(x, state["layers"], tokens=tokens)
        top, weights = self.attention(outputs.top, memory)
        new_state: AttentionalState = {"layers": outputs.state}
        if self.feeds:
            new_state["fed"] = top.squeeze(1)
        return AttentionalOutput([*outputs.layers, self.dropout(top)], top, weights, new_state)

    def _step_by_step(
        self, x: Tensor, attention: Attention, memory: Memory, state: AttentionalState, *, tokens: Optional[Tensor]
    ) -> AttentionalOutput:
        steps = self.stack.steps(x, tokens=tokens)
        attend = attention.steps(memory, num_steps=x.size(1))
        layers, fed = state["layers"], state["fed"]
        outputs: List[List[Tensor]] = []
        tops: List[Tensor] = []
        weights: List[Tensor] = []
        for t in range(x.size(1)):
            run = steps(t, fed, layers)
            fed, step_weights = attend(t, run.top)
            layers = run.state
            outputs.append(run.layers)
            tops.append(fed)
            weights.append(step_weights)
        top = torch.stack(tops, dim=1)
        return AttentionalOutput(
            layers=[*(torch.stack(steps, dim=1) for steps in zip(*outputs)), self.dropout(top)],
            top=top,
            attention=torch.stack(weights, dim=1),
            state={"layers": layers, "fed": fed},
        )
