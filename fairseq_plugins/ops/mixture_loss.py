"""Negative log-likelihood of a mixture of softmaxes at the price of its matrix products.

Tokens are processed in chunks. The gradients are formed in the forward pass, from the logits of each chunk while they
are held, so that no tensor of all tokens x experts x words is ever kept.

Shapes: * any leading dimensions with N tokens in all, n tokens of a chunk, J experts, d width of their hidden states,
D_g features of the gate, V words. A row is one expert of one token.
"""

from functools import partial
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from fairseq_plugins.ops.kernels import Kernels, choose_kernels
from fairseq_plugins.ops.logit_gate import (
    Interpolation,
    LogitGate,
    TargetMargins,
    adversarial_margins,
    check_gate,
    gate_gradient,
    gated_logits,
    multiply_by_gate,
)
from fairseq_plugins.ops.matmul import accumulation_dtype, autocast_dtype, backward_keeps_graph, matmul
from fairseq_plugins.ops.mixture_chunk import LogitGradient
from fairseq_plugins.options import UserError

CPU_CHUNK_BYTES = 32 * 2**20
"""Logits of a chunk on a CPU: about a last-level cache."""
GPU_CHUNK_SHARE = 1 / 128
"""Logits of a chunk on a GPU, as a share of its memory."""
MIN_CHUNK_ROWS = 480
"""Fewer rows slow the matrix products down, so a chunk has at least about this many. :func:`even_chunk_size` may halve
the number. From 17,477 words on, such a chunk exceeds :data:`CPU_CHUNK_BYTES`."""

Tokens = Union[slice, Tensor]
"""Indices of the tokens of a chunk."""


