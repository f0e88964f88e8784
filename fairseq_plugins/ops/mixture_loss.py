"""Negative log-likelihood of a mixture of softmaxes at the price of its matrix products.

Tokens are processed in chunks. The gradients are formed in the forward pass, from the logits of each chunk while they
are held, so that no tensor of all tokens x experts x words is ever kept. :func:`mixture_nll` checks and prepares its
arguments, :class:`_FusedLoss` runs the chunks, and :class:`_SumWithGradients` hands the gradients to autograd.

Shapes: * any leading dimensions with N tokens in all, n tokens of a chunk, J experts, d width of their hidden states,
D_g features of the gate, V words. A row is one expert of one token.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from fairseq_plugins.ops.adversarial_margin import TargetMargins, adversarial_margins
from fairseq_plugins.ops.kernel_choice import choose_kernels
from fairseq_plugins.ops.kernels import Kernels
from fairseq_plugins.ops.logit_gate import LogitGate, gate_gradient, multiply_by_gate
from fairseq_plugins.ops.matmul import accumulation_dtype, backward_keeps_graph, matmul, product_dtype, project
from fairseq_plugins.ops.mixture_chunk import (
    Interpolation,
    LogitGradient,
    MeanLogits,
    Tokens,
    default_chunk_size,
    even_chunk_size,
    float16_scale,
    iter_chunks,
    logit_bound,
)
from fairseq_plugins.options import UserError


class MixtureLoss(NamedTuple):
    """Result of :func:`mixture_nll`.

    Attributes:
        loss: sum of the weighted losses in nats, a scalar.
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
    label_smoothing: float = 0.0,
    adversarial_epsilon: float = 0.0,
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
    evaluation one. Products for gradients of frozen tensors are skipped. A CPU also skips tokens of weight zero.

    **Precision.** Losses and sums over chunks are in float32 or wider, and without ``chunk_dtype`` softmaxes are, too.
    Products of 16-bit operands, autocast's included, are rounded to 16 bits. With Triton, inputs in bfloat16 without a
    gate imply a ``chunk_dtype`` of bfloat16.

    **A gate** makes the logits g * (W k_j + b). If any of its tensors learns, it costs three more products of width
    D_g and 1 + 1 / J chunks of memory, otherwise one product and 1 / J.

    **Adversarial training.** With an ``adversarial_epsilon`` the logits of each target y are lower by eps |w_y| |k_j|
    for the experts with w_y . k_j > 0 (Wang, Gong & Liu 2019). The margin is subtracted before the gate, and P is the
    distribution of the lowered logits throughout, label smoothing included. eps |w_y| is treated as a constant, so only
    k_j gets a gradient from the margin: dL/dk_j gains (1 - p_j(y)) r_j eps |w_y| k_j / |k_j|. The margin reads one row
    of W per token and adds no work that grows with V.

    **An interpolation** mixes P(target) with the probability by another distribution. The NLL above is then the NLL of
    the interpolated P. The smoothing term depends on the mixture alone.

    Args:
        latents: k, hidden states of the experts, (*, J, d).
        log_prior: log pi, (*, J), normalised over J, float32 or wider; -inf where pi is zero.
        weight: W, (V, d).
        target: words to score, (*), int64, 0 <= target < V where a token's weight is not zero.
        bias: b, (V), finite.
        gate: g, one value a token and word that multiplies the logits of all experts, with features (*, D_g).
        interpolation: of the mixture with another distribution; its gradients are formed, too.
        token_weights: factor of each token's loss, (*), without gradient; by default one.
        label_smoothing: e, 0 <= e < 1.
        adversarial_epsilon: eps, 0 <= eps < 1; 0 subtracts nothing.
        chunk_size: tokens of a chunk; by default chosen by the device's memory or cache. Results differ by
            rounding only.
        chunk_dtype: torch.bfloat16 to hold and multiply a chunk in 16 bits, whatever the type of latents and W:
            operands and results of its products, logits and probabilities. It takes half the time where a processor
            has such products. Losses, sums over chunks and gradients stay in float32 or wider; with a gate, logits
            and probabilities do as well.
        kernels: the set of functions to use; by default the device's.

    Raises:
        UserError: on a CPU, if a target of non-zero weight is no word.
        RuntimeError: if a second derivative is taken.
    """
    leading, wide = latents.shape[:-2], accumulation_dtype(latents)
    assert log_prior.shape == latents.shape[:-1] and log_prior.dtype == wide
    assert weight.dim() == 2 and weight.size(1) == latents.size(-1)
    assert bias is None or bias.shape == weight.shape[:1]
    assert target.shape == leading
    assert token_weights is None or token_weights.shape == leading
    assert token_weights is None or not (token_weights.requires_grad and torch.is_grad_enabled())
    assert gate is None or gate.features.shape[:-1] == leading and gate.weight.size(0) == weight.size(0)
    assert interpolation is None or all(x.shape == leading and x.dtype == wide for x in interpolation)
    assert chunk_dtype in (None, torch.bfloat16)
    check_targets(target, token_weights, vocab_size=weight.size(0))
    weights = torch.ones_like(target, dtype=log_prior.dtype) if token_weights is None else token_weights
    num_tokens, num_experts = target.numel(), latents.size(-2)
    inputs = _Inputs(latents, log_prior, weight, bias, gate, interpolation, target, weights.to(log_prior.dtype))
    inputs = inputs.map_tokens(lambda x: x.reshape(num_tokens, *x.shape[target.dim() :]))
    learned = inputs.learned() if torch.is_grad_enabled() else {}
    kernels = kernels or choose_kernels(latents.device)
    if chunk_size is None:
        chunk_size = default_chunk_size(num_experts, weight.size(0), dtype=log_prior.dtype, device=latents.device)
    chunk_size = even_chunk_size(num_tokens, chunk_size)
    operand_dtype = chunk_dtype or product_dtype(latents)
    is_narrow = chunk_dtype is not None or kernels.bfloat16_logits and operand_dtype == torch.bfloat16
    has_ignored = token_weights is not None
    drop_ignored = has_ignored and kernels.may_synchronize
    with torch.no_grad(), torch.autocast(latents.device.type, enabled=False):
        if has_ignored and (not drop_ignored or operand_dtype == torch.float16):  # float16's scale reads all values
            inputs = inputs.without_ignored_values()
        if adversarial_epsilon > 0:
            margins = adversarial_margins(inputs.latents, weight, inputs.target, epsilon=adversarial_epsilon)
            inputs = inputs._replace(margins=margins)
        fused = _FusedLoss(
            inputs,
            learned,
            label_smoothing=label_smoothing,
            chunk_size=chunk_size,
            operand_dtype=operand_dtype,
            # Gated logits stay wide: W cannot be centered, because the shift would differ from word to word.
            logits_dtype=operand_dtype if is_narrow and gate is None else log_prior.dtype,
            kernels=kernels,
        )
        losses, nll = fused.run(iter_chunks(inputs.token_weights, chunk_size, drop_ignored=drop_ignored))
        if has_ignored:
            nll.masked_fill_(inputs.token_weights == 0, 0)
    loss = _SumWithGradients.apply(losses, list(fused.gradients.values()), *learned.values())
    return MixtureLoss(loss, nll.view(target.shape))


def check_targets(target: Tensor, token_weights: Optional[Tensor], *, vocab_size: int) -> None:
    """Check that targets of non-zero weight are words. Only on a CPU, because reading values waits for a GPU."""
    if target.device.type != "cpu":
        return
    is_wrong = (target < 0) | (target >= vocab_size)
    if token_weights is not None:
        is_wrong &= token_weights != 0
    wrong = target[is_wrong]
    if wrong.numel():
        raise UserError(
            f"mixture_nll: target has words outside 0 .. {vocab_size - 1}: {wrong[:3].tolist()}; give padding "
            "token_weights of zero"
        )


class _SumWithGradients(torch.autograd.Function):
    """The sum of losses whose gradients are known already. The backward pass multiplies them by the incoming gradient.

    Takes the losses (N), the gradients of their sum, and the tensors that these belong to.
    """

    @staticmethod
    # pyrefly: ignore[bad-override]
    def forward(ctx: Any, losses: Tensor, gradients: List[Tensor], *learned: Tensor) -> Tensor:
        ctx.gradients, ctx.dtypes = gradients, [x.dtype for x in learned]
        return losses.sum()

    @staticmethod
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, grad_loss: Tensor) -> Tuple[Optional[Tensor], ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("mixture_nll has no second derivative: differentiate mixture_log_probs instead")
        if ctx.gradients is None:
            raise RuntimeError("mixture_nll was differentiated before: ask for retain_graph=True the first time")
        gradients, keep_graph = ctx.gradients, backward_keeps_graph()
        if not keep_graph:
            ctx.gradients = None  # pyrefly: ignore[implicit-any-attribute]
        scaled = (x * grad_loss if keep_graph else x.mul_(grad_loss) for x in gradients)
        return (None, None, *(x.to(dtype) for x, dtype in zip(scaled, ctx.dtypes)))


class _FusedLoss:
    """The losses of all tokens, and the gradients of their sum, formed together a chunk at a time.

    Args:
        inputs: the tensors of all tokens.
        learned: the inputs that need a gradient, by name.
        operand_dtype: dtype of the operands of matrix products.
        logits_dtype: dtype of logits and probabilities.

    Attributes:
        gradients: by name, in float32 or wider, because sums of many chunks in 16 bits would stop growing.
    """

    def __init__(
        self,
        inputs: "_Inputs",
        learned: Dict[str, Tensor],
        *,
        label_smoothing: float,
        chunk_size: int,
        operand_dtype: torch.dtype,
        logits_dtype: torch.dtype,
        kernels: Kernels,
    ):
        self.label_smoothing, self.logits_dtype, self.kernels = label_smoothing, logits_dtype, kernels
        wide, weights, gate = inputs.log_prior.dtype, inputs.token_weights, inputs.gate
        # float16 ends at 65,504 and loses precision below 6e-5, so gradients in it are scaled by a power of two
        self.scale: Optional[Tensor] = None
        self.gate_scale: Optional[Tensor] = None
        if operand_dtype == torch.float16 and len(weights):
            self.scale = float16_scale(inputs.latents, inputs.weight, weights, chunk_size=chunk_size)
            if gate is not None:
                # d loss / d score = g (1 - g) (W k + b) d loss / d logit, and g (1 - g) <= 1/4
                factors = weights * (logit_bound(inputs.latents, inputs.weight, inputs.bias) / 4)
                self.gate_scale = float16_scale(gate.features, gate.weight, factors, chunk_size=chunk_size)
        if logits_dtype != wide:
            inputs = inputs.centered(logits_dtype, kernels)
        inputs = inputs.with_operands_in(operand_dtype)
        # A gate needs the gradient of the logits as one tensor. So do 16-bit products of 32-bit logits: the gradient is
        # rounded for them, which must happen after its factors are applied.
        self.materialize = gate is not None or operand_dtype != logits_dtype
        self.means: Optional[MeanLogits] = None
        if not self.materialize:
            if label_smoothing > 0:
                self.means = MeanLogits(inputs.weight, inputs.bias, dtype=wide)
            inputs = inputs.padded(kernels.vocab_multiple)
        self.inputs = inputs
        self.gradients = {
            name: torch.zeros_like(x, dtype=wide, memory_format=torch.contiguous_format) for name, x in learned.items()
        }
        self.weight_and_bias: Optional[Tensor] = None
        if {"weight", "bias"} <= learned.keys() and kernels.fuses_bias_gradient(operand_dtype, inputs.log_prior):
            num_words, width = learned["weight"].shape
            joint = inputs.log_prior.new_zeros(num_words, -(-(width + 1) // 8) * 8)  # multiples of 8 make products fast
            self.gradients.update(weight=joint[:, :width], bias=joint[:, width])
            self.weight_and_bias = joint
        self.gate_learns = any(name.startswith("gate.") for name in learned)
        self.logits_learn = not learned.keys().isdisjoint(("latents", "weight", "bias"))

    def run(self, chunks: Sequence[Tokens]) -> Tuple[Tensor, Tensor]:
        """Weighted losses and NLL, both (N), 0 for tokens in no chunk. Forms the gradients."""
        losses, nll = torch.zeros_like(self.inputs.token_weights), torch.zeros_like(self.inputs.token_weights)
        for tokens in chunks:
            losses[tokens], nll[tokens] = self._run_chunk(self.inputs.select(tokens), tokens)
        if self.means is not None:
            self.means.finish(self.gradients)
        for name, gradient in self.gradients.items():
            scale = self.gate_scale if name.startswith("gate.") else self.scale
            if scale is not None and name not in Interpolation._fields:
                gradient.div_(scale)
        return losses, nll

    def _run_chunk(self, inputs: "_Inputs", tokens: Tokens) -> Tuple[Tensor, Tensor]:
        """Weighted losses and NLL, both (n), of the ``tokens`` that the inputs belong to. Adds to the gradients."""
        gradients, gate_values = self.gradients, inputs.gate_values()
        logits = self._logits(inputs, gate_values)

        def recompute_logits(some: Tensor) -> Tensor:
            """The logits of some tokens of the chunk again, (m, J, V)."""
            few = inputs.select(some)
            return self._logits(few, few.gate_values()).unflatten(0, few.log_prior.shape)

        mean_logits = None
        if self.means is not None:
            mean_logits = self.means.compute(inputs.latents)
            if inputs.margins is not None:
                mean_logits = mean_logits - inputs.margins.values / self.means.vocab_size
        elif self.label_smoothing > 0:  # a pass over the logits
            mean_logits = logits.mean(dim=1).view_as(inputs.log_prior)
        chunk = self.kernels.make_chunk(
            logits=logits,
            log_prior=inputs.log_prior,
            target=inputs.target,
            keep_logits=self.gate_learns,  # the gradient of the gate needs them
            recompute_logits=recompute_logits if self.kernels.may_synchronize else None,
            label_smoothing=self.label_smoothing,
            mean_logits=mean_logits,
        )
        loss, nll, posterior, weights = chunk.loss, chunk.nll, None, inputs.token_weights
        if inputs.interpolation is not None:
            nll = inputs.interpolation.nll(chunk.nll)
            posterior = inputs.interpolation.mixture_posterior(chunk.nll, nll)
            loss = loss + (1 - self.label_smoothing) * (nll - chunk.nll)
            nll_weights = (1 - self.label_smoothing) * weights
            if "log_weight" in gradients:
                gradients["log_weight"][tokens] = -nll_weights * posterior
            if "log_other" in gradients:
                gradients["log_other"][tokens] = -nll_weights * inputs.interpolation.other_posterior(nll)
        losses = loss * weights
        if not (self.logits_learn or self.gate_learns or "log_prior" in gradients):
            return losses, nll

        gradient, d_log_prior = chunk.backward(weights if self.scale is None else weights * self.scale, posterior)
        del chunk  # and with it all that refers to the softmax, except the gradient
        if "log_prior" in gradients:
            gradients["log_prior"][tokens] = d_log_prior
        if self.materialize:
            gradient = gradient.materialize()
        if self.gate_learns:
            logits.mul_(gradient.rows)  # z dL/dz, which the gradient of the gate is computed from
        if self.logits_learn:
            if gate_values is not None:
                multiply_by_gate(gradient.rows, gate_values)
            self._add_logit_gradient(gradient, inputs, tokens)
        del gradient  # the gradient of the gate's scores can take its memory
        if self.gate_learns:
            assert inputs.gate is not None and gate_values is not None
            self._add_gate_gradient(gate_gradient(logits, gate_values), inputs.gate, tokens)
        return losses, nll

    def _logits(self, inputs: "_Inputs", gate_values: Optional[Tensor]) -> Tensor:
        """g * (W k + b), (n * J, V), with the targets' logits lowered by the margins before the gate."""
        logits = project(inputs.latents.flatten(0, 1), inputs.weight, inputs.bias, dtype=self.logits_dtype)
        if inputs.margins is not None:
            inputs.margins.subtract(logits)
        if gate_values is not None:
            multiply_by_gate(logits, gate_values)
        return logits

    def _add_logit_gradient(self, gradient: LogitGradient, inputs: "_Inputs", tokens: Tokens) -> None:
        """Add the gradients of k, W and b, given the gradient of a chunk's logits W k + b."""
        gradients, joint = self.gradients, self.weight_and_bias
        rows, factors = inputs.latents.flatten(0, 1), gradient.factors
        operand = gradient.rows.to(rows.dtype)
        # The factors of the rows multiply the smaller operand or result of each product, never the chunk itself.
        if "latents" in gradients:
            d_rows = matmul(operand, inputs.weight)
            d_rows = d_rows.to(gradients["latents"].dtype) if factors is None else d_rows * factors
            gradients["latents"][tokens] = d_rows.view_as(inputs.latents)
        if joint is not None:
            columns = rows.new_zeros(len(rows), joint.size(1))
            columns[:, : rows.size(1)] = rows if factors is None else rows * factors
            columns[:, rows.size(1)] = 1 if factors is None else factors.squeeze(1)
            self.kernels.add_product(joint, operand[:, : len(joint)].t(), columns)
        elif "weight" in gradients:
            scaled = rows if factors is None else (rows * factors).to(rows.dtype)
            self.kernels.add_product(gradients["weight"], operand[:, : len(gradients["weight"])].t(), scaled)
        if joint is None and "bias" in gradients:
            d_bias = gradient.rows.sum(dim=0) if factors is None else matmul(factors.t().to(operand.dtype), operand)[0]
            gradients["bias"].add_(d_bias[: len(gradients["bias"])])
        if gradient.uniform is not None:
            assert self.means is not None
            self.means.subtract_gradients(gradient.uniform, inputs.latents, tokens, gradients=gradients)
        if inputs.margins is not None and "latents" in gradients:
            # Margins depend on k. Their gradient needs the gradient of the targets' logits, the sum of its parts.
            d_targets = inputs.margins.at_targets(gradient.rows).to(inputs.margins.values.dtype)
            if factors is not None:
                d_targets = d_targets * factors.view_as(d_targets)
            if gradient.uniform is not None and self.means is not None:
                d_targets = d_targets - gradient.uniform / self.means.vocab_size
            gradients["latents"][tokens] += inputs.margins.latent_gradient(d_targets, inputs.latents)

    def _add_gate_gradient(self, d_scores: Tensor, gate: LogitGate, tokens: Tokens) -> None:
        """Add the gradients of F, U and c, given the gradient of a chunk's scores F U' + c, (n, V)."""
        gradients = self.gradients
        if self.scale is not None and self.gate_scale is not None:
            d_scores.mul_(self.gate_scale / self.scale)
        operand = d_scores.to(gate.features.dtype)
        if "gate.features" in gradients:
            gradients["gate.features"][tokens] = matmul(operand, gate.weight).to(d_scores.dtype)
        if "gate.weight" in gradients:
            self.kernels.add_product(gradients["gate.weight"], operand.t(), gate.features)
        if "gate.bias" in gradients:
            gradients["gate.bias"].add_(d_scores.sum(dim=0))


