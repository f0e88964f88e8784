"""Attention over the annotations of a source sentence, and recurrent decoder layers with attention on top.

Shapes: B sentences, T target steps, S source positions, H width of queries and annotations, C width of the target
embedding, D_n width of recurrent layer n, N index of the last one.
"""

from dataclasses import dataclass
from typing import Dict, List, NotRequired, Optional, Sequence, Tuple, Type, TypedDict

import torch
from torch import Tensor, nn

from fairseq_plugins.modules.cell import state_tensors
from fairseq_plugins.modules.layers import Linear
from fairseq_plugins.modules.lstm import WeightDropLSTM
from fairseq_plugins.modules.stack import RecurrentStack, StackOutput, StackState
from fairseq_plugins.ops.attentional_lstm import attentional_lstm
from fairseq_plugins.ops.matmul import accumulation_dtype, linear
from fairseq_plugins.ops.recurrence import StepProducts
from fairseq_plugins.options import UserError


@dataclass
class Memory:
    """Annotations and keys of a batch of sentences, computed once.

    Attributes:
        annotations: e, (B, S, H).
        keys: :meth:`Attention.keys` of the annotations, (B, S, *).
        padding: True at positions without a token, (B, S), or None.
    """

    annotations: Tensor
    keys: Tensor
    padding: Optional[Tensor]


class Attention(nn.Module):
    """h~_t = tanh(W_c [h_t; c_t]), c_t = sum_i a_{t,i} e_i, a_t = softmax_i score(h_t, e_i)  (Luong et al. 2015).

    W_c has no bias. A subclass defines the score.

    Args:
        width: H, of queries, annotations and h~.

    Shape:
        query: (B, T, H); output: h~ (B, T, H), and the weights a (B, T, S) in float32 or wider.
    """

    def __init__(self, width: int):
        super().__init__()
        self.combine = Linear(2 * width, width, bias=False)

    def keys(self, annotations: Tensor) -> Tensor:
        """Keys that queries are compared with, (B, S, *), by default the annotations."""
        return annotations

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """Scores (B, T, S) of queries (B, T, H) and keys."""
        raise NotImplementedError

    def dot_keys(self, memory: Memory) -> Optional[Tensor]:
        """Keys whose dot products with the queries are the scores, (B, S, H), or None if there are none."""
        return None

    def context(self, query: Tensor, memory: Memory) -> Tuple[Tensor, Tensor]:
        """c (B, T, H), and a (B, T, S) in float32 or wider."""
        scores = self.scores(query, memory.keys)
        if memory.padding is not None:
            scores = scores.masked_fill(memory.padding.unsqueeze(1), float("-inf"))
        weights = torch.softmax(scores, dim=-1, dtype=accumulation_dtype(scores))
        return torch.bmm(weights.to(memory.annotations.dtype), memory.annotations), weights

    def forward(self, query: Tensor, memory: Memory) -> Tuple[Tensor, Tensor]:
        context, weights = self.context(query, memory)
        return torch.tanh(self.combine(torch.cat([query, context], dim=-1))), weights


class DotAttention(Attention):
    """score = h . e."""

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        return torch.bmm(query, keys.transpose(1, 2))

    def dot_keys(self, memory: Memory) -> Optional[Tensor]:
        return memory.keys


class GeneralAttention(Attention):
    """score = (W_a h) . e."""

    def __init__(self, width: int):
        super().__init__(width)
        self.query = Linear(width, width, bias=False)

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        return torch.bmm(self.query(query), keys.transpose(1, 2))

    def dot_keys(self, memory: Memory) -> Optional[Tensor]:
        # (W_a h) . e = h . (W_a' e): one product with all annotations instead of one in each step
        return linear(memory.annotations, self.query.weight.t(), None)


class MLPAttention(Attention):
    """score = v . tanh(W_q h + W_k e)  (Bahdanau et al. 2015)."""

    def __init__(self, width: int):
        super().__init__(width)
        self.query = Linear(width, width, bias=False)
        self.key = Linear(width, width, bias=False)
        self.score = Linear(width, 1, bias=False)

    def keys(self, annotations: Tensor) -> Tensor:
        return self.key(annotations)

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        return self.score(torch.tanh(self.query(query).unsqueeze(2) + keys.unsqueeze(1))).squeeze(-1)


ATTENTIONS: Dict[str, Type[Attention]] = {"dot": DotAttention, "general": GeneralAttention, "mlp": MLPAttention}
"""Values of ``--attention`` besides ``none``."""


class AttentionalState(TypedDict):
    """State of an :class:`AttentionalStack` after a step.

    Attributes:
        layers: state of the recurrent layers.
        fed: the last h~, (B, D_N), with input feeding.
    """

    layers: StackState
    fed: NotRequired[Tensor]


