"""Gradients of the mixture loss, and what they are scaled by while they are in float16."""

from typing import NamedTuple, Optional, Sequence

import torch
from torch import Tensor

from fairseq_plugins.ops.float16_scale import float16_scale, logit_bound
from fairseq_plugins.ops.mixture_inputs import MixtureInputs


class MixtureGradients(NamedTuple):
    """The gradients by the tensors that learn, None by the others."""

    latents: Optional[Tensor]
    log_prior: Optional[Tensor]
    weight: Optional[Tensor]
    bias: Optional[Tensor]
    gate_features: Optional[Tensor]
    gate_weight: Optional[Tensor]
    gate_bias: Optional[Tensor]
    log_weight: Optional[Tensor]
    log_other: Optional[Tensor]

    @property
    def logits_learn(self) -> bool:
        """Whether the logits before the gate have a gradient."""
        return any(x is not None for x in (self.latents, self.weight, self.bias))

    @property
    def gate_learns(self) -> bool:
        """Whether any tensor of the gate has one."""
        return any(x is not None for x in (self.gate_features, self.gate_weight, self.gate_bias))

    @property
    def mixture_learns(self) -> bool:
        """Whether anything but the interpolation has one."""
        return self.logits_learn or self.gate_learns or self.log_prior is not None


def zero_gradients(
    tensors: Sequence[Optional[Tensor]], learn: Sequence[bool], *, dtype: torch.dtype
) -> MixtureGradients:
    """Of the tensors that learn, in the order of the fields.

    Args:
        tensors: None where there is none.
        learn: whether each has a gradient; what follows the tensors is left out.
        dtype: of the gradients.
    """
    return MixtureGradients(
        *(
            torch.zeros_like(x, dtype=dtype, memory_format=torch.contiguous_format)
            if x is not None and learns
            else None
            for x, learns in zip(tensors, learn)
        )
    )


class GradientScales(NamedTuple):
    """What the gradients of the base's inputs and of the gate's are multiplied by while they are in float16."""

    base: Optional[Tensor] = None
    gate: Optional[Tensor] = None


def float16_scales(inputs: MixtureInputs, weights: Tensor, *, chunk_size: int) -> GradientScales:
    """What keeps gradients by the logits of every chunk within float16.

    Args:
        inputs: of N tokens.
        weights: of their losses, (N).
        chunk_size: tokens of a chunk.
    """
    base = float16_scale(inputs.latents, inputs.weight, weights, chunk_size=chunk_size)
    gate = inputs.gate
    if gate is None:
        return GradientScales(base)
    # the gradients by the gate's scores are those by the logits, times these before the gate, times g (1 - g) <= 1/4
    factors = weights * (logit_bound(inputs.latents, inputs.weight, inputs.bias) / 4)
    return GradientScales(base, float16_scale(gate.features, gate.weight, factors, chunk_size=chunk_size))
