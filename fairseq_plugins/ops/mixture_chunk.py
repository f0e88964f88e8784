"""Loss of a chunk of tokens and its gradient by the logits.

Shapes: n tokens, J experts, V vocabulary. A row is one expert of one token: n * J rows.

r_j is the share of expert j in P(target), e the rate of label smoothing.
"""

import math
from dataclasses import dataclass
from typing import Callable, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from fairseq_plugins.ops.logit_gate import (
    Interpolation,
    LogitGate,
    TargetMargins,
    adversarial_margins,
    check_gate,
    gated_logits,
    target_places,
)
from fairseq_plugins.ops.matmul import SMALLEST_PROBABILITY, accumulation_dtype, autocast_dtype, is_normal

# The gradient of a chunk's loss by its logits.
#
# Shapes: n tokens, J experts, V vocabulary. A row is one expert of one token: n * J rows.


class LogitGradient(NamedTuple):
    """Rows of the gradient, each up to a factor, which costs less where it multiplies what the rows are mapped to.

    Attributes:
        rows: (n * J, V).
        factors: that multiply the rows, (n * J, 1), in float32 or wider, or None where they are one.
    """

    rows: Tensor
    factors: Optional[Tensor] = None

    def multiplied(self) -> Tensor:
        """The gradient itself, (n * J, V), in the place of the rows."""
        return self.rows if self.factors is None else self.rows.mul_(self.factors)


# Arguments of the mixture loss and what is refused among them.


@dataclass(frozen=True)
class LossOptions:
    """Options of the mixture loss that are no tensors.

    Attributes:
        label_smoothing: e, 0 <= e < 1.
        adversarial_epsilon: share of |w_y| |k_j| by which targets' logits are lowered, 0 <= share < 1.
        reduction: "sum" or "none".
        chunk_size: tokens of a chunk, or None for the default.
        chunk_dtype: torch.bfloat16, or None for the type of the latents or autocast's.
        may_skip: whether there may be tokens of weight zero.
        differentiate: whether gradients are formed.
    """

    label_smoothing: float
    adversarial_epsilon: float
    reduction: str
    chunk_size: Optional[int]
    chunk_dtype: Optional[torch.dtype]
    may_skip: bool
    differentiate: bool


def check_arguments(
    latents: Tensor,
    log_prior: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Optional[Tensor],
    token_weights: Optional[Tensor],
    gate: Optional[LogitGate],
    interpolation: Optional[Interpolation],
    options: LossOptions,
) -> None:
    """Refuse arguments of :func:`~fairseq_plugins.ops.mixture_loss.mixture_nll` that do not fit.

    Raises:
        ValueError: if one has a wrong shape, type, device or value; the message names it.
    """
    per_token = {"token_weights": token_weights, **({} if interpolation is None else interpolation._asdict())}
    _check_shapes(latents, log_prior, weight, target, bias=bias, per_token=per_token)
    _check_types(latents, log_prior, weight, target, bias=bias, interpolation=interpolation)
    check_gate(gate, latents, vocab_size=weight.size(0), caller="mixture_nll", name="latents")
    _check_options(options)
    if not options.differentiate:
        return
    _require(
        token_weights is None or not token_weights.requires_grad,
        "token_weights requires a gradient, but none is formed: give token_weights.detach()",
    )
    if options.reduction == "none":
        inputs = {"latents": latents, "log_prior": log_prior, "weight": weight, "bias": bias}
        if gate is not None:
            inputs.update({f"gate.{part}": tensor for part, tensor in gate._asdict().items()})
        if interpolation is not None:
            inputs.update(interpolation._asdict())
        learned = [name for name, tensor in inputs.items() if tensor is not None and tensor.requires_grad]
        _require(not learned, f'reduction="none" gives no gradient for {", ".join(learned)}: score under no_grad()')


def check_target_range(target: Tensor, *, weights: Tensor, vocab_size: int) -> None:
    """Refuse targets, of the shape of ``weights``, that are no words where the weight is not zero.

    On another device than a CPU nothing is checked, because the check would wait for the device.

    Raises:
        ValueError: if there is one; the message shows the first three.
    """
    if target.device.type != "cpu":
        return
    out_of_range = target[((target < 0) | (target >= vocab_size)) & (weights != 0)]
    _require(
        not out_of_range.numel(),
        f"target has words outside 0 .. {vocab_size - 1}: {out_of_range[:3].tolist()}; mark padding by "
        "ignore_index or by token_weights of zero",
    )