class MixtureLoss(NamedTuple):
    """Result of :func:`mixture_nll`.

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
    kernels: Optional[Kernels] = None,
) -> MixtureLoss:
    """Loss of P(v) = sum_j pi_j softmax(W k_j + b)_v  (Yang et al. 2018, eq. 2; Takase et al. 2018, eq. 7).

    **Label smoothing.** The loss of a token is (1 - e) NLL + e sum_j pi_j mean_v(-log p_j(v)) with the softmaxes p_j
    and e = ``label_smoothing``. Each expert is smoothed separately. Smoothing only the mixture lets the model satisfy
    the penalty with one uniform expert while the others stay overconfident.

    **Cost.** Tokens are processed in chunks. The gradients of their weighted sum are formed in the forward pass,

        d NLL / d z_{j,v} = r_j (p_j(v) - [v = target]),   d NLL / d log pi_j = -r_j,

    where r_j is the responsibility of expert j for the target. The backward pass only multiplies them by the incoming
    gradient. Peak memory is one chunk of logits (1.5 with 16-bit operands). Training costs three matrix products,
    evaluation one. Products for the gradients of frozen tensors are left out, and on a CPU tokens of weight zero.

    **Precision.** Losses and sums over chunks are in float32 or wider, and without ``chunk_dtype`` softmaxes are, too.
    Products of 16-bit operands, autocast's included, are rounded to 16 bits. With Triton, inputs in bfloat16 without a
    gate imply a ``chunk_dtype`` of bfloat16.

    **A gate** makes the logits g * (W k_j + b). It adds three products of its own width, or one if none of its tensors
    learns, and memory of 1 + 1 / J chunks, or 1 / J.

    **Adversarial training.** With an ``adversarial_epsilon`` the logits of each target y are lower by eps |w_y| |k_j|
    for the experts with w_y . k_j > 0 (Wang, Gong & Liu 2019). The margin is subtracted before the gate, and P is the
    distribution of the lowered logits throughout, label smoothing included. The margin is a change of w_y, which is a
    constant, times k_j, which is not: w_y gets no gradient, and dL/dk_j gains
    (1 - p_j(y)) r_j eps |w_y| k_j / |k_j|. It costs a row of W a token, and nothing a word.

    **An interpolation** makes P(target) that of the mixture and another distribution. Only the NLL in the sum above is
    that of both. The smoothing term remains the mixture's.

    Args:
        latents: k, hidden states of the experts, (*, J, d).
        log_prior: log pi, (*, J), normalised over J, float32 or wider; -inf where pi is zero.
        weight: W, (V, d).
        target: words to score, (*), int64, 0 <= target < V where a token is not ignored.
        bias: b, (V), finite.
        gate: g, one value a token and word that multiplies the logits of all experts, with features (*, D_g).
        interpolation: of the mixture with another distribution, whose gradients are formed as well.
        token_weights: factor of each token's loss, (*), without gradient; by default one.
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
        kernels: the functions that it runs on; by default those of the device.

    Raises:
        UserError: if an argument has a wrong shape, type, device or value (the message names it), or if
            ``reduction="none"`` is called where a gradient would be needed.
        RuntimeError: if a second derivative is taken.
    """
    _check_options(
        label_smoothing=label_smoothing,
        adversarial_epsilon=adversarial_epsilon,
        reduction=reduction,
        chunk_size=chunk_size,
        chunk_dtype=chunk_dtype,
    )
    _check_tensors(
        latents, log_prior, weight, target, bias=bias, token_weights=token_weights, interpolation=interpolation
    )
    check_gate(gate, latents, vocab_size=weight.size(0), caller="mixture_nll", name="latents")
    weights = torch.ones_like(target, dtype=log_prior.dtype) if token_weights is None else token_weights
    _require(
        not (weights.requires_grad and torch.is_grad_enabled()),
        "token_weights requires a gradient, but none is formed: give token_weights.detach()",
    )
    if ignore_index is not None:
        weights = weights.masked_fill(target.eq(ignore_index), 0)
    _check_target_range(target, weights=weights, vocab_size=weight.size(0))

    num_tokens, (num_experts, width) = target.numel(), latents.shape[-2:]
    inputs = _Inputs(
        latents=latents.reshape(num_tokens, num_experts, width),
        log_prior=log_prior.reshape(num_tokens, num_experts),
        weight=weight,
        bias=bias,
        gate=None if gate is None else gate.flattened(),
        interpolation=None if interpolation is None else interpolation.flattened(),
        target=target.reshape(num_tokens),
        token_weights=weights.reshape(num_tokens).to(log_prior.dtype),
    )
    leaves = inputs.differentiable()
    learned = [name for name, x in leaves.items() if x is not None and x.requires_grad and torch.is_grad_enabled()]
    _require(
        reduction == "sum" or not learned,
        f'reduction="none" gives no gradient for {", ".join(learned)}: score under no_grad()',
    )
    kernels = kernels or choose_kernels(latents.device)
    operand_dtype = chunk_dtype or autocast_dtype(latents) or latents.dtype
    if kernels.keeps_narrow and operand_dtype == torch.bfloat16:
        chunk_dtype = operand_dtype
    # Gated logits stay wide: W cannot be centered, because after the gate the shift would differ from word to word.
    logits_dtype = log_prior.dtype if chunk_dtype is None or gate is not None else chunk_dtype
    if chunk_size is None:
        chunk_size = default_chunk_size(num_experts, weight.size(0), dtype=log_prior.dtype, device=latents.device)
    chunk_size = even_chunk_size(num_tokens, chunk_size)
    has_ignored = token_weights is not None or ignore_index is not None
    drop_ignored = has_ignored and kernels.looks_at_values
    scales = _Scales()
    with torch.no_grad(), torch.autocast(latents.device.type, enabled=False):
        ignored = inputs.token_weights == 0
        if has_ignored and not drop_ignored:
            inputs = inputs.without_values_of(ignored)
        if operand_dtype == torch.float16 and num_tokens:
            scales = _float16_scales(inputs, chunk_size=chunk_size)
        if adversarial_epsilon > 0:
            margins = adversarial_margins(inputs.latents, weight, inputs.target, epsilon=adversarial_epsilon)
            inputs = inputs._replace(margins=margins)
        if logits_dtype != log_prior.dtype:
            inputs = inputs.centered(logits_dtype, kernels)
        joins_bias = kernels.joins_bias(operand_dtype, log_prior)
        gradients = _Gradients.zeros(leaves, learned, dtype=log_prior.dtype, joins_bias=joins_bias)
        losses, nll = _run_chunks(
            inputs.with_operands_in(operand_dtype),
            iter_chunks(inputs.token_weights, chunk_size, drop_ignored=drop_ignored),
            label_smoothing=label_smoothing,
            logits_dtype=logits_dtype,
            scales=scales,
            gradients=gradients,
            kernels=kernels,
        )
        if has_ignored and not drop_ignored:
            nll.masked_fill_(ignored, 0)
    if reduction == "none":
        return MixtureLoss(losses.view(target.shape), nll.view(target.shape))
    return MixtureLoss(_SumWithGradients.apply(losses, gradients, scales, *leaves.values()), nll.view(target.shape))


class _SumWithGradients(torch.autograd.Function):
    """The sum of losses whose gradients are known already. The backward pass multiplies them by the incoming gradient.

    Takes the losses (N), their gradients, the scales of these, and the tensors that the gradients belong to.
    """

    @staticmethod
    # pyrefly: ignore[bad-override]
    def forward(
        ctx: Any, losses: Tensor, gradients: "_Gradients", scales: "_Scales", *leaves: Optional[Tensor]
    ) -> Tensor:
        ctx.gradients, ctx.scales = gradients, scales
        ctx.dtypes = [None if x is None else x.dtype for x in leaves]
        return losses.sum()

    @staticmethod
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, grad_loss: Tensor) -> Tuple[Optional[Tensor], ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("mixture_nll has no second derivative: differentiate mixture_log_probs instead")
        if ctx.gradients is None:
            raise RuntimeError("mixture_nll was differentiated before: ask for retain_graph=True the first time")
        keep_graph = backward_keeps_graph()
        base, gate = (grad_loss if scale is None else grad_loss / scale for scale in ctx.scales)
        factors = (*[base] * 4, *[gate] * 3, *[grad_loss] * 2)
        results = [
            None if gradient is None else (gradient * factor if keep_graph else gradient.mul_(factor)).to(dtype)
            for gradient, factor, dtype in zip(ctx.gradients.of_leaves, factors, ctx.dtypes)
        ]
        if not keep_graph:
            ctx.gradients = None  # pyrefly: ignore[implicit-any-attribute]
        return (None, None, None, *results)


class _Inputs(NamedTuple):
    """The tensors of the loss, for all tokens or those of a chunk.

    Attributes:
        latents: k, (N, J, d).
        log_prior: log pi, (N, J).
        weight: W, (V, d).
        bias: b, (V), or None.
        gate: g with features (N, D_g), or None.
        interpolation: with another distribution, (N), or None.
        target: y, (N).
        token_weights: (N).
        margins: that lower the targets' logits before the gate, or None. Their gradient reaches k and not W.
    """

    latents: Tensor
    log_prior: Tensor
    weight: Tensor
    bias: Optional[Tensor]
    gate: Optional[LogitGate]
    interpolation: Optional[Interpolation]
    target: Tensor
    token_weights: Tensor
    margins: Optional[TargetMargins] = None

    def differentiable(self) -> Dict[str, Optional[Tensor]]:
        """The tensors that may have a gradient, in the order of :class:`_Gradients`, by the names that users know."""
        return {
            "latents": self.latents,
            "log_prior": self.log_prior,
            "weight": self.weight,
            "bias": self.bias,
            "gate.features": None if self.gate is None else self.gate.features,
            "gate.weight": None if self.gate is None else self.gate.weight,
            "gate.bias": None if self.gate is None else self.gate.bias,
            "log_weight": None if self.interpolation is None else self.interpolation.log_weight,
            "log_other": None if self.interpolation is None else self.interpolation.log_other,
        }

    def with_operands_in(self, dtype: torch.dtype) -> "_Inputs":
        """The same with the operands of matrix products in another type."""
        gate = None if self.gate is None else self.gate.with_operands_in(dtype)
        return self._replace(latents=self.latents.to(dtype), weight=self.weight.to(dtype), gate=gate)

    def without_values_of(self, ignored: Tensor) -> "_Inputs":
        """The same with zeros for the ``ignored`` tokens, (N) bool, whose values may be anything, NaN included."""

        def blank(x: Tensor) -> Tensor:
            return x.masked_fill(ignored.view(-1, *[1] * (x.dim() - 1)), 0)

        gate, other = self.gate, self.interpolation
        return self._replace(
            latents=blank(self.latents),
            log_prior=blank(self.log_prior),
            target=blank(self.target),
            gate=None if gate is None else gate._replace(features=blank(gate.features)),
            interpolation=None if other is None else Interpolation(*map(blank, other)),
        )

    def padded(self, multiple: int) -> "_Inputs":
        """The same with rows of zeros in W, and -inf in b, up to a multiple of so many words. Without a gate only."""
        num_more = -self.weight.size(0) % multiple
        if not num_more:
            return self
        bias = self.log_prior.new_zeros(self.weight.size(0)) if self.bias is None else self.bias
        weight = torch.nn.functional.pad(self.weight, (0, 0, 0, num_more))
        return self._replace(weight=weight, bias=torch.nn.functional.pad(bias, (0, num_more), value=-torch.inf))

    def centered(self, dtype: torch.dtype, kernels: Kernels) -> "_Inputs":
        """The same with W in ``dtype`` and b, less the means of the targets' rows.

        It brings the logits of probable words near zero, where 16 bits are densest and e^z stays in range. All logits
        of a row change by the same number, which no softmax notices. The gradients are the same, too, because those by
        a row's logits add up to zero.
        """
        counts = (self.token_weights != 0).to(self.token_weights.dtype)
        frequencies = counts / counts.sum().clamp(min=1)
        words = self.target.clamp(0, self.weight.size(0) - 1)

        def center(x: Tensor, dtype: torch.dtype) -> Tensor:
            return kernels.center(x, (frequencies @ x[words].to(frequencies.dtype)).nan_to_num(0.0, 0.0, 0.0), dtype)

        bias = None if self.bias is None else center(self.bias, self.bias.dtype)
        return self._replace(weight=center(self.weight, dtype), bias=bias)

    def select(self, tokens: Tokens) -> "_Inputs":
        """Those of some tokens."""
        return self._replace(
            latents=self.latents[tokens],
            log_prior=self.log_prior[tokens],
            gate=None if self.gate is None else self.gate.select(tokens),
            interpolation=None if self.interpolation is None else self.interpolation.select(tokens),
            target=self.target[tokens],
            token_weights=self.token_weights[tokens],
            margins=None if self.margins is None else self.margins.select(tokens),
        )

    def gate_values(self) -> Optional[Tensor]:
        """g, (N, V), or None."""
        return None if self.gate is None else self.gate.values(self.log_prior.dtype)


class _Gradients(NamedTuple):
    """The gradients of the inputs that learn, None for the others. All chunks add to them.

    They are in float32 or wider, because sums of many chunks in 16 bits would stop growing. Those of W and b may be
    columns of ``weight_and_bias``, (V, d + 1 or more).
    """

    latents: Optional[Tensor]
    log_prior: Optional[Tensor]
    weight: Optional[Tensor]
    bias: Optional[Tensor]
    gate_features: Optional[Tensor]
    gate_weight: Optional[Tensor]
    gate_bias: Optional[Tensor]
    log_weight: Optional[Tensor]
    log_other: Optional[Tensor]
    weight_and_bias: Optional[Tensor] = None

    @classmethod
    def zeros(
        cls, leaves: Mapping[str, Optional[Tensor]], learned: Sequence[str], *, dtype: torch.dtype, joins_bias: bool
    ) -> "_Gradients":
        """Zeros for the tensors with a name in ``learned``.

        With ``joins_bias`` those of W and b are columns of one matrix, if both learn.
        """
        found = {
            name: torch.zeros_like(x, dtype=dtype, memory_format=torch.contiguous_format)
            if x is not None and name in learned
            else None
            for name, x in leaves.items()
        }
        joint, weight, bias = None, found["weight"], found["bias"]
        if joins_bias and weight is not None and bias is not None:
            width = weight.size(1)
            joint = weight.new_zeros(len(weight), -(-(width + 1) // 8) * 8)  # fast products need a multiple of 8
            found.update(weight=joint[:, :width], bias=joint[:, width])
        return cls(*found.values(), weight_and_bias=joint)

    @property
    def of_leaves(self) -> Sequence[Optional[Tensor]]:
        """The gradients in the order of :meth:`_Inputs.differentiable`."""
        return self[:-1]

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
        """Whether anything except the interpolation has one."""
        return self.logits_learn or self.gate_learns or self.log_prior is not None


# Chunks


def _run_chunks(
    inputs: _Inputs,
    chunks: Sequence[Tokens],
    *,
    label_smoothing: float,
    logits_dtype: torch.dtype,
    scales: "_Scales",
    gradients: _Gradients,
    kernels: Kernels,
) -> Tuple[Tensor, Tensor]:
    """Weighted losses and NLL, both (N). ``gradients`` that are not None receive the losses' gradients, scaled."""
    losses, nll = torch.zeros_like(inputs.token_weights), torch.zeros_like(inputs.token_weights)
    # A gate needs the gradient of the logits itself, before any matrix product. So do products in 16 bits of logits
    # that were computed in 32: the gradient is rounded for them, and it must be rounded after its factors are applied.
    materialize = inputs.gate is not None or inputs.latents.dtype != logits_dtype
    means = MeanLogits(inputs) if label_smoothing > 0 and not materialize else None
    if not materialize:
        inputs = inputs.padded(kernels.vocab_multiple)
    for tokens in chunks:
        losses[tokens], nll[tokens] = _run_chunk(
            inputs.select(tokens),
            tokens,
            label_smoothing=label_smoothing,
            logits_dtype=logits_dtype,
            means=means,
            materialize=materialize,
            scales=scales,
            gradients=gradients,
            kernels=kernels,
        )
    if means is not None:
        means.finish(gradients)
    return losses, nll


