"""Random inputs of the mixture loss, its formula in probability space, and what autograd makes of it."""

from dataclasses import dataclass
from typing import Callable, Dict, NamedTuple, Optional, Tuple

import plain_formulas
import pytest
import torch
from torch import Tensor

from fairseq_plugins.ops.logit_gate import LogitGate
from fairseq_plugins.ops.mixture_chunk import Interpolation

BASE = ("latents", "log_prior", "weight", "bias")
GATE = ("gate_features", "gate_weight", "gate_bias")
OTHER = ("log_weight", "log_other")

SIZES = [(1, 507, 123, 20), (3, 252, 60, 7), (20, 123, 50, 12), (3, 1, 10, 4), (4, 30, 1, 5)]
"""Numbers of experts, words and tokens, and the width of the experts' hidden states."""
ALL_PARTS = dict(gate_width=6, interpolated=True)
SMOOTHED = dict(label_smoothing=0.1)

on_both_kernels = pytest.mark.usefixtures("kernel_set")
smoothed_or_not = pytest.mark.parametrize("smoothing", [0.0, 0.1])
gated_or_not = pytest.mark.parametrize("gate_width", [None, 6], ids=["no gate", "gated"])


class Loss(NamedTuple):
    loss: Tensor
    nll: Tensor


@dataclass
class Case:
    """Inputs in float64 that are exact in a narrower type: latents (N, J, d), weight (V, d).

    With a gate, gate_features (N, D_g), gate_weight (V, D_g) and gate_bias (V). With an interpolation, log_weight and
    log_other (N).
    """

    latents: Tensor
    log_prior: Tensor
    weight: Tensor
    bias: Tensor
    target: Tensor
    token_weights: Tensor
    gate_features: Optional[Tensor] = None
    gate_weight: Optional[Tensor] = None
    gate_bias: Optional[Tensor] = None
    log_weight: Optional[Tensor] = None
    log_other: Optional[Tensor] = None

    @property
    def learned(self) -> Tuple[str, ...]:
        return tuple(name for name in BASE + GATE + OTHER if getattr(self, name) is not None)

    def leaves(self, dtype: torch.dtype) -> Dict[str, Tensor]:
        """Copies that learn: logarithms in float32 or wider, the others in ``dtype``."""
        wide = torch.promote_types(dtype, torch.float32)
        dtypes = {name: wide if name.startswith("log_") else dtype for name in self.learned}
        return {name: getattr(self, name).to(dtypes[name], copy=True).requires_grad_() for name in self.learned}


def draw(
    num_experts, vocab_size, num_tokens, width, *, scale=1.0, dtype=torch.float32, gate_width=None, interpolated=False
) -> Case:
    """A case whose logits have a standard deviation of about ``scale``; a third of the tokens weigh nothing.

    Another distribution gives every second target nothing.
    """
    weights = torch.rand(num_tokens).masked_fill(torch.arange(num_tokens) % 3 == 1, 0)
    case = Case(
        latents=torch.randn(num_tokens, num_experts, width).to(dtype).double(),
        log_prior=torch.log_softmax(torch.randn(num_tokens, num_experts), dim=-1).double(),
        weight=(scale * torch.randn(vocab_size, width) / width**0.5).to(dtype).double(),
        bias=torch.randn(vocab_size).to(dtype).double(),
        target=torch.randint(vocab_size, (num_tokens,)),
        token_weights=weights.double(),
    )
    if gate_width is not None:
        case.gate_features = torch.randn(num_tokens, gate_width).to(dtype).double()
        case.gate_weight = (torch.randn(vocab_size, gate_width) / gate_width**0.5).to(dtype).double()
        case.gate_bias = torch.randn(vocab_size).to(dtype).double()
    if interpolated:
        share, probs = torch.rand(num_tokens), torch.rand(num_tokens)
        case.log_weight = torch.log1p(-share).double()
        case.log_other = (share * probs.masked_fill(torch.arange(num_tokens) % 2 == 0, 0)).log().double()
    return case


def token_losses(
    latents,
    log_prior,
    weight,
    target,
    *,
    bias,
    label_smoothing=0.0,
    gate=None,
    adversarial_epsilon=0.0,
    interpolation=None,
    **unused,
) -> Loss:
    """Loss and NLL of each token: the logarithm of the sum of probabilities, as the papers write it."""
    args = latents, log_prior.exp(), weight, bias, target
    loss, nll = plain_formulas.mixture_loss(*args, label_smoothing, gate, adversarial_epsilon)
    if interpolation is not None:
        both = -torch.log(interpolation.log_weight.exp() * torch.exp(-nll) + interpolation.log_other.exp())
        loss, nll = loss + (1 - label_smoothing) * (both - nll), both
    return Loss(loss, nll)


def formula(*args, token_weights, **options) -> Loss:
    """The weighted sum of :func:`token_losses`, to be taken in float64."""
    loss, nll = token_losses(*args, **options)
    return Loss((loss * token_weights).sum(), nll.masked_fill(token_weights == 0, 0).detach())


def plain(
    latents,
    log_prior,
    weight,
    target,
    *,
    bias,
    token_weights,
    label_smoothing=0.0,
    gate=None,
    adversarial_epsilon=0.0,
    chunk_size=None,
) -> Loss:
    """The careful path by autograd: everything after the matrix products is in log space and in float32.

    It has no chunks, so that their size is not read.
    """
    logits = torch.nn.functional.linear(latents, weight, bias)
    if adversarial_epsilon:
        wide = (x.to(log_prior.dtype) for x in (logits, latents, weight))
        logits = plain_formulas.lowered(*wide, target, adversarial_epsilon)
    if gate is not None:
        scores = torch.nn.functional.linear(gate.features, gate.weight, gate.bias).to(log_prior.dtype)
        logits = logits.to(log_prior.dtype) * torch.sigmoid(scores).unsqueeze(-2)
    log_softmax = torch.log_softmax(logits, dim=-1, dtype=log_prior.dtype)
    log_p = torch.logsumexp(log_softmax + log_prior.unsqueeze(-1), dim=-2)
    nll = -log_p.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    expert_mean = (log_prior.exp() * log_softmax.mean(dim=-1)).sum(dim=-1)
    loss = (1 - label_smoothing) * nll - label_smoothing * expert_mean
    return Loss((loss * token_weights).sum(), nll.masked_fill(token_weights == 0, 0).detach())


def call(function: Callable[..., Loss], case: Case, leaves: Dict[str, Tensor], **options) -> Loss:
    """The loss of a case with all its arguments."""
    parts = {"gate": (LogitGate, GATE), "interpolation": (Interpolation, OTHER)}
    given = {key: make(*map(leaves.get, names)) for key, (make, names) in parts.items() if names[0] in leaves}
    token_weights = case.token_weights.to(leaves["log_prior"].dtype)
    options = {"bias": leaves["bias"], "token_weights": token_weights, **given, **options}
    return function(leaves["latents"], leaves["log_prior"], leaves["weight"], case.target, **options)


def outcome(function: Callable[..., Loss], case: Case, dtype: torch.dtype = torch.float64, **options):
    """Loss, NLL and gradients of ``function`` with the case in ``dtype``."""
    leaves = case.leaves(dtype)
    loss, nll = call(function, case, leaves, **options)
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return {"loss": loss.detach(), "nll": nll, **dict(zip(leaves, gradients))}


def assert_same(ours, expected, rtol=1e-10, atol=1e-12):
    for name, value in expected.items():
        torch.testing.assert_close(
            ours[name], value, rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}"
        )