def _check_shapes(
    latents: Tensor,
    log_prior: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Optional[Tensor],
    per_token: Mapping[str, Optional[Tensor]],
) -> None:
    _require(
        latents.dim() >= 2 and latents.size(-1) > 0 and latents.size(-2) > 0,
        f"latents is {tuple(latents.shape)}: it must be (*, experts, width)",
    )
    leading, (num_experts, width) = tuple(latents.shape[:-2]), latents.shape[-2:]
    _require(
        weight.dim() == 2 and weight.size(0) > 0 and weight.size(1) == width,
        f"weight is {tuple(weight.shape)}: it must be (vocabulary, {width}), as wide as latents",
    )
    expected_shapes: Dict[str, Tuple[Optional[Tensor], Tuple[int, ...]]] = {
        "log_prior": (log_prior, (*leading, num_experts)),
        "target": (target, leading),
        "bias": (bias, (weight.size(0),)),
        **{name: (tensor, leading) for name, tensor in per_token.items()},
    }
    for name, (tensor, shape) in expected_shapes.items():
        if tensor is not None:
            _require(tuple(tensor.shape) == shape, f"{name} is {tuple(tensor.shape)}: it must be {shape}")
    for name, tensor in (("weight", weight), *((name, tensor) for name, (tensor, _) in expected_shapes.items())):
        if tensor is not None:
            _require(tensor.device == latents.device, f"{name} is on {tensor.device}, latents on {latents.device}")


def _check_types(
    latents: Tensor,
    log_prior: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Optional[Tensor],
    interpolation: Optional[Interpolation],
) -> None:
    _require(latents.is_floating_point(), f"latents is {latents.dtype}: it must be a floating-point type")
    _require(target.dtype == torch.int64, f"target is {target.dtype}: it must be torch.int64")
    if autocast_dtype(latents) is None:
        for name, tensor in (("weight", weight), ("bias", bias)):
            if tensor is not None:
                _require(tensor.dtype == latents.dtype, f"{name} is {tensor.dtype}, latents {latents.dtype}: cast one")
    sums = {"log_prior": log_prior, **({} if interpolation is None else interpolation._asdict())}
    for name, tensor in sums.items():
        _require(
            tensor.dtype == accumulation_dtype(latents),
            f"{name} is {tensor.dtype}: it must be {accumulation_dtype(latents)} for latents of {latents.dtype}",
        )


def _check_options(options: LossOptions) -> None:
    _require(0.0 <= options.label_smoothing < 1.0, f"label_smoothing is {options.label_smoothing}: 0 <= e < 1")
    _require(
        0.0 <= options.adversarial_epsilon < 1.0,
        f"adversarial_epsilon is {options.adversarial_epsilon}: 0 <= epsilon < 1",
    )
    _require(
        options.chunk_size is None or (isinstance(options.chunk_size, int) and options.chunk_size >= 1),
        f"chunk_size is {options.chunk_size}: it must be a whole number of at least 1",
    )
    _require(
        options.chunk_dtype in (None, torch.bfloat16),
        f"chunk_dtype is {options.chunk_dtype}: choose torch.bfloat16 or None",
    )
    _require(options.reduction in ("sum", "none"), f'reduction is "{options.reduction}": choose "sum" or "none"')


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(f"mixture_nll: {message}")


# Inputs of the mixture loss, and their logits.
#
# Shapes: N tokens, J experts, d latent width, D_g features of the gate, V vocabulary.


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


# Scale of gradients in float16, whose numbers end at 65,504 and lose precision below 6e-5.


