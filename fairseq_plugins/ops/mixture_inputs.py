"""Inputs of the mixture loss, and their logits.

Shapes: N tokens, J experts, d latent width, D_g features of the gate, V vocabulary.
"""

from typing import NamedTuple, Optional, Union

import torch
from torch import Tensor

from fairseq_plugins.ops.logit_gate import LogitGate, gated_logits
from fairseq_plugins.ops.mixture_arguments import LossOptions
from fairseq_plugins.ops.target_margins import TargetMargins, adversarial_margins

BLOCK_ROWS = 4096
"""Rows of W that are centred at a time, so that no other copy of it is held."""


class MixtureInputs(NamedTuple):
    """The tensors of the mixture loss that may learn.

    Attributes:
        latents: k, (N, J, d).
        log_prior: log pi, (N, J).
        weight: W, (V, d).
        bias: b, (V), or None.
        gate: g with features (N, D_g), or None.
        margins: that lower the targets' logits before the gate, or None; k learns through them, W does not.
    """

    latents: Tensor
    log_prior: Tensor
    weight: Tensor
    bias: Optional[Tensor]
    gate: Optional[LogitGate]
    margins: Optional[TargetMargins] = None

    def with_margins(self, target: Tensor, *, epsilon: float) -> "MixtureInputs":
        """The same with the margins of the targets (N)."""
        return self._replace(margins=adversarial_margins(self.latents, self.weight, target, epsilon=epsilon))

    def with_operands_in(self, dtype: torch.dtype) -> "MixtureInputs":
        """The operands of matrix products in another type."""
        gate = None if self.gate is None else self.gate.with_operands_in(dtype)
        return self._replace(latents=self.latents.to(dtype), weight=self.weight.to(dtype), gate=gate)

    def centred(self, target: Tensor, weights: Tensor, *, dtype: torch.dtype) -> "MixtureInputs":
        """The same with W in ``dtype`` and b, less the means of the targets' rows, which no softmax notices.

        It brings the logits of probable words near zero, where 16 bits are densest. The gradients are the same, too,
        because those by a row's logits add up to zero.
        """
        shares = (weights != 0).to(weights.dtype)
        shares /= shares.sum().clamp(min=1)
        words = target.clamp(0, self.weight.size(0) - 1)

        def centred(x: Tensor, dtype: torch.dtype) -> Tensor:
            mean = (shares @ x[words].to(shares.dtype)).nan_to_num(0.0, 0.0, 0.0)
            result = torch.empty_like(x, dtype=dtype)
            for block, rows in zip(result.split(BLOCK_ROWS), x.split(BLOCK_ROWS)):
                block.copy_(rows - mean)
            return result

        bias = None if self.bias is None else centred(self.bias, self.bias.dtype)
        return self._replace(weight=centred(self.weight, dtype), bias=bias)

    def of_tokens(self, chosen: Union[slice, Tensor]) -> "MixtureInputs":
        """Those of a chunk."""
        gate = None if self.gate is None else self.gate.of_tokens(chosen)
        margins = None if self.margins is None else self.margins.of_tokens(chosen)
        latents, log_prior = self.latents[chosen], self.log_prior[chosen]
        return self._replace(latents=latents, log_prior=log_prior, gate=gate, margins=margins)

    def gate_values(self) -> Optional[Tensor]:
        """g, (N, V), or None."""
        return None if self.gate is None else self.gate.values(self.log_prior.dtype)

    def logits(self, gate: Optional[Tensor], *, options: LossOptions) -> Tensor:
        """g * (W k + b), less the margins before the gate, (N * J, V), with the values of the gate."""
        narrow = options.chunk_dtype is not None and gate is None
        dtype = self.latents.dtype if narrow else self.log_prior.dtype
        return gated_logits(
            self.latents.flatten(0, 1), self.weight, self.bias, gate=gate, dtype=dtype, margins=self.margins
        )
