"""Attention over the annotations of a source sentence.

Shapes: B sentences, T target steps, S source positions, H width of the query, M width of the annotations.
"""

from dataclasses import dataclass
from typing import Callable, Dict, Optional, Tuple, Type

import torch
from torch import Tensor, nn

from fairseq_plugins.modules.linear import Linear
from fairseq_plugins.ops.linear import linear
from fairseq_plugins.ops.precision import accumulation_dtype
from fairseq_plugins.ops.step_products import StepProducts


@dataclass
class Memory:
    """Annotations as attention reads them, computed once a sentence.

    Attributes:
        annotations: e, (B, S, M).
        keys: what a query is compared with, (B, S, *).
        padding: True where a position holds no token, (B, S), or None.
    """

    annotations: Tensor
    keys: Tensor
    padding: Optional[Tensor]


class Attention(nn.Module):
    """h~_t = tanh(W_c [h_t; c_t]), c_t = sum_i a_{t,i} e_i, a_t = softmax_i score(h_t, e_i)  (Luong et al. 2015).

    W_c has no bias. A subclass gives the score.

    Args:
        width: H, of the query and of h~.
        memory_width: M.

    Shape:
        query: (B, T, H); output: h~ (B, T, H), and the weights a (B, T, S) in float32 or wider.
    """

    def __init__(self, width: int, memory_width: int):
        super().__init__()
        self.combine = Linear(width + memory_width, width, bias=False)

    def keys(self, annotations: Tensor) -> Tensor:
        """What queries are compared with, (B, S, *): the annotations themselves, unless a subclass maps them."""
        return annotations

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """(B, T, S)."""
        raise NotImplementedError

    def step_scores(self, memory: Memory, mask: Tensor) -> Callable[[int, Tensor], Tensor]:
        """Step t and its query (B, H) to scores (B, S), of a sequence whose queries come one by one.

        A subclass may override this to compute beforehand what does not depend on the step.

        Args:
            memory: the annotations.
            mask: what is added to the scores, (T, B, S).
        """
        return lambda t, query: self.scores(query.unsqueeze(1), memory.keys).squeeze(1) + mask[t]

    def steps(self, memory: Memory, *, num_steps: int) -> "AttentionSteps":
        """The steps over a sequence whose queries come one by one."""
        return AttentionSteps(self, memory, num_steps=num_steps)

    def context(self, query: Tensor, memory: Memory) -> Tuple[Tensor, Tensor]:
        """c (B, T, M), and a (B, T, S) in float32 or wider."""
        scores = self.scores(query, memory.keys)
        if memory.padding is not None:
            scores = scores.masked_fill(memory.padding.unsqueeze(1), float("-inf"))
        weights = _softmax(scores)
        return torch.bmm(weights.to(memory.annotations.dtype), memory.annotations), weights

    def forward(self, query: Tensor, memory: Memory) -> Tuple[Tensor, Tensor]:
        context, weights = self.context(query, memory)
        return torch.tanh(self.combine(torch.cat([query, context], dim=-1))), weights


class AttentionSteps:
    """Attention of one sequence's steps; what does not depend on the step is computed at the start.

    Args:
        attention: the layer.
        memory: the annotations.
        num_steps: T.
    """

    def __init__(self, attention: Attention, memory: Memory, *, num_steps: int):
        annotations = memory.annotations
        num_rows, num_positions, memory_width = annotations.shape
        mask = annotations.new_zeros(num_rows, num_positions)
        if memory.padding is not None:
            mask = mask.masked_fill(memory.padding, float("-inf"))
        nothing = annotations.new_zeros(())
        combine = attention.combine
        self._scores = attention.step_scores(memory, mask.expand(num_steps, -1, -1))
        self._context = StepProducts(nothing.expand(num_steps, num_rows, memory_width), annotations)
        self._combine = StepProducts(nothing.expand(num_steps, num_rows, combine.out_features), combine.weight.t())

    def __call__(self, t: int, query: Tensor) -> Tuple[Tensor, Tensor]:
        """h~ (B, H), and the weights (B, S) in float32 or wider, of step t for a query (B, H)."""
        weights = _softmax(self._scores(t, query))
        context = self._context(t, weights)
        return torch.tanh(self._combine(t, torch.cat([query, context], dim=-1))), weights


def _softmax(scores: Tensor) -> Tensor:
    return torch.softmax(scores, dim=-1, dtype=accumulation_dtype(scores))


class DotAttention(Attention):
    """score = h . e, of equal widths."""

    def __init__(self, width: int, memory_width: int):
        super().__init__(width, memory_width)
        assert width == memory_width

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        return torch.bmm(query, keys.transpose(1, 2))

    def step_scores(self, memory: Memory, mask: Tensor) -> Callable[[int, Tensor], Tensor]:
        return StepProducts(mask, memory.keys.transpose(1, 2))


class GeneralAttention(Attention):
    """score = (W_a h) . e."""

    def __init__(self, width: int, memory_width: int):
        super().__init__(width, memory_width)
        self.query = Linear(width, memory_width, bias=False)

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        return torch.bmm(self.query(query), keys.transpose(1, 2))

    def step_scores(self, memory: Memory, mask: Tensor) -> Callable[[int, Tensor], Tensor]:
        # (W_a h) . e = h . (W_a' e): one product with all annotations in place of one a step
        keys = linear(memory.annotations.flatten(0, 1), self.query.weight.t(), None)
        return StepProducts(mask, keys.unflatten(0, memory.annotations.shape[:2]).transpose(1, 2))


class MLPAttention(Attention):
    """score = v . tanh(W_q h + W_k e)  (Bahdanau et al. 2015)."""

    def __init__(self, width: int, memory_width: int):
        super().__init__(width, memory_width)
        self.query = Linear(width, width, bias=False)
        self.key = Linear(memory_width, width, bias=False)
        self.score = Linear(width, 1, bias=False)

    def keys(self, annotations: Tensor) -> Tensor:
        return self.key(annotations)

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        return self.score(torch.tanh(self.query(query).unsqueeze(2) + keys.unsqueeze(1))).squeeze(-1)


ATTENTIONS: Dict[str, Type[Attention]] = {"dot": DotAttention, "general": GeneralAttention, "mlp": MLPAttention}
"""Values of ``--attention``, besides ``none``."""
