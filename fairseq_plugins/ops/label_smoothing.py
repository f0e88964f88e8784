"""Label smoothing of every softmax of a mixture: what of its loss and gradient is the same for all words of a row.

Shapes: n tokens of a chunk, J experts, d latent width, V vocabulary. A row is one expert of one token: n * J rows.

With the rate e the loss of a token has e sum_j pi_j mean_v(-log p_j(v)), and mean_v(-log p_j(v)) is the log-sum-exp
of expert j's logits less their mean.
"""

from typing import NamedTuple, Union

import torch
from torch import Tensor

from fairseq_plugins.ops.mixture_gradients import MixtureGradients
from fairseq_plugins.ops.mixture_inputs import MixtureInputs


class LabelSmoothing(NamedTuple):
    """What a chunk needs to know of it.

    Attributes:
        rate: e, 0 < e < 1.
        mean_logits: mean_v z_j(v), (n, J).
    """

    rate: float
    mean_logits: Tensor


class MeanLogits:
    """mean_v of W k + b, and its gradients, which are alike for all words, without a pass over the logits.

    Args:
        inputs: W and b as the logits are made of them.
    """

    def __init__(self, inputs: MixtureInputs):
        dtype, self._vocab_size = inputs.log_prior.dtype, inputs.weight.size(0)
        self._row = inputs.weight.mean(dim=0, dtype=dtype)
        self._bias = 0.0 if inputs.bias is None else inputs.bias.mean(dtype=dtype)
        self._sum_of_rows = torch.zeros_like(self._row)
        self._sum_of_shares = torch.zeros_like(self._row[:1])

    def of_chunk(self, inputs: MixtureInputs) -> Tensor:
        """Those of the logits of a chunk, (n, J), whose targets may be lowered by margins."""
        means = inputs.latents.to(self._row.dtype) @ self._row + self._bias
        return means if inputs.margins is None else means - inputs.margins.values / self._vocab_size

    def subtract_gradients(
        self, shares: Tensor, inputs: MixtureInputs, *, chosen: Union[slice, Tensor], gradients: MixtureGradients
    ) -> None:
        """Take the gradients of sum_j shares_j mean_v(z_j) off those of the ``chosen`` tokens: shares (n, J).

        Those by W and b are taken off at the end, by :meth:`finish`.
        """
        if gradients.latents is not None:
            gradients.latents[chosen] -= shares.unsqueeze(-1) * self._row
        self._sum_of_rows += shares.flatten() @ inputs.latents.flatten(0, 1).to(shares.dtype)
        self._sum_of_shares += shares.sum()

    def finish(self, gradients: MixtureGradients) -> None:
        """Take what all chunks have added up to off the gradients by W and b."""
        if gradients.weight is not None:
            gradients.weight.sub_(self._sum_of_rows / self._vocab_size)
        if gradients.bias is not None:
            gradients.bias.sub_(self._sum_of_shares / self._vocab_size)