def _run_chunk(
    inputs: _Inputs,
    tokens: Tokens,
    *,
    label_smoothing: float,
    logits_dtype: torch.dtype,
    means: Optional["MeanLogits"],
    materialize: bool,
    scales: "_Scales",
    gradients: _Gradients,
    kernels: Kernels,
) -> Tuple[Tensor, Tensor]:
    """Weighted losses and NLL, both (n), of the ``tokens`` that the inputs belong to; adds to the gradients.

    Label smoothing takes the means of the logits from ``means``. Without them it takes a pass over the logits for the
    means and one for their gradient.
    """
    compute_logits = partial(gated_logits, weight=inputs.weight, bias=inputs.bias, dtype=logits_dtype)

    def recompute_logits(some: Tensor) -> Tensor:
        """The logits of some tokens of the chunk again, (m, J, V)."""
        few = inputs.select(some)
        logits = compute_logits(few.latents.flatten(0, 1), gate=few.gate_values(), margins=few.margins)
        return logits.unflatten(0, few.log_prior.shape)

    gate_values = inputs.gate_values()
    logits = compute_logits(inputs.latents.flatten(0, 1), gate=gate_values, margins=inputs.margins)
    mean_logits = None
    if label_smoothing > 0:
        mean_logits = logits.mean(dim=1).view_as(inputs.log_prior) if means is None else means.compute(inputs)
    chunk = kernels.make_chunk(
        logits=logits,
        log_prior=inputs.log_prior,
        target=inputs.target,
        keep_logits=gradients.gate_learns,  # the gradient of the gate is one of products with the logits
        recompute_logits=recompute_logits if kernels.looks_at_values else None,
        label_smoothing=label_smoothing,
        mean_logits=mean_logits,
    )
    loss, nll, posterior, weights = chunk.loss, chunk.nll, None, inputs.token_weights
    if inputs.interpolation is not None:
        nll = inputs.interpolation.nll(chunk.nll)
        posterior = inputs.interpolation.mixture_posterior(chunk.nll, nll)
        loss = loss + (1 - label_smoothing) * (nll - chunk.nll)
        nll_weights = (1 - label_smoothing) * weights
        if gradients.log_weight is not None:
            gradients.log_weight[tokens] = -nll_weights * posterior
        if gradients.log_other is not None:
            gradients.log_other[tokens] = -nll_weights * inputs.interpolation.other_posterior(nll)
    losses = loss * weights
    if not gradients.mixture_learns:
        return losses, nll

    gradient, d_log_prior = chunk.backward(weights if scales.base is None else weights * scales.base, posterior)
    del chunk  # and with it all that refers to the softmax, except the gradient
    if gradients.log_prior is not None:
        gradients.log_prior[tokens] = d_log_prior
    if materialize:
        gradient = gradient.materialize()
    if gradients.gate_learns:
        logits.mul_(gradient.rows)  # z dL/dz, all that the gradient of the gate needs of both
    if gradients.logits_learn:
        if gate_values is not None:
            multiply_by_gate(gradient.rows, gate_values)
        _add_base_gradients(gradient, inputs, tokens, means=means, gradients=gradients, kernels=kernels)
    del gradient  # the gradient of the gate's scores can take its memory
    if gradients.gate_learns:
        assert inputs.gate is not None and gate_values is not None
        d_scores = gate_gradient(logits, gate_values)
        if scales.gate is not None and scales.base is not None:
            d_scores.mul_(scales.gate / scales.base)  # from the scale of the base to its own
        _add_gate_gradients(d_scores, inputs.gate, tokens, gradients=gradients, kernels=kernels)
    return losses, nll


