"""Changes of a mixture's logits or distribution: gate, adversarial margins, interpolation.

Shapes: * any leading dimensions, N tokens or the n tokens of a chunk, J experts, d width of their hidden states, D_g
features of the gate, V words. A row is one expert of one token.
"""

from typing import NamedTuple, Optional, Union

import torch
from torch import Tensor

from fairseq_plugins.ops.matmul import accumulation_dtype, autocast_dtype, project
from fairseq_plugins.options import UserError

# The gate (Takase et al. 2017, eq. 6)


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

    def select(self, chosen: Union[slice, Tensor]) -> "LogitGate":
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

    Raises:
        UserError: if a tensor of the gate has a wrong shape, type or device; the message names it.
    """
    check_gate(gate, logits, vocab_size=logits.size(-1), caller="apply_gate", name="logits")
    scores = torch.nn.functional.linear(gate.features, gate.weight, gate.bias)
    dtype = accumulation_dtype(logits)
    return logits.to(dtype) * torch.sigmoid(scores.to(dtype)).unsqueeze(-2)


def check_gate(gate: Optional[LogitGate], inputs: Tensor, *, vocab_size: int, caller: str, name: str) -> None:
    """Check that a gate fits.

    Args:
        inputs: the tensor that the gate goes with, (*, J, any width), called ``name`` in the messages.
        caller: the function that was given the gate, for the messages.

    Raises:
        UserError: if a tensor of the gate has a wrong shape, type or device.
    """
    if gate is None:
        return
    num_features = gate.features.size(-1) if gate.features.dim() else 0
    leading = tuple(inputs.shape[:-2])
    expected_shapes = {
        "features": (*leading, num_features),
        "weight": (vocab_size, num_features),
        "bias": (vocab_size,),
    }
    if num_features == 0 or tuple(gate.features.shape) != expected_shapes["features"]:
        wanted = ", ".join([*map(str, leading), "width"])
        raise UserError(f"{caller}: gate.features is {tuple(gate.features.shape)}: it must be ({wanted})")
    for part, shape in expected_shapes.items():
        tensor = getattr(gate, part)
        if tuple(tensor.shape) != shape:
            raise UserError(f"{caller}: gate.{part} is {tuple(tensor.shape)}: it must be {shape}")
        if tensor.device != inputs.device:
            raise UserError(f"{caller}: gate.{part} is on {tensor.device}, {name} on {inputs.device}")
        if tensor.dtype != inputs.dtype and autocast_dtype(inputs) is None:
            raise UserError(f"{caller}: gate.{part} is {tensor.dtype}, {name} {inputs.dtype}: cast one")


def gated_logits(
    rows: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    *,
    gate: Optional[Tensor],
    dtype: torch.dtype,
    margins: "Optional[TargetMargins]" = None,
) -> Tensor:
    """The logits g * (W k + b) of a chunk in ``dtype``, (n * J, V), without a gradient.

    Args:
        rows: k, (n * J, d).
        weight: W, (V, d).
        bias: b, (V).
        gate: values g, (n, V).
        margins: of the n tokens. They are subtracted before the gate.
    """
    logits = project(rows, weight, bias, dtype=dtype)
    if margins is not None:
        margins.subtract(logits)
    if gate is not None:
        multiply_by_gate(logits, gate)
    return logits


def multiply_by_gate(logits: Tensor, values: Tensor) -> None:
    """Multiply logits, or gradients of gated logits, (n * J, V), in place by g (n, V)."""
    logits.view(values.size(0), -1, values.size(1)).mul_(values.unsqueeze(1))


def gate_gradient(products: Tensor, values: Tensor) -> Tensor:
    """Gradient by the scores F U' + c of a chunk, (n, V): (1 - g) sum_j z_j dL/dz_j.

    The logits z are those after the gate. The derivative of z by a score is g (1 - g) times the logit before the gate,
    which is (1 - g) z. So the logits before the gate need not be kept, nor z be divided by g.

    Args:
        products: z dL/dz, (n * J, V); overwritten where J = 1.
        values: g, (n, V); overwritten.
    """
    products = products.view(values.size(0), -1, values.size(1))
    total = products.squeeze(1) if products.size(1) == 1 else products.sum(dim=1)
    return total.mul_(torch.sub(values.new_ones(()), values, out=values))


# Margins by which adversarial training lowers the logits of target words (Wang, Gong & Liu 2019). The logit of a target
# y is that of a changed label, (w_y + dw_j) . k_j with dw_j = -eps |w_y| k_j / |k_j|, where w_y . k_j > 0. The change
# dw_j is a constant for the gradient, and the k_j that it is multiplied by is not. So the margin eps |w_y| |k_j| has a
# gradient with respect to k_j and none with respect to w_y.


class TargetMargins(NamedTuple):
    """Margins that are subtracted from the logits of the targets, one for each token and expert.

    Attributes:
        target: words, (N).
        values: margins, (N, J), in float32 or wider.
        slopes: each margin divided by |k_j|^2, (N, J): the gradient of a margin by k_j is its slope times k_j.
    """

    target: Tensor
    values: Tensor
    slopes: Tensor

    def select(self, chosen: Union[slice, Tensor]) -> "TargetMargins":
        """The margins of some tokens."""
        return TargetMargins(self.target[chosen], self.values[chosen], self.slopes[chosen])

    def subtract(self, logits: Tensor) -> None:
        """Lower the targets' logits among those of all words, (N * J, V), in place."""
        places = self._places(logits)
        lowered = logits.take(places) - self.values.flatten()
        logits.view(-1)[places] = lowered.to(logits.dtype)

    def at_targets(self, logits: Tensor) -> Tensor:
        """The elements of the targets, (N, J), among those of all words, (N * J, V)."""
        return logits.take(self._places(logits)).view_as(self.values)

    def latent_gradient(self, d_logits: Tensor, latents: Tensor) -> Tensor:
        """dL/dk that the margins add, (N, J, d), given that of the targets' lowered logits, (N, J)."""
        return -(d_logits * self.slopes).unsqueeze(-1) * latents

    def _places(self, logits: Tensor) -> Tensor:
        return target_places(self.target, num_experts=self.values.size(1), vocab_size=logits.size(1))