class _Inputs(NamedTuple):
    """The tensors of the loss, for all tokens or for a chunk.

    Attributes:
        latents: k, (N, J, d).
        log_prior: log pi, (N, J).
        weight: W, (V, d).
        bias: b, (V), or None.
        gate: g with features (N, D_g), or None.
        interpolation: of the mixture with another distribution, (N), or None.
        target: y, (N).
        token_weights: (N).
        margins: subtracted from the targets' logits before the gate, or None. Their gradient reaches k and not W.
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

    def learned(self) -> Dict[str, Tensor]:
        """The tensors that need a gradient, by the names that users know."""
        named = {"latents": self.latents, "log_prior": self.log_prior, "weight": self.weight, "bias": self.bias}
        if self.gate is not None:
            named.update({f"gate.{name}": x for name, x in self.gate._asdict().items()})
        if self.interpolation is not None:
            named.update(self.interpolation._asdict())
        return {name: x for name, x in named.items() if x is not None and x.requires_grad}

    def with_operands_in(self, dtype: torch.dtype) -> "_Inputs":
        """The same with the operands of matrix products in another type."""
        gate = None if self.gate is None else self.gate.with_operands_in(dtype)
        return self._replace(latents=self.latents.to(dtype), weight=self.weight.to(dtype), gate=gate)

    def map_tokens(self, function: Callable[[Tensor], Tensor]) -> "_Inputs":
        """The same with ``function`` of every tensor that has an element for each token."""
        gate, interpolation, margins = self.gate, self.interpolation, self.margins
        return self._replace(
            latents=function(self.latents),
            log_prior=function(self.log_prior),
            gate=None if gate is None else gate._replace(features=function(gate.features)),
            interpolation=None if interpolation is None else Interpolation(*map(function, interpolation)),
            target=function(self.target),
            token_weights=function(self.token_weights),
            margins=None if margins is None else TargetMargins(*map(function, margins)),
        )

    def select(self, tokens: Tokens) -> "_Inputs":
        """The tensors of some tokens."""
        return self.map_tokens(lambda x: x[tokens])

    def without_ignored_values(self) -> "_Inputs":
        """The same with zeros for the tokens of weight zero, whose values may be anything, NaN included."""
        ignored = self.token_weights == 0
        return self.map_tokens(lambda x: x.masked_fill(ignored.view(-1, *[1] * (x.dim() - 1)), 0))

    def padded(self, multiple: int) -> "_Inputs":
        """The same with rows of zeros in W, and -inf in b, up to a multiple of this many words. Without a gate only."""
        num_more = -self.weight.size(0) % multiple
        if not num_more:
            return self
        bias = self.log_prior.new_zeros(self.weight.size(0)) if self.bias is None else self.bias
        weight = torch.nn.functional.pad(self.weight, (0, 0, 0, num_more))
        return self._replace(weight=weight, bias=torch.nn.functional.pad(bias, (0, num_more), value=-torch.inf))

    def centered(self, dtype: torch.dtype, kernels: Kernels) -> "_Inputs":
        """The same with W in ``dtype`` and b, less the means of the targets' rows.

        This brings the logits of probable words near zero, where 16 bits are densest and e^z stays in range. All logits
        of a row change by the same number, so the softmax stays the same. The gradients of a row's logits add up to
        zero, so the other gradients stay the same, too.
        """
        counts = (self.token_weights != 0).to(self.token_weights.dtype)
        frequencies = counts / counts.sum().clamp(min=1)
        words = self.target.clamp(0, self.weight.size(0) - 1)

        def center(x: Tensor, dtype: torch.dtype) -> Tensor:
            return kernels.center(x, (frequencies @ x[words].to(frequencies.dtype)).nan_to_num(0.0, 0.0, 0.0), dtype)

        bias = None if self.bias is None else center(self.bias, self.bias.dtype)
        return self._replace(weight=center(self.weight, dtype), bias=bias)

    def gate_values(self) -> Optional[Tensor]:
        """g, (N, V), or None."""
        return None if self.gate is None else self.gate.values(self.log_prior.dtype)