def _add_base_gradients(
    gradient: LogitGradient,
    inputs: _Inputs,
    tokens: Tokens,
    *,
    means: Optional["MeanLogits"],
    gradients: _Gradients,
    kernels: Kernels,
) -> None:
    """Add those of k, W and b from that of the logits W k + b of the ``tokens``, whose inputs are given."""
    rows, factors = inputs.latents.flatten(0, 1), gradient.factors
    operand = gradient.rows.to(rows.dtype)
    # The factors of the rows multiply the smaller operand or result of each product, never the chunk itself.
    if gradients.latents is not None:
        d_rows = matmul(operand, inputs.weight)
        d_rows = d_rows.to(gradients.latents.dtype) if factors is None else d_rows * factors
        gradients.latents[tokens] = d_rows.view(-1, *gradients.latents.shape[1:])
    joint, weight, bias = gradients.weight_and_bias, gradients.weight, gradients.bias
    if joint is not None:
        columns = rows.new_zeros(len(rows), joint.size(1))
        columns[:, : rows.size(1)] = rows if factors is None else rows * factors
        columns[:, rows.size(1)] = 1 if factors is None else factors.squeeze(1)
        kernels.add_product(joint, operand[:, : len(joint)].t(), columns)
    else:
        if weight is not None:
            scaled = rows if factors is None else (rows * factors).to(rows.dtype)
            kernels.add_product(weight, operand[:, : len(weight)].t(), scaled)
        if bias is not None:
            d_bias = gradient.rows.sum(dim=0) if factors is None else matmul(factors.t().to(operand.dtype), operand)[0]
            bias.add_(d_bias[: len(bias)])
    if means is not None and gradient.uniform is not None:
        means.subtract_gradients(gradient.uniform, inputs, tokens, gradients=gradients)
    if inputs.margins is not None and gradients.latents is not None:
        # Margins change with k. Their gradient needs that of the targets' logits alone, put together from its parts.
        d_targets = inputs.margins.at_targets(gradient.rows).to(inputs.margins.values.dtype)
        if factors is not None:
            d_targets = d_targets * factors.view_as(d_targets)
        if means is not None and gradient.uniform is not None:
            d_targets = d_targets - gradient.uniform / means.vocab_size
        gradients.latents[tokens] += inputs.margins.latent_gradient(d_targets, inputs.latents)