def adversarial_margins(latents: Tensor, weight: Tensor, target: Tensor, *, epsilon: float) -> TargetMargins:
    """The margins eps |w_y| |k_j| where w_y . k_j > 0, otherwise 0.

    The worst change of w_y by a vector of length eps |w_y| lowers the target's logit by so much.

    Args:
        latents: k, (N, J, d).
        weight: W, (V, d).
        target: y, (N); a word outside the vocabulary counts as the nearest inside.
        epsilon: eps, 0 <= eps < 1.
    """
    target = target.clamp(0, weight.size(0) - 1)
    dtype = accumulation_dtype(latents)
    rows = weight.index_select(0, target).to(dtype)
    products = torch.bmm(latents.to(dtype), rows.unsqueeze(2)).squeeze(2)
    lengths = torch.linalg.vector_norm(latents, dim=2, dtype=dtype)
    changes = epsilon * torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    nothing = (products <= 0) | (lengths == 0)
    return TargetMargins(
        target, (lengths * changes).masked_fill_(nothing, 0), (changes / lengths).masked_fill_(nothing, 0)
    )


def target_places(target: Tensor, *, num_experts: int, vocab_size: int) -> Tensor:
    """Indices of the targets (N) in the flattened scores of all words, (N * J): one for each expert."""
    words = target.repeat_interleave(num_experts)
    return torch.arange(0, words.numel() * vocab_size, vocab_size, device=words.device) + words


# Interpolation of the mixture with another distribution


class Interpolation(NamedTuple):
    """P(y) = exp(log_weight) P_mixture(y) + exp(log_other) for each target y.

    Attributes:
        log_weight: log of the mixture's weight, (*), in the type of the mixture's log pi.
        log_other: log of the other distribution's weight times what it gives the target, (*), likewise; -inf where
            that is nothing.
    """

    log_weight: Tensor
    log_other: Tensor

    def flattened(self) -> "Interpolation":
        """The same interpolation with one leading dimension, (N)."""
        return Interpolation(self.log_weight.flatten(), self.log_other.flatten())

    def select(self, chosen: Union[slice, Tensor]) -> "Interpolation":
        """The interpolation of some tokens, for shape (N)."""
        return Interpolation(self.log_weight[chosen], self.log_other[chosen])

    def nll(self, mixture_nll: Tensor) -> Tensor:
        """-log P(y), (*), given that of the mixture."""
        return -torch.logaddexp(self.log_weight - mixture_nll, self.log_other)

    def mixture_posterior(self, mixture_nll: Tensor, nll: Tensor) -> Tensor:
        """Posterior probability of the mixture given y, (*)."""
        return torch.exp(self.log_weight - mixture_nll + nll)

    def other_posterior(self, nll: Tensor) -> Tensor:
        """Posterior probability of the other distribution given y, (*), exact where it is small."""
        return torch.exp(self.log_other + nll)
