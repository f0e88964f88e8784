"""Attention over the annotations of a source sentence.

Shapes: B sentences, T target steps, S source positions, H width of the query, M width of the annotations.
"""

from dataclasses import dataclass
from typing import Dict, Optional, Tuple, Type

import torch
from torch import Tensor, nn

from fairseq_plugins.ops.precision import accumulation_dtype


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
        query: (B, T, H); output: h~ (B, T, H) and the weights a (B, T, S).
    """

    def __init__(self, width: int, memory_width: int):
        super().__init__()
        self.combine = nn.Linear(width + memory_width, width, bias=False)

    def keys(self, annotations: Tensor) -> Tensor:
        """What queries are compared with, (B, S, *): the annotations themselves, unless a subclass maps them."""
        return annotations

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """(B, T, S)."""
        raise NotImplementedError

    def context(self, query: Tensor, memory: Memory) -> Tuple[Tensor, Tensor]:
        """c (B, T, M) and a (B, T, S)."""
        scores = self.scores(query, memory.keys)
        if memory.padding is not None:
            scores = scores.masked_fill(memory.padding.unsqueeze(1), float("-inf"))
        weights = torch.softmax(scores, dim=-1, dtype=accumulation_dtype(scores)).to(scores.dtype)
        return torch.bmm(weights, memory.annotations), weights

    def forward(self, query: Tensor, memory: Memory) -> Tuple[Tensor, Tensor]:
        context, weights = self.context(query, memory)
        return torch.tanh(self.combine(torch.cat([query, context], dim=-1))), weights


class DotAttention(Attention):
    """score = h . e.

    Raises:
        ValueError: if query and annotations differ in width.
    """

    def __init__(self, width: int, memory_width: int):
        super().__init__(width, memory_width)
        if width != memory_width:
            raise ValueError(
                f"--attention dot compares vectors of {width} and {memory_width} features: make the encoder as wide as "
                "the decoder, or take --attention general"
            )

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        return torch.bmm(query, keys.transpose(1, 2))


class GeneralAttention(Attention):
    """score = (W_a h) . e."""

    def __init__(self, width: int, memory_width: int):
        super().__init__(width, memory_width)
        self.query = nn.Linear(width, memory_width, bias=False)

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        return torch.bmm(self.query(query), keys.transpose(1, 2))


class MLPAttention(Attention):
    """score = v . tanh(W_q h + W_k e)  (Bahdanau et al. 2015)."""

    def __init__(self, width: int, memory_width: int):
        super().__init__(width, memory_width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(memory_width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

    def keys(self, annotations: Tensor) -> Tensor:
        return self.key(annotations)

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        return self.score(torch.tanh(self.query(query).unsqueeze(2) + keys.unsqueeze(1))).squeeze(-1)


ATTENTIONS: Dict[str, Type[Attention]] = {"dot": DotAttention, "general": GeneralAttention, "mlp": MLPAttention}
"""Values of ``--attention``, besides ``none``."""