def _add_gate_gradients(
    d_scores: Tensor, gate: LogitGate, tokens: Tokens, *, gradients: _Gradients, kernels: Kernels
) -> None:
    """Add those of F, U and c from those of the chunk's scores F U' + c, (n, V)."""
    operand = d_scores.to(gate.features.dtype)
    if gradients.gate_features is not None:
        gradients.gate_features[tokens] = matmul(operand, gate.weight).to(gradients.gate_features.dtype)
    if gradients.gate_weight is not None:
        kernels.add_product(gradients.gate_weight, operand.t(), gate.features)
    if gradients.gate_bias is not None:
        gradients.gate_bias.add_(d_scores.sum(dim=0))


class MeanLogits:
    """mean_v of W k + b, and its gradients, for label smoothing without a pass over the logits.

    The mean over the words is that of W's rows times k, plus that of b. Its gradient is the same for all words.

    Args:
        inputs: W and b as the logits are made of them.
    """

    def __init__(self, inputs: _Inputs):
        dtype, self.vocab_size = inputs.log_prior.dtype, inputs.weight.size(0)
        self._row = inputs.weight.mean(dim=0, dtype=dtype)
        self._bias = 0.0 if inputs.bias is None else inputs.bias.mean(dtype=dtype)
        self._sum_of_rows = torch.zeros_like(self._row)
        self._sum_of_uniform = torch.zeros_like(self._row[:1])

    def compute(self, inputs: _Inputs) -> Tensor:
        """The means of the logits of a chunk, (n, J). Margins lower one logit of each row."""
        means = inputs.latents.to(self._row.dtype) @ self._row + self._bias
        return means if inputs.margins is None else means - inputs.margins.values / self.vocab_size

    def subtract_gradients(self, uniform: Tensor, inputs: _Inputs, tokens: Tokens, *, gradients: _Gradients) -> None:
        """Subtract the gradients of sum_j uniform_j mean_v(z_j) from those of the ``tokens``: uniform (n, J).

        Those of W and b are subtracted at the end, by :meth:`finish`: they are one row for all words.
        """
        if gradients.latents is not None:
            gradients.latents[tokens] -= uniform.unsqueeze(-1) * self._row
        self._sum_of_rows += uniform.flatten() @ inputs.latents.flatten(0, 1).to(uniform.dtype)
        self._sum_of_uniform += uniform.sum()

    def finish(self, gradients: _Gradients) -> None:
        """Subtract the sums over all chunks from the gradients of W and b."""
        if gradients.weight is not None:
            gradients.weight.sub_(self._sum_of_rows / self.vocab_size)
        if gradients.bias is not None:
            gradients.bias.sub_(self._sum_of_uniform / self.vocab_size)


