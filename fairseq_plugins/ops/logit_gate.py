"""The gate on a mixture's logits (Takase et al. 2017, eq. 6).

Shapes: * any leading dimensions, N tokens or the n tokens of a chunk, J experts, d width of their hidden states, D_g
features of the gate, V words. A row is one expert of one token.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from fairseq_plugins.ops.matmul import accumulation_dtype, project


class LogitGate(NamedTuple):
    """The gate g = sigmoid(F U' + c), one value for each token and word. It multiplies the logits of all experts.

    Attributes:
        features: F, (*, D_g).
        weight: U, (V, D_g).
        bias: c, (V).
    """

    features: Tensor
    weight: Tensor
    bias: Tensor

    def flattened(self) -> "LogitGate":
        """The same gate with features (N, D_g), a row for each token."""
        return self._replace(features=self.features.reshape(-1, self.features.size(-1)))

    def select(self, chosen: slice) -> "LogitGate":
        """The gate of some tokens, for features (N, D_g)."""
        return self._replace(features=self.features[chosen])

    def values(self, dtype: torch.dtype) -> Tensor:
        """g in ``dtype``, (N, V), without a gradient, for features (N, D_g)."""
        return project(self.features, self.weight, self.bias, dtype=dtype).sigmoid_()

    def with_operands_in(self, dtype: torch.dtype) -> "LogitGate":
        """The same gate with F and U, the operands of its matrix product, in another type."""
        return self._replace(features=self.features.to(dtype), weight=self.weight.to(dtype))


def apply_gate(logits: Tensor, gate: LogitGate) -> Tensor:
    """g * z, differentiable.

    Args:
        logits: z, (*, J, V).

    Returns:
        (*, J, V) in float32 or wider.
    """
    scores = torch.nn.functional.linear(gate.features, gate.weight, gate.bias)
    dtype = accumulation_dtype(logits)
    return logits.to(dtype) * torch.sigmoid(scores.to(dtype)).unsqueeze(-2)


def gated_logits(
    rows: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    *,
    gate: Optional[Tensor],
    dtype: torch.dtype,
) -> Tensor:
    """The logits g * (W k + b) of a chunk in ``dtype``, (n * J, V), without a gradient.

    Args:
        rows: k, (n * J, d).
        weight: W, (V, d).
        bias: b, (V).
        gate: values g, (n, V).
    """
    logits = project(rows, weight, bias, dtype=dtype)
    if gate is not None:
        multiply_by_gate(logits, gate)
    return logits


def multiply_by_gate(logits: Tensor, values: Tensor) -> None:
    """Multiply logits, or gradients of gated logits, (n * J, V), in place by g (n, V)."""
    logits.view(values.size(0), -1, values.size(1)).mul_(values.unsqueeze(1))


def gate_gradient(products: Tensor, values: Tensor) -> Tensor:
    """Gradient by the scores F U' + c of a chunk, (n, V): (1 - g) sum_j z_j dL/dz_j.

    Here z are the logits after the gate. The derivative of z by a score is g (1 - g) times the logit before the gate,
    which equals (1 - g) z. So the logits before the gate are not needed.

    Args:
        products: z dL/dz, (n * J, V); overwritten where J = 1.
        values: g, (n, V); overwritten.
    """
    products = products.view(values.size(0), -1, values.size(1))
    total = products.squeeze(1) if products.size(1) == 1 else products.sum(dim=1)
    return total.mul_(torch.sub(values.new_ones(()), values, out=values))
