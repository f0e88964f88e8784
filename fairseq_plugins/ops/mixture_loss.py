"""Negative log-likelihood of a mixture of softmaxes at the price of its matrix products.

Shapes: * any leading dimensions, N tokens in all, J experts, d latent width, V vocabulary.
"""

from functools import partial
from typing import List, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor

from fairseq_plugins.ops.logit_gate import Interpolation, LogitGate, TargetMargins, gate_gradient, multiply_by_gate
from fairseq_plugins.ops.matmul import add_matmul, autocast_dtype, backward_keeps_graph, matmul
from fairseq_plugins.ops.mixture_chunk import (
    GradientScales,
    LabelSmoothing,
    LogitGradient,
    LossOptions,
    MeanLogits,
    MixtureChunk,
    MixtureGradients,
    MixtureInputs,
    check_arguments,
    check_target_range,
    cut,
    default_chunk_size,
    even_chunk_size,
    float16_scales,
    zero_gradients,
)

# The mixture loss as a function of autograd: chunk by chunk, with its gradients formed in the forward pass.
#
# Shapes: N tokens, n tokens of a chunk, J experts, d latent width, D_g features of the gate, V vocabulary.
# A row is one expert of one token: n * J rows a chunk.


class ChunkedMixtureNLL(torch.autograd.Function):
    """Loss and NLL, both (N), the loss summed to a scalar for ``reduction="sum"``.

    Takes latents (N, J, d), log_prior (N, J), weight (V, d), bias (V) or None, the gate's features (N, D_g),
    weight (V, D_g) and bias (V), each None without a gate, the log_weight and log_other (N) of an interpolation, each
    None without one, and target and weights (N).
    """

    @staticmethod
    # pyrefly: ignore[bad-override]
    def forward(
        ctx: "_Context",
        latents: Tensor,
        log_prior: Tensor,
        weight: Tensor,
        bias: Optional[Tensor],
        gate_features: Optional[Tensor],
        gate_weight: Optional[Tensor],
        gate_bias: Optional[Tensor],
        log_weight: Optional[Tensor],
        log_other: Optional[Tensor],
        target: Tensor,
        weights: Tensor,
        options: LossOptions,
    ) -> Tuple[Tensor, Tensor]:
        gate = None
        if gate_features is not None:
            assert gate_weight is not None and gate_bias is not None
            gate = LogitGate(gate_features, gate_weight, gate_bias)
        interpolation = None
        if log_weight is not None:
            assert log_other is not None
            interpolation = Interpolation(log_weight, log_other)
        inputs = MixtureInputs(latents, log_prior, weight, bias, gate)
        tensors = (latents, log_prior, weight, bias, gate_features, gate_weight, gate_bias, log_weight, log_other)
        ctx.dtypes = [None if x is None else x.dtype for x in tensors]
        operand_dtype = options.chunk_dtype or autocast_dtype(latents) or latents.dtype
        chunk_size = options.chunk_size or default_chunk_size(
            latents.size(1), weight.size(0), dtype=log_prior.dtype, device=latents.device
        )
        chunk_size = even_chunk_size(latents.size(0), chunk_size)
        scales = GradientScales()
        if operand_dtype == torch.float16 and weights.numel():
            scales = float16_scales(inputs, weights, chunk_size=chunk_size)
        ctx.scales = scales
        learn = [needed and options.differentiate for needed in ctx.needs_input_grad]
        ctx.gradients = zero_gradients(tensors, learn, dtype=log_prior.dtype)
        with torch.autocast(latents.device.type, enabled=False):
            if options.adversarial_epsilon > 0:
                inputs = inputs.with_margins(target, epsilon=options.adversarial_epsilon)
            if options.chunk_dtype is not None and gate is None:
                inputs = inputs.centred(target, weights, dtype=operand_dtype)
            losses, nll = _run_chunks(
                inputs.with_operands_in(operand_dtype),
                target,
                weights,
                interpolation,
                chunk_size=chunk_size,
                options=options,
                scales=scales,
                gradients=ctx.gradients,
            )
        if options.reduction == "none":
            ctx.mark_non_differentiable(losses, nll)
            return losses, nll
        ctx.mark_non_differentiable(nll)
        return losses.sum(), nll

    @staticmethod
    # pyrefly: ignore[bad-override]
    def backward(ctx: "_Context", grad_loss: Tensor, _: Tensor) -> Tuple[Optional[Tensor], ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("mixture_nll has no second derivative: differentiate mixture_log_probs instead")
        if ctx.gradients is None:
            raise RuntimeError("mixture_nll was differentiated before: ask for retain_graph=True the first time")
        keep_graph = backward_keeps_graph()
        base, gate = (grad_loss if scale is None else grad_loss / scale for scale in ctx.scales)
        factors = (*[base] * 4, *[gate] * 3, *[grad_loss] * 2)
        results = [
            None if gradient is None else (gradient * factor if keep_graph else gradient.mul_(factor)).to(dtype)
            for gradient, factor, dtype in zip(ctx.gradients, factors, ctx.dtypes)
        ]
        if not keep_graph:
            ctx.gradients = None  # pyrefly: ignore[implicit-any-attribute]
        return (*results, None, None, None)


class _Context(torch.autograd.function.FunctionCtx):
    """What the forward pass leaves to the backward pass."""

    needs_input_grad: Tuple[bool, ...]
    dtypes: List[Optional[torch.dtype]]
    scales: GradientScales
    gradients: Optional[MixtureGradients]


def _run_chunks(
    inputs: MixtureInputs,
    target: Tensor,
    weights: Tensor,
    interpolation: Optional[Interpolation],
    *,
    chunk_size: int,
    options: LossOptions,
    scales: GradientScales,
    gradients: MixtureGradients,
) -> Tuple[Tensor, Tensor]:
    """Weighted losses and NLL, both (N); ``gradients`` that are not None receive the losses' gradients, scaled."""
    losses, nll = torch.zeros_like(weights), torch.zeros_like(weights)
    means = None
    if options.label_smoothing > 0 and not _multiplies_gradient(inputs, options):
        means = MeanLogits(inputs)
    for chosen in cut(weights, chunk_size, may_skip=options.may_skip):
        losses[chosen], nll[chosen] = _run_chunk(
            inputs.of_tokens(chosen),
            target[chosen],
            weights[chosen],
            None if interpolation is None else interpolation.of_tokens(chosen),
            means=means,
            chosen=chosen,
            options=options,
            scales=scales,
            gradients=gradients,
        )
    if means is not None:
        means.finish(gradients)
    return losses, nll


def _run_chunk(
    inputs: MixtureInputs,
    target: Tensor,
    weights: Tensor,
    interpolation: Optional[Interpolation],
    *,
    means: Optional[MeanLogits],
    chosen: Union[slice, Tensor],
    options: LossOptions,
    scales: GradientScales,
    gradients: MixtureGradients,
) -> Tuple[Tensor, Tensor]:
    """Weighted losses and NLL of the ``chosen`` tokens, both (n), of which everything else is given.

    Label smoothing takes the means of the logits from ``means``, and without them from the logits, a pass more for them
    and one for their gradient.
    """
    gate, values = inputs.gate, inputs.gate_values()
    logits = inputs.logits(values, options=options)
    smoothing = None
    if options.label_smoothing > 0:
        mean_logits = logits.mean(dim=1).view_as(inputs.log_prior) if means is None else means.of_chunk(inputs)
        smoothing = LabelSmoothing(options.label_smoothing, mean_logits)
    chunk = MixtureChunk(
        logits=logits,
        log_prior=inputs.log_prior,
        target=target,
        keep_logits=gradients.gate_learns,
        logits_of=partial(_logits_of, inputs, options=options) if logits.is_cpu else None,
        smoothing=smoothing,
    )
    loss, nll, share = chunk.loss, chunk.nll, None
    if interpolation is not None:
        nll = interpolation.nll(chunk.nll)
        share = interpolation.mixture_share(chunk.nll, nll)
        loss = loss + (1 - options.label_smoothing) * (nll - chunk.nll)
        target_weights = (1 - options.label_smoothing) * weights
        if gradients.log_weight is not None:
            gradients.log_weight[chosen] = -target_weights * share
        if gradients.log_other is not None:
            gradients.log_other[chosen] = -target_weights * interpolation.other_share(nll)
    losses = loss * weights
    if gradients.mixture_learns:
        gradient, uniform, d_log_prior = chunk.backward(
            weights if scales.base is None else weights * scales.base, share
        )
        del chunk
        if gradients.log_prior is not None:
            gradients.log_prior[chosen] = d_log_prior
        if _multiplies_gradient(inputs, options):
            gradient = LogitGradient(gradient.multiplied())
            if uniform is not None:
                gradient.rows.sub_(uniform.view(-1, 1) / gradient.rows.size(1))
        if gradients.gate_learns:
            logits.mul_(gradient.rows)
        if gradients.logits_learn:
            if values is not None:
                multiply_by_gate(gradient.rows, values)
            _add_base_gradients(gradient, inputs, chosen=chosen, gradients=gradients)
            if means is None:
                uniform = None  # it was subtracted from the rows
            elif uniform is not None:
                means.subtract_gradients(uniform, inputs, chosen=chosen, gradients=gradients)
            if inputs.margins is not None and gradients.latents is not None:
                gradients.latents[chosen] += _margin_gradient(gradient, uniform, inputs, margins=inputs.margins)
        del gradient
        if gradients.gate_learns:
            assert gate is not None and values is not None
            d_scores = gate_gradient(logits, values)
            if scales.gate is not None and scales.base is not None:
                d_scores.mul_(scales.gate / scales.base)
            _add_gate_gradients(d_scores, gate.features, gate.weight, chosen=chosen, gradients=gradients)
    return losses, nll


def _multiplies_gradient(inputs: MixtureInputs, options: LossOptions) -> bool:
    """Whether the gradient by the logits is multiplied by its factors before its matrix products, not after.

    A gate needs the gradient itself. So do products in 16 bits of logits that were worked on in 32: the gradient is
    rounded for them, and a factor behind them would be of a rounded gradient. The uniform part of label smoothing is
    then subtracted from it, too, in place of :class:`MeanLogits`.
    """
    wide = options.chunk_dtype is None and inputs.latents.dtype != inputs.log_prior.dtype
    return wide or inputs.gate is not None


def _logits_of(inputs: MixtureInputs, tokens: Tensor, *, options: LossOptions) -> Tensor:
    """The logits of some tokens of a chunk again, (m, J, V)."""
    inputs = inputs.of_tokens(tokens)
    return inputs.logits(inputs.gate_values(), options=options).unflatten(0, inputs.log_prior.shape)


def _add_base_gradients(
    gradient: LogitGradient, inputs: MixtureInputs, *, chosen: Union[slice, Tensor], gradients: MixtureGradients
) -> None:
    """Those by latents, W and b from that by the logits W k + b of the ``chosen`` tokens, whose inputs are given."""
    rows, factors = inputs.latents.flatten(0, 1), gradient.factors
    operand = gradient.rows.to(rows.dtype)
    if gradients.latents is not None:
        d_rows = matmul(operand, inputs.weight)
        d_rows = d_rows.to(gradients.latents.dtype) if factors is None else d_rows * factors
        gradients.latents[chosen] = d_rows.view(-1, *gradients.latents.shape[1:])
    if gradients.weight is not None:
        add_matmul(gradients.weight, operand.t(), rows if factors is None else (rows * factors).to(rows.dtype))
    if gradients.bias is not None:
        d_bias = gradient.rows.sum(dim=0) if factors is None else matmul(factors.t().to(operand.dtype), operand)[0]
        gradients.bias.add_(d_bias)


def _margin_gradient(
    gradient: LogitGradient, uniform: Optional[Tensor], inputs: MixtureInputs, *, margins: TargetMargins
) -> Tensor:
    """The gradient by latents, (n, J, d), that the margins add.

    Args:
        gradient: by the logits before the gate.
        uniform: V times what is to be subtracted from it, (n, J), or None.
        inputs: those of the chunk.
        margins: the inputs' own.
    """
    d_targets = margins.of_targets(gradient.rows).to(margins.values.dtype)
    if gradient.factors is not None:
        d_targets = d_targets * gradient.factors.view_as(d_targets)
    if uniform is not None:
        d_targets = d_targets - uniform / gradient.rows.size(1)
    return margins.latent_gradient(d_targets, inputs.latents)


def _add_gate_gradients(
    d_scores: Tensor, features: Tensor, weight: Tensor, *, chosen: Union[slice, Tensor], gradients: MixtureGradients
) -> None:
    """Those by F, U and c from those by the chunk's scores F U' + c, (n, V)."""
    operand = d_scores.to(features.dtype)
    if gradients.gate_features is not None:
        gradients.gate_features[chosen] = matmul(operand, weight).to(gradients.gate_features.dtype)
    if gradients.gate_weight is not None:
        add_matmul(gradients.gate_weight, operand.t(), features)
    if gradients.gate_bias is not None:
        gradients.gate_bias.add_(d_scores.sum(dim=0))


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