def iter_chunks(weights: Tensor, chunk_size: int, *, drop_ignored: bool) -> Sequence[Tokens]:
    """Indices of the tokens of each chunk.

    Args:
        weights: of the tokens, (N).
        drop_ignored: whether tokens of weight zero are in no chunk. Finding them waits for the device.
    """
    num_tokens = weights.numel()
    kept = weights.nonzero().squeeze(-1) if drop_ignored else None
    if kept is None or kept.numel() == num_tokens:
        return [slice(first, first + chunk_size) for first in range(0, num_tokens, chunk_size)]
    return kept.split(chunk_size) if kept.numel() else []


def default_chunk_size(num_experts: int, vocab_size: int, *, dtype: torch.dtype, device: torch.device) -> int:
    """The number of tokens of a chunk that runs fastest.

    Their logits fill :data:`CPU_CHUNK_BYTES`, or on a GPU :data:`GPU_CHUNK_SHARE` of its memory. They have about
    :data:`MIN_CHUNK_ROWS` rows, or more, whatever the vocabulary. ``dtype`` is that of the losses: logits of 16 bits
    take half as much.
    """
    if device.type == "cuda":
        chunk_bytes = torch.cuda.get_device_properties(device).total_memory * GPU_CHUNK_SHARE
    else:
        chunk_bytes = CPU_CHUNK_BYTES
    num_rows = max(MIN_CHUNK_ROWS, int(chunk_bytes / (vocab_size * dtype.itemsize)))
    return max(1, num_rows // num_experts)


def even_chunk_size(num_tokens: int, chunk_size: int) -> int:
    """The smallest size that gives as few chunks as ``chunk_size`` does, so that all are about equally large."""
    num_chunks = max(1, -(-num_tokens // chunk_size))
    return max(1, -(-num_tokens // num_chunks))


# Float16, whose numbers end at 65,504 and lose precision below 6e-5: gradients are multiplied by powers of two while
# they are in it.


class _Scales(NamedTuple):
    """Factors of the gradients of k, W, b and log pi, and of those of the gate, or None."""

    base: Optional[Tensor] = None
    gate: Optional[Tensor] = None


def _float16_scales(inputs: _Inputs, *, chunk_size: int) -> _Scales:
    """Factors that keep the gradients of the logits of every chunk within float16."""
    weights, gate = inputs.token_weights, inputs.gate
    base = float16_scale(inputs.latents, inputs.weight, weights, chunk_size=chunk_size)
    if gate is None:
        return _Scales(base)
    # the gradients of the gate's scores are those of the logits, times the logits before it, times g (1 - g) <= 1/4
    factors = weights * (logit_bound(inputs.latents, inputs.weight, inputs.bias) / 4)
    return _Scales(base, float16_scale(gate.features, gate.weight, factors, chunk_size=chunk_size))


def float16_scale(rows: Tensor, weight: Tensor, factors: Tensor, *, chunk_size: int) -> Tensor:
    """The power of two that brings a chunk's gradients near the largest float16 without passing it.

    The gradients of the scores ``rows`` W' of one token add up to at most twice its factor in absolute value, and to
    no more than the factor for any word.

    Args:
        rows: one or several for each token, (N, ..., d).
        weight: W, (V, d).
        factors: of the tokens, (N).
        chunk_size: tokens of a chunk.
    """
    largest_row, largest_weight, largest_factor = (
        torch.linalg.vector_norm(x, float("inf")).float() for x in (rows, weight, factors)
    )
    bound = largest_factor * torch.maximum(chunk_size * largest_row, 2 * largest_weight).clamp(min=1)
    return torch.exp2(torch.floor(torch.log2(2**15 / bound.clamp(min=2**-10))))


def logit_bound(latents: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    """Upper bound of the absolute value of all logits W k + b: latents (..., d), weight (V, d), bias (V)."""
    longest_latent, longest_weight = (
        torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32).max() for x in (latents, weight)
    )
    bound = longest_latent * longest_weight
    return bound if bias is None else bound + torch.linalg.vector_norm(bias, float("inf"), dtype=torch.float32)


# Checks of the arguments


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(f"mixture_nll: {message}")


def _check_tensors(
    latents: Tensor,
    log_prior: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Optional[Tensor],
    token_weights: Optional[Tensor],
    interpolation: Optional[Interpolation],
) -> None:
    """Check shapes, devices and types."""
    _require(
        latents.dim() >= 2 and latents.size(-1) > 0 and latents.size(-2) > 0,
        f"latents is {tuple(latents.shape)}: it must be (*, experts, width)",
    )
    leading, (num_experts, width) = tuple(latents.shape[:-2]), latents.shape[-2:]
    _require(
        weight.dim() == 2 and weight.size(0) > 0 and weight.size(1) == width,
        f"weight is {tuple(weight.shape)}: it must be (vocabulary, {width}), as wide as latents",
    )
    interpolated: Dict[str, Tensor] = {} if interpolation is None else interpolation._asdict()
    expected_shapes: Dict[str, Tuple[Optional[Tensor], Tuple[int, ...]]] = {
        "weight": (weight, tuple(weight.shape)),
        "log_prior": (log_prior, (*leading, num_experts)),
        "target": (target, leading),
        "bias": (bias, (weight.size(0),)),
        "token_weights": (token_weights, leading),
        **{name: (tensor, leading) for name, tensor in interpolated.items()},
    }
    for name, (tensor, shape) in expected_shapes.items():
        if tensor is not None:
            _require(tuple(tensor.shape) == shape, f"{name} is {tuple(tensor.shape)}: it must be {shape}")
            _require(tensor.device == latents.device, f"{name} is on {tensor.device}, latents on {latents.device}")
    _require(latents.is_floating_point(), f"latents is {latents.dtype}: it must be a floating-point type")
    _require(target.dtype == torch.int64, f"target is {target.dtype}: it must be torch.int64")
    if autocast_dtype(latents) is None:
        for name, tensor in (("weight", weight), ("bias", bias)):
            if tensor is not None:
                _require(tensor.dtype == latents.dtype, f"{name} is {tensor.dtype}, latents {latents.dtype}: cast one")
    wide = accumulation_dtype(latents)
    for name, tensor in (("log_prior", log_prior), *interpolated.items()):
        _require(tensor.dtype == wide, f"{name} is {tensor.dtype}: it must be {wide} for latents of {latents.dtype}")


def _check_options(
    *,
    label_smoothing: float,
    adversarial_epsilon: float,
    reduction: str,
    chunk_size: Optional[int],
    chunk_dtype: Optional[torch.dtype],
) -> None:
    _require(0.0 <= label_smoothing < 1.0, f"label_smoothing is {label_smoothing}: 0 <= e < 1")
    _require(0.0 <= adversarial_epsilon < 1.0, f"adversarial_epsilon is {adversarial_epsilon}: 0 <= epsilon < 1")
    _require(
        chunk_size is None or (isinstance(chunk_size, int) and chunk_size >= 1),
        f"chunk_size is {chunk_size}: it must be a whole number of at least 1",
    )
    _require(chunk_dtype in (None, torch.bfloat16), f"chunk_dtype is {chunk_dtype}: choose torch.bfloat16 or None")
    _require(reduction in ("sum", "none"), f'reduction is "{reduction}": choose "sum" or "none"')


def _check_target_range(target: Tensor, *, weights: Tensor, vocab_size: int) -> None:
    """Check that targets are words wherever the weight is not zero.

    Nothing is checked on a GPU, because the check would wait for the device.
    """
    if target.device.type != "cpu":
        return
    out_of_range = target[((target < 0) | (target >= vocab_size)) & (weights != 0)]
    _require(
        not out_of_range.numel(),
        f"target has words outside 0 .. {vocab_size - 1}: {out_of_range[:3].tolist()}; mark padding by "
        "ignore_index or by token_weights of zero",
    )