def float16_scale(rows: Tensor, weight: Tensor, factors: Tensor, *, chunk_size: int) -> Tensor:
    """The power of two that brings a chunk's gradients near the largest float16 without passing it.

    The gradients by the scores ``rows`` W' of one token add up to at most twice its factor in absolute value, and to
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
    """What no logit W k + b exceeds in absolute value: latents (..., d), weight (V, d), bias (V)."""
    longest_latent, longest_weight = (
        torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32).max() for x in (latents, weight)
    )
    bound = longest_latent * longest_weight
    return bound if bias is None else bound + torch.linalg.vector_norm(bias, float("inf"), dtype=torch.float32)


# Gradients of the mixture loss, and what they are scaled by while they are in float16.


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


# Label smoothing of every softmax of a mixture: what of its loss and gradient is the same for all words of a row.
#
# Shapes: n tokens of a chunk, J experts, d latent width, V vocabulary. A row is one expert of one token: n * J rows.
#
# With the rate e the loss of a token has e sum_j pi_j mean_v(-log p_j(v)), and mean_v(-log p_j(v)) is the log-sum-exp
# of expert j's logits less their mean.


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


class ChunkGradient(NamedTuple):
    """Gradients of a chunk's weighted loss.

    Attributes:
        logits: by the logits but for what is the same for all words of a row.
        uniform: V times what is left to subtract from all words of a row, e pi, (n, J); None without label smoothing.
        log_prior: by log pi, (n, J).
    """

    logits: LogitGradient
    uniform: Optional[Tensor]
    log_prior: Tensor


class MixtureChunk:
    """The loss of a chunk, (1 - e) NLL + e sum_j pi_j mean_v(-log p_j(v)), computed in place.

    The constructor overwrites the logits by their softmax, each row up to a factor, and :meth:`backward` this by the
    logits' gradient. The softmax has the type of the logits, which may be of 16 bits; everything else has that of
    ``log_prior``. Rounding does no harm to confident predictions: P(target) is p / (p + q) and the gradient at the
    target -q / (p + q) with the sum q of the other words' elements, so that neither is lost where the other is almost
    one. With label smoothing the gradient is ((1 - e) r_j + e pi_j) p_j(v) - (1 - e) r_j [v = target] - e pi_j / V.

    Args:
        logits: z, (n * J, V), overwritten unless they are to be kept: then the softmax is another tensor as large.
        log_prior: log pi, (n, J).
        target: words to score, (n).
        keep_logits: whether the logits are needed later.
        logits_of: from indices of tokens (m) to their logits z (m, J, V), for the tokens whose P(target) may have been
            rounded to zero; finding them waits for the device. None computes all by the largest logits of the rows,
            two more passes over the chunk; so does label smoothing, but for a chunk of 16 bits.
        smoothing: e and the means of the logits, or None without label smoothing.

    Attributes:
        nll: -log P(target), (n).
        loss: as above, (n).
    """

    def __init__(
        self,
        *,
        logits: Tensor,
        log_prior: Tensor,
        target: Tensor,
        keep_logits: bool,
        logits_of: Optional[Callable[[Tensor], Tensor]],
        smoothing: Optional[LabelSmoothing] = None,
    ):
        self._targets = target_places(target, num_experts=log_prior.size(1), vocab_size=logits.size(1))
        self._dtype, self._num_experts = log_prior.dtype, log_prior.size(1)
        self._probs = torch.empty_like(logits) if keep_logits else logits
        self._smoothing = smoothing
        log_softmax = self._by_maxima(logits) if logits_of is None else self._by_probabilities(logits, logits_of)
        joint = log_prior + log_softmax.view_as(log_prior)
        if logits_of is not None:
            smallest = SMALLEST_PROBABILITY[accumulation_dtype(logits)]
            _look_again(joint, log_prior, target, logits_of, smallest=smallest)
        log_prob = torch.logsumexp(joint, dim=1)
        self._target_share = torch.exp(joint - log_prob.unsqueeze(-1))
        self.nll = self.loss = -log_prob
        if smoothing is not None:
            self._prior, self._spread = log_prior.exp(), self._log_sum.view_as(log_prior) - smoothing.mean_logits
            smoothed = (self._prior * self._spread).sum(dim=1)
            self.loss = (1 - smoothing.rate) * self.nll + smoothing.rate * smoothed

    def backward(self, weights: Tensor, share: Optional[Tensor] = None) -> ChunkGradient:
        """Gradients of the weighted loss; ``share`` (n) is that of the mixture in P(target), by default one."""
        on_target = (weights if share is None else weights * share).unsqueeze(-1) * self._target_share
        if self._smoothing is None:
            self._write_targets(-self._rest)
            return ChunkGradient(LogitGradient(self._probs, on_target.view(-1, 1) / self._total), None, -on_target)
        on_target = (1 - self._smoothing.rate) * on_target
        on_words = (self._smoothing.rate * weights).unsqueeze(-1) * self._prior
        mass = on_target + on_words
        share_of_words, share_of_target = ((part / mass).nan_to_num(0.0).view(-1, 1) for part in (on_words, on_target))
        self._write_targets(share_of_words * self._on_target - share_of_target * self._rest)
        gradient = LogitGradient(self._probs, mass.view(-1, 1) / self._total)
        return ChunkGradient(gradient, on_words, on_words * self._spread - on_target)

    def _by_maxima(self, logits: Tensor) -> Tensor:
        """Take the softmax; log softmax of the targets, (n * J, 1), exact where the softmax underflows."""
        largest_logit = logits.amax(dim=1, keepdim=True).to(self._dtype)
        above_largest = logits.take(self._targets).unsqueeze(1).to(self._dtype) - largest_logit
        torch.softmax(logits, dim=1, out=self._probs)
        largest = self._probs.amax(dim=1, keepdim=True).to(self._dtype)
        self._split()
        below_sum = (largest / self._total).log()
        self._log_sum = largest_logit - below_sum
        return above_largest + below_sum

    def _by_probabilities(self, logits: Tensor, logits_of: Callable[[Tensor], Tensor]) -> Tensor:
        """Take the softmax; log softmax of the targets, (n * J, 1), -inf where the softmax underflows."""
        if logits.dtype == self._dtype:
            largest_logit = None if self._smoothing is None else logits.amax(dim=1, keepdim=True)
            torch.softmax(logits, dim=1, out=self._probs)
            on_target = self._split()
            if largest_logit is not None:
                largest = torch.maximum(self._probs.amax(dim=1, keepdim=True), on_target)
                self._log_sum = largest_logit - (largest / self._total).log()
            return (on_target / self._total).log()
        torch.exp(logits, out=self._probs)  # the softmax up to a factor of the row, in half the time
        on_target = self._split()
        if not is_normal(self._total).all():
            every_token = torch.arange(len(logits) // self._num_experts, device=logits.device)
            again = logits_of(every_token).flatten(0, 1)
            if self._smoothing is not None:
                return self._by_maxima(again)
            torch.softmax(again, dim=1, out=self._probs)
            on_target = self._split()
        self._log_sum = self._total.log()
        return (on_target / self._total).log()

    def _split(self) -> Tensor:
        """The targets' elements, (n * J, 1), which are overwritten by zero; keeps them and the sums of the others."""
        self._on_target = self._probs.take(self._targets).unsqueeze(1).to(self._dtype)
        self._write_targets(torch.zeros_like(self._on_target))
        self._rest = self._probs.sum(dim=1, keepdim=True).to(self._dtype)
        self._total = self._on_target + self._rest
        return self._on_target

    def _write_targets(self, values: Tensor) -> None:
        """Overwrite the targets' elements by ``values`` (n * J, 1); in 16 bits, scatter_ would copy the chunk."""
        self._probs.view(-1)[self._targets] = values.squeeze(1).to(self._probs.dtype)


