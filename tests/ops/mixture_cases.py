"""Random inputs of the mixture loss, its formula in probability space, and what autograd makes of it."""

from dataclasses import dataclass
from typing import Callable, Dict, NamedTuple

import plain_formulas
import torch
from torch import Tensor

LEARNED = ("latents", "log_prior", "weight", "bias")


class Loss(NamedTuple):
    loss: Tensor
    nll: Tensor


@dataclass
class Case:
    """Inputs in float64 that are exact in a narrower type: latents (N, J, d), weight (V, d)."""

    latents: Tensor
    log_prior: Tensor
    weight: Tensor
    bias: Tensor
    target: Tensor
    token_weights: Tensor

    def leaves(self, dtype: torch.dtype) -> Dict[str, Tensor]:
        """Copies that learn: log_prior in float32 or wider, the others in ``dtype``."""
        wide = torch.promote_types(dtype, torch.float32)
        dtypes = {name: wide if name == "log_prior" else dtype for name in LEARNED}
        return {name: getattr(self, name).to(dtypes[name], copy=True).requires_grad_() for name in LEARNED}


def draw(num_experts, vocab_size, num_tokens, width, *, scale=1.0, dtype=torch.float32) -> Case:
    """A case whose logits have a standard deviation of about ``scale``; a third of the tokens weigh nothing."""
    weights = torch.rand(num_tokens).masked_fill(torch.arange(num_tokens) % 3 == 1, 0)
    return Case(
        latents=torch.randn(num_tokens, num_experts, width).to(dtype).double(),
        log_prior=torch.log_softmax(torch.randn(num_tokens, num_experts), dim=-1).double(),
        weight=(scale * torch.randn(vocab_size, width) / width**0.5).to(dtype).double(),
        bias=torch.randn(vocab_size).to(dtype).double(),
        target=torch.randint(vocab_size, (num_tokens,)),
        token_weights=weights.double(),
    )


def formula(latents, log_prior, weight, target, *, bias, token_weights, label_smoothing=0.0) -> Loss:
    """The logarithm of the sum of probabilities, as the papers write it; to be taken in float64."""
    loss, nll = plain_formulas.mixture_loss(latents, log_prior.exp(), weight, bias, target, label_smoothing)
    return Loss((loss * token_weights).sum(), nll.masked_fill(token_weights == 0, 0).detach())


def plain(latents, log_prior, weight, target, *, bias, token_weights, label_smoothing=0.0) -> Loss:
    """The careful path by autograd: everything after the matrix product is in log space and in float32."""
    logits = torch.nn.functional.linear(latents, weight, bias)
    log_softmax = torch.log_softmax(logits, dim=-1, dtype=log_prior.dtype)
    log_p = torch.logsumexp(log_softmax + log_prior.unsqueeze(-1), dim=-2)
    nll = -log_p.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    loss = (1 - label_smoothing) * nll - label_smoothing * log_p.mean(dim=-1)
    return Loss((loss * token_weights).sum(), nll.masked_fill(token_weights == 0, 0).detach())


def outcome(function: Callable[..., Loss], case: Case, dtype: torch.dtype = torch.float64, **options):
    """Loss, NLL and gradients of ``function`` with the case in ``dtype``."""
    leaves = case.leaves(dtype)
    loss, nll = function(
        leaves["latents"],
        leaves["log_prior"],
        leaves["weight"],
        case.target,
        bias=leaves["bias"],
        token_weights=case.token_weights.to(leaves["log_prior"].dtype),
        **options,
    )
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return {"loss": loss.detach(), "nll": nll, **dict(zip(LEARNED, gradients))}