class AttentionalStack(nn.Module):
    """Recurrent layers with attention on top, and with input feeding of h~ to the first layer (Luong et al. 2015).

    Without input feeding each layer and the attention run over all target steps at once. With it only what depends on
    the step before is computed step by step, by one function for LSTM layers whose attention has
    :meth:`Attention.dot_keys`. A single step, as in decoding, needs no loop.

    Args:
        stack: the layers, with standard dropout. Attention reads the last one before its dropout. h~ is dropped at the
            same rate. With input feeding the first layer reads C + D_N features.
        attention: of width D_N, or None.
        feeds: whether there is input feeding.

    Raises:
        UserError: on input feeding without attention.
    """

    def __init__(self, stack: RecurrentStack, *, attention: Optional[Attention], feeds: bool):
        super().__init__()
        if feeds and attention is None:
            raise UserError("--input-feeding on feeds the attention's output back: take an --attention, or off")
        self.stack = stack
        self.attention = attention
        self.feeds = feeds

    def initial_state(self, layers: StackState) -> AttentionalState:
        """The initial state, with given states of the layers and h~_0 = 0, (B, D_N)."""
        if not self.feeds:
            return {"layers": layers}
        like = next(state_tensors(layers))
        return {"layers": layers, "fed": like.new_zeros(like.size(0), self.stack.layers[-1].hidden_size)}

    def forward(
        self, x: Tensor, memory: Optional[Memory], state: AttentionalState, *, tokens: Optional[Tensor] = None
    ) -> StackOutput:
        """Run over the embedded target tokens x (B, T, C). Cells may read ``tokens`` (B, T).

        The outputs of the layers and, with attention, h~ are the ``layers``. The ``state`` is an
        :class:`AttentionalState`.
        """
        if self.attention is None:
            outputs = self.stack(x, state["layers"], tokens=tokens)
            return StackOutput(outputs.layers, outputs.top, {"layers": outputs.state})
        assert memory is not None
        if self.feeds and x.size(1) > 1:
            layers = [layer for layer in self.stack.layers if type(layer) is WeightDropLSTM]
            keys = self.attention.dot_keys(memory) if len(layers) == len(self.stack.layers) else None
            if keys is None:
                return self._step_by_step(x, self.attention, memory, state, tokens=tokens)
            return self._fused(x, layers, self.attention.combine, memory, keys, state)
        if self.feeds:
            x = torch.cat([x, state["fed"].unsqueeze(1)], dim=-1)
        outputs = self.stack(x, state["layers"], tokens=tokens)
        top, weights = self.attention(outputs.top, memory)
        new_state: AttentionalState = {"layers": outputs.state}
        if self.feeds:
            new_state["fed"] = top.squeeze(1)
        return StackOutput([*outputs.layers, self.stack.dropouts[-1](top)], top, new_state, weights)

    def _fused(
        self,
        x: Tensor,
        layers: Sequence[WeightDropLSTM],
        combine: Linear,
        memory: Memory,
        keys: Tensor,
        state: AttentionalState,
    ) -> StackOutput:
        """All steps as one function, given keys (B, S, H) whose dot products with the queries are the scores."""
        inputs = [layer.precompute(x if n == 0 else x[..., :0]) for n, layer in enumerate(layers)]
        masks = [None if mask is None else mask.transpose(0, 1) for mask in self.stack.draw_masks(x)]
        outputs, tops, weights, states = attentional_lstm(
            [
                (*parts, part["h"], part["c"], mask)
                for parts, part, mask in zip(inputs, state["layers"], [*masks, None])
            ],
            state["fed"],
            keys=keys,
            annotations=memory.annotations,
            padding=memory.padding,
            combine=combine.weight,
            graphs=self.stack.graphs,
        )
        *lower, last = (output.transpose(0, 1) for output in outputs)
        top, dropout = tops.transpose(0, 1), self.stack.dropouts[-1]
        return StackOutput(
            layers=[*lower, dropout(last), dropout(top)],
            top=top,
            state={"layers": [{"h": h, "c": c} for h, c in states], "fed": tops[-1]},
            attention=weights.transpose(0, 1),
        )

    def _step_by_step(
        self, x: Tensor, attention: Attention, memory: Memory, state: AttentionalState, *, tokens: Optional[Tensor]
    ) -> StackOutput:
        step, dropout = self.stack.steps(x, tokens=tokens), self.stack.dropouts[-1]
        layers, fed = state["layers"], state["fed"]
        combine = StepProducts(fed.new_zeros(()).expand(x.size(1), *fed.shape), attention.combine.weight.t())
        outputs: List[List[Tensor]] = []
        tops: List[Tensor] = []
        weights: List[Tensor] = []
        for t in range(x.size(1)):
            run = step(t, fed, layers)
            context, step_weights = attention.context(run.top.unsqueeze(1), memory)
            fed = torch.tanh(combine(t, torch.cat([run.top, context.squeeze(1)], dim=-1)))
            layers = run.state
            outputs.append(run.layers)
            tops.append(fed)
            weights.append(step_weights)
        top = torch.stack(tops, dim=1)
        *lower, last = (torch.stack(steps_of_layer, dim=1) for steps_of_layer in zip(*outputs))
        return StackOutput(
            layers=[*lower, dropout(last), dropout(top)],
            top=top,
            state={"layers": layers, "fed": fed},
            attention=torch.cat(weights, dim=1),
        )
