"""Negative log-likelihood of a mixture of softmaxes at the price of its matrix products.

Shapes: * any leading dimensions, N tokens in all, J experts, d latent width, V vocabulary.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from fairseq_plugins.ops.chunked_mixture_nll import ChunkedMixtureNLL
from fairseq_plugins.ops.interpolation import Interpolation
from fairseq_plugins.ops.logit_gate import LogitGate
from fairseq_plugins.ops.mixture_arguments import LossOptions, check_arguments, check_target_range


class MixtureLoss(NamedTuple):
    """What :func:`mixture_nll` returns.

    Attributes:
        loss: weighted loss in nats, a scalar for ``reduction="sum"``, (*) for ``"none"``.
        nll: -log P(target) of every token, (*), without gradient and label smoothing; 0 where a token is ignored. An
            ``adversarial_epsilon`` lowers P(target) here, too.
    """

    loss: Tensor
    nll: Tensor


def mixture_nll(
    latents: Tensor,
    log_prior: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Optional[Tensor] = None,
    gate: Optional[LogitGate] = None,
    interpolation: Optional[Interpolation] = None,
    token_weights: Optional[Tensor] = None,
    ignore_index: Optional[int] = None,
    label_smoothing: float = 0.0,
    adversarial_epsilon: float = 0.0,
    reduction: str = "sum",
    chunk_size: Optional[int] = None,
    chunk_dtype: Optional[torch.dtype] = None,
) -> MixtureLoss:
    """Loss of P(v) = sum_j pi_j softmax(W k_j + b)_v  (Yang et al. 2018, eq. 2; Takase et al. 2018, eq. 7).

    The loss of a token is (1 - e) NLL + e sum_j pi_j mean_v(-log p_j(v)) with e = ``label_smoothing`` and the softmaxes
    p_j: every expert is smoothed, for smoothing P alone sets one expert aside that is uniform and leaves the others as
    sure as they like. Tokens are processed in chunks; the gradients of their weighted sum are formed in the forward
    pass from each chunk's logits,

        d NLL / d z_{j,v} = r_j (p_j(v) - [v = target]),   d NLL / d log pi_j = -r_j,

    where r_j is the share of expert j in P(target), and only multiplied by the incoming gradient in the
    backward pass. So one chunk of logits is held (beside it half a chunk for 16-bit operands), and training costs three
    matrix products; without gradients, one. Losses, sums over chunks and, but for ``chunk_dtype``, softmaxes are in
    float32 or wider; products of 16-bit operands, autocast's included, are rounded to 16 bits. Tokens of weight zero
    are left out of the products.

    A gate makes the logits g * (W k_j + b) and adds three products of its own width, or one if none of its tensors
    learns; 1 + 1 / J more chunks are held, or 1 / J. The products for the gradients of what is frozen are left out.

    With an ``adversarial_epsilon`` the logits of each target y are lower by eps |w_y| |k_j| for the experts with
    w_y . k_j > 0 (Wang, Gong & Liu 2019), before the gate; P is that of the lowered logits throughout, label smoothing
    included. The subtracted margin has a gradient by k_j and none by w_y: the change of w_y is a constant, and k_j,
    which it is multiplied by, is not. So dL/dk_j gains (1 - p_j(y)) r_j eps |w_y| k_j / |k_j|. It costs a row of W a
    token, and nothing a word.

    An interpolation makes P(target) that of the mixture and another distribution; label smoothing remains the
    mixture's: of the sum above, only the NLL is that of both.

    Args:
        latents: k, (*, J, d).
        log_prior: log pi, (*, J), normalised over J, float32 or wider; -inf where pi is zero.
        weight: W, (V, d).
        target: words to score, (*), int64, 0 <= target < V where a token is not ignored.
        bias: b, (V), finite.
        gate: g, one value a token and word that multiplies the logits of all experts, with features (*, D_g).
        interpolation: of the mixture with another distribution, whose gradients are formed as well; none by default.
        token_weights: factor of each token's loss, (*), without gradient; by default one. On a GPU, giving them or
            ``ignore_index`` waits for the device once, to count the tokens.
        ignore_index: target of tokens that count as if their weight were zero.
        label_smoothing: e, 0 <= e < 1.
        adversarial_epsilon: eps, 0 <= eps < 1; 0 subtracts nothing.
        reduction: "sum" over all tokens, for training; "none", a loss for each token, for scoring.
        chunk_size: tokens of a chunk; by default as the device's memory or cache suggests. Results differ by
            rounding only.
        chunk_dtype: torch.bfloat16 to hold and multiply a chunk in 16 bits, whatever the type of latents and W:
            operands and results of its products, logits and probabilities. It takes half the time where a processor
            has such products. Losses, sums over chunks and gradients stay in float32 or wider; with a gate, logits
            and probabilities do as well.

    Raises:
        ValueError: if an argument has a wrong shape, type, device or value (the message names it), or if
            ``reduction="none"`` is called where a gradient would be needed.
        RuntimeError: if a second derivative is taken.
    """
    options = LossOptions(
        label_smoothing=label_smoothing,
        adversarial_epsilon=adversarial_epsilon,
        reduction=reduction,
        chunk_size=chunk_size,
        chunk_dtype=chunk_dtype,
        may_skip=token_weights is not None or ignore_index is not None,
        differentiate=torch.is_grad_enabled(),
    )
    check_arguments(
        latents,
        log_prior,
        weight,
        target,
        bias=bias,
        token_weights=token_weights,
        gate=gate,
        interpolation=interpolation,
        options=options,
    )
    num_tokens, (num_experts, width) = target.numel(), latents.shape[-2:]
    weights = torch.ones_like(target, dtype=log_prior.dtype) if token_weights is None else token_weights.detach()
    if ignore_index is not None:
        weights = weights.masked_fill(target.eq(ignore_index), 0)
    check_target_range(target, weights=weights, vocab_size=weight.size(0))
    loss, nll = ChunkedMixtureNLL.apply(
        latents.reshape(num_tokens, num_experts, width),
        log_prior.reshape(num_tokens, num_experts),
        weight,
        bias,
        *((None, None, None) if gate is None else gate.flattened()),
        *((None, None) if interpolation is None else interpolation.flattened()),
        target.reshape(num_tokens),
        weights.reshape(num_tokens).to(log_prior.dtype),
        options,
    )
    return MixtureLoss(loss=loss if reduction == "sum" else loss.view(target.shape), nll=nll.view(target.shape))