def _look_again(
    joint: Tensor, log_prior: Tensor, target: Tensor, logits_of: Callable[[Tensor], Tensor], *, smallest: float
) -> None:
    """Overwrite log pi + log softmax, (n, J), of tokens whose P(target) is below the ``smallest`` exact one."""
    improbable = (torch.logsumexp(joint, dim=1) < math.log(smallest)).nonzero().squeeze(-1)
    if improbable.numel():
        log_softmax = torch.log_softmax(logits_of(improbable), dim=-1, dtype=joint.dtype)
        words = target[improbable].view(-1, 1, 1).expand(-1, joint.size(1), 1)
        joint[improbable] = log_prior[improbable] + log_softmax.gather(2, words).squeeze(2)


# Chunks of tokens: how many tokens each holds, and which.


CPU_CHUNK_BYTES = 32 * 2**20
"""Logits of a chunk on a CPU: about a last-level cache."""
GPU_CHUNK_SHARE = 1 / 128
"""Logits of a chunk on a GPU, as a share of its memory."""
MIN_CHUNK_ROWS = 480
"""A chunk has at least about so many rows, for fewer slow the matrix products down; :func:`even_chunk_size` may then
halve it. Above 17,476 words they take more than :data:`CPU_CHUNK_BYTES`. A chunk in 16 bits stays below 32 MiB, where
the C library reuses memory, up to 34,900 words."""


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


def cut(weights: Tensor, chunk_size: int, *, may_skip: bool) -> Sequence[Union[slice, Tensor]]:
    """Indices of the tokens of each chunk.

    Args:
        weights: of the tokens, (N).
        may_skip: whether tokens of weight zero are in no chunk; on a GPU, finding them waits for the device.
    """
    num_tokens = weights.numel()
    kept = weights.nonzero().squeeze(-1) if may_skip else None
    if kept is None or kept.numel() == num_tokens:
        return [slice(first, first + chunk_size) for first in range(0, num_tokens, chunk_size)]
    return kept.split(chunk_size) if kept.numel() else []
