"""One chunk of tokens: its size, its loss under a mixture of softmaxes, and its gradient by the logits.

Shapes: n tokens of the chunk, J experts, V words. A row is one expert of one token, so that there are n * J rows.

Notation: z_j are the logits of expert j, p_j is their softmax and pi_j the expert's prior. The target y has the
probability P(y) = sum_j pi_j p_j(y). The responsibility r_j = pi_j p_j(y) / P(y) is the posterior probability of
expert j given the target. The rate of label smoothing is e. With it every expert is smoothed, and a token's loss is

    (1 - e) (-log P(y)) + e sum_j pi_j mean_v(-log p_j(v)).

For a token of weight w the gradients are

    d loss / d z_j(v) = (t_j + u_j) p_j(v) - t_j [v = y] - u_j / V    with t_j = w (1 - e) r_j and u_j = w e pi_j,
    d loss / d log pi_j = u_j mean_v(-log p_j(v)) - t_j.
"""

import math
from abc import ABC, abstractmethod
from typing import Callable, Dict, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from fairseq_plugins.ops.matmul import accumulation_dtype

CPU_CHUNK_BYTES = 32 * 2**20
"""Logits of a chunk on a CPU: about a last-level cache."""
GPU_CHUNK_SHARE = 1 / 128
"""Logits of a chunk on a GPU, as a share of its memory."""
MIN_CHUNK_ROWS = 480
"""Fewer rows slow the matrix products down, so a chunk has at least about this many. :func:`even_chunk_size` may halve
the number. From 17,477 words on, such a chunk exceeds :data:`CPU_CHUNK_BYTES`."""
SMALLEST_PROBABILITY = {torch.float32: 1e-30, torch.float64: 1e-300}
"""Sums of probabilities are exact from here on. Below, a summand may have been rounded to zero."""

Tokens = Union[slice, Tensor]
"""Indices of the tokens of a chunk."""


class LogitGradient(NamedTuple):
    """The gradient of the logits in parts: factors * rows - uniform / V.

    Scaling the rows would be another pass over the chunk. Scaling the results of the matrix products is cheaper.

    Attributes:
        rows: (n * J, V).
        factors: one for each row, (n * J, 1), in float32 or wider; None stands for ones.
        uniform: V times what is subtracted from all words of a row, (n, J); None stands for zeros.
    """

    rows: Tensor
    factors: Optional[Tensor] = None
    uniform: Optional[Tensor] = None

    def materialize(self) -> "LogitGradient":
        """The same gradient with all parts in its rows, which are overwritten."""
        if self.factors is not None:
            self.rows.mul_(self.factors)
        if self.uniform is not None:
            self.rows.sub_(self.uniform.view(-1, 1) / self.rows.size(1))
        return LogitGradient(self.rows)


class Chunk(ABC):
    """The loss of a chunk. It is computed in place: logits become probabilities, and these become the gradient.

    Attributes:
        nll: -log P(y), (n).
        loss: the loss with label smoothing, (n).
    """

    nll: Tensor
    loss: Tensor

    @abstractmethod
    def backward(self, weights: Tensor, posterior: Optional[Tensor] = None) -> Tuple[LogitGradient, Tensor]:
        """Gradients of the weighted loss by the logits and by log pi, (n, J). It can be called once.

        Args:
            weights: w, (n).
            posterior: of this mixture given the target, (n), if it is interpolated with another distribution.
        """


class _RowSums(NamedTuple):
    """Sums over the words of each row, (n * J, 1) each.

    A softmax is stored as numbers q_j(v) whose sum over the words is the row's total, so that p_j(v) = q_j(v) / total.

    Attributes:
        on_target: q_j(y).
        rest: the sum of q_j over the other words. Computed as the total less q_j(y), it would cancel for confident
            predictions, above all in 16 bits.
        total: of q_j.
        log_prob: log p_j(y).
        log_sum: log sum_v e^(z_j(v)), or None if only label smoothing would need it.
    """

    on_target: Tensor
    rest: Tensor
    total: Tensor
    log_prob: Tensor
    log_sum: Optional[Tensor]


class MixtureChunk(Chunk):
    """The loss of a chunk by plain torch.

    Probabilities have the type of the logits, which may be of 16 bits. Everything else has the type of ``log_prior``.

    Args:
        logits: z, (n * J, V). They are overwritten unless ``keep_logits``.
        log_prior: log pi, (n, J).
        target: y, (n).
        keep_logits: whether the caller needs the logits later. The softmax then takes another tensor of their size.
        recompute_logits: function from indices of tokens, (m), to their logits, (m, J, V). It is called for tokens
            whose P(y) may have been rounded to zero. Finding them waits for the device. None computes all tokens by the
            largest logit of each row instead, which takes another pass over the chunk. Label smoothing needs the
            largest logits in any case, except in 16 bits.
        label_smoothing: e.
        mean_logits: mean_v z_j(v), (n, J); None without label smoothing.
    """

    def __init__(
        self,
        *,
        logits: Tensor,
        log_prior: Tensor,
        target: Tensor,
        keep_logits: bool,
        recompute_logits: Optional[Callable[[Tensor], Tensor]] = None,
        label_smoothing: float = 0.0,
        mean_logits: Optional[Tensor] = None,
    ):
        self._targets = target_places(target, num_experts=log_prior.size(1), vocab_size=logits.size(1))
        self._dtype, self._label_smoothing = log_prior.dtype, label_smoothing
        self._probs = torch.empty_like(logits) if keep_logits else logits
        is_smoothed = mean_logits is not None
        if recompute_logits is None:
            sums = self._softmax_by_maxima(logits)
        elif logits.dtype == self._dtype:
            sums = self._softmax(logits, with_log_sum=is_smoothed)
        else:
            sums = self._exponentiate(logits)
            if not is_normal(sums.total).all():
                softmax = self._softmax_by_maxima if is_smoothed else self._softmax
                sums = softmax(recompute_logits(torch.arange(len(target), device=logits.device)).flatten(0, 1))
        joint = log_prior + sums.log_prob.view_as(log_prior)
        if recompute_logits is not None:
            _recompute_improbable(joint, log_prior, target, recompute_logits, dtype=accumulation_dtype(logits))
        log_prob = torch.logsumexp(joint, dim=1)
        self._sums, self._responsibilities = sums, torch.exp(joint - log_prob.unsqueeze(-1))
        self.nll = self.loss = -log_prob
        self._prior_and_uniform_nll: Optional[Tuple[Tensor, Tensor]] = None
        if mean_logits is not None:
            assert sums.log_sum is not None
            # mean_v(-log p_j(v)) is the log-sum-exp of the logits less their mean
            prior, uniform_nll = log_prior.exp(), sums.log_sum.view_as(log_prior) - mean_logits
            self._prior_and_uniform_nll = prior, uniform_nll
            smoothed = (prior * uniform_nll).sum(dim=1)
            self.loss = (1 - label_smoothing) * self.nll + label_smoothing * smoothed

    def backward(self, weights: Tensor, posterior: Optional[Tensor] = None) -> Tuple[LogitGradient, Tensor]:
        sums = self._sums
        target_coefficients = (weights if posterior is None else weights * posterior).unsqueeze(-1)
        target_coefficients = target_coefficients * self._responsibilities
        # Without smoothing the gradient at the target is t (p(y) - 1) = t / total * -(sum of q over the other words).
        # This form does not cancel where p(y) is almost one.
        if self._prior_and_uniform_nll is None:
            self._write_targets(-sums.rest)
            factors = target_coefficients.view(-1, 1) / sums.total
            return LogitGradient(self._probs, factors), -target_coefficients
        prior, uniform_nll = self._prior_and_uniform_nll
        target_coefficients = (1 - self._label_smoothing) * target_coefficients
        uniform = (self._label_smoothing * weights).unsqueeze(-1) * prior
        # With the factor (t + u) / total of the row, u p(y) + t (p(y) - 1) needs u / (t + u) and t / (t + u).
        # Both are 0 / 0 for an expert whose prior is zero.
        mass = target_coefficients + uniform
        uniform_ratio, target_ratio = (
            (part / mass).nan_to_num(0.0).view(-1, 1) for part in (uniform, target_coefficients)
        )
        self._write_targets(uniform_ratio * sums.on_target - target_ratio * sums.rest)
        gradient = LogitGradient(self._probs, mass.view(-1, 1) / sums.total, uniform)
        return gradient, uniform * uniform_nll - target_coefficients

    def _softmax_by_maxima(self, logits: Tensor) -> _RowSums:
        """Take the softmax, with a log p(y) that is exact even where the softmax underflows."""
        largest_logit, word = logits.max(dim=1, keepdim=True)
        largest_logit = largest_logit.to(self._dtype)
        above_largest = logits.take(self._targets).unsqueeze(1).to(self._dtype) - largest_logit
        torch.softmax(logits, dim=1, out=self._probs)
        # log p(y) = z(y) - max z + log max p: the largest probability cannot underflow
        largest = self._probs.gather(1, word).to(self._dtype)
        on_target, rest, total = self._split_off_targets(sum_in=self._dtype)
        log_largest_prob = (largest / total).log()
        log_prob, log_sum = above_largest + log_largest_prob, largest_logit - log_largest_prob
        return _RowSums(on_target, rest, total, log_prob, log_sum)

    def _softmax(self, logits: Tensor, *, with_log_sum: bool = False) -> _RowSums:
        """Take the softmax, with a log p(y) that is -inf where the softmax underflows."""
        largest_logit = logits.amax(dim=1, keepdim=True) if with_log_sum else None
        torch.softmax(logits, dim=1, out=self._probs)
        on_target, rest, total = self._split_off_targets()
        log_sum = None
        if largest_logit is not None:
            largest = torch.maximum(self._probs.amax(dim=1, keepdim=True), on_target)
            log_sum = largest_logit - (largest / total).log()
        return _RowSums(on_target, rest, total, (on_target / total).log(), log_sum)

    def _exponentiate(self, logits: Tensor) -> _RowSums:
        """Take e^z, which in 16 bits takes half the time of a softmax.

        The logits were centered, so e^z rarely leaves the range. If it does, the total is not normal.
        """
        torch.exp(logits, out=self._probs)
        on_target, rest, total = self._split_off_targets()
        return _RowSums(on_target, rest, total, (on_target / total).log(), total.log())

    def _split_off_targets(self, *, sum_in: Optional[torch.dtype] = None) -> Tuple[Tensor, Tensor, Tensor]:
        """q(y), the sum of q over the other words, and the total, (n * J, 1) each. Overwrites q(y) by zero.

        On a CPU, to sum 16-bit numbers ``sum_in`` float32 copies the chunk.
        """
        on_target = self._probs.take(self._targets).unsqueeze(1).to(self._dtype)
        self._write_targets(torch.zeros_like(on_target))
        rest = self._probs.sum(dim=1, keepdim=True, dtype=sum_in).to(self._dtype)
        return on_target, rest, on_target + rest

    def _write_targets(self, values: Tensor) -> None:
        """Overwrite q(y) of all rows by ``values`` (n * J, 1). In 16 bits, scatter_ would copy the chunk."""
        self._probs.view(-1)[self._targets] = values.squeeze(1).to(self._probs.dtype)


def _recompute_improbable(
    joint: Tensor,
    log_prior: Tensor,
    target: Tensor,
    recompute_logits: Callable[[Tensor], Tensor],
    *,
    dtype: torch.dtype,
) -> None:
    """Overwrite log pi + log p(y), (n, J), of tokens whose P(y) is too small to be exact in ``dtype``."""
    improbable = (torch.logsumexp(joint, dim=1) < math.log(SMALLEST_PROBABILITY[dtype])).nonzero().squeeze(-1)
    if improbable.numel():
        log_softmax = torch.log_softmax(recompute_logits(improbable), dim=-1, dtype=joint.dtype)
        words = target[improbable].view(-1, 1, 1).expand(-1, joint.size(1), 1)
        joint[improbable] = log_prior[improbable] + log_softmax.gather(2, words).squeeze(2)


def is_normal(totals: Tensor) -> Tensor:
    """Where sums of e^z are far from underflow and overflow in bfloat16 and float32."""
    return (totals > 1e-8) & (totals < 1e30)


def target_places(target: Tensor, *, num_experts: int, vocab_size: int) -> Tensor:
    """Indices of the targets (N) in the flattened scores of all words, (N * J): one for each expert."""
    words = target.repeat_interleave(num_experts)
    return torch.arange(0, words.numel() * vocab_size, vocab_size, device=words.device) + words


class Interpolation(NamedTuple):
    """P(y) = exp(log_weight) P_mixture(y) + exp(log_other) for each target y.

    Attributes:
        log_weight: log of the mixture's weight, (*), in the type of the mixture's log pi.
        log_other: log of the other distribution's weight times its probability of the target, (*), in the same
            type; -inf where that is zero.
    """

    log_weight: Tensor
    log_other: Tensor

    def nll(self, mixture_nll: Tensor) -> Tensor:
        """-log P(y), (*), given the mixture's."""
        return -torch.logaddexp(self.log_weight - mixture_nll, self.log_other)

    def mixture_posterior(self, mixture_nll: Tensor, nll: Tensor) -> Tensor:
        """Posterior probability of the mixture given y, (*)."""
        return torch.exp(self.log_weight - mixture_nll + nll)

    def other_posterior(self, nll: Tensor) -> Tensor:
        """Posterior probability of the other distribution given y, (*), exact where it is small."""
        return torch.exp(self.log_other + nll)


class MeanLogits:
    """mean_v of W k + b, and its gradients, for label smoothing without a pass over the logits.

    It is k times the mean row of W, plus the mean of b. Its gradient is the same for all words.

    Args:
        weight: W, (V, d).
        bias: b, (V), or None.
        dtype: of the means, float32 or wider.
    """

    def __init__(self, weight: Tensor, bias: Optional[Tensor], *, dtype: torch.dtype):
        self.vocab_size = weight.size(0)
        self._row = weight.mean(dim=0, dtype=dtype)
        self._bias = 0.0 if bias is None else bias.mean(dtype=dtype)
        self._sum_of_rows = torch.zeros_like(self._row)
        self._sum_of_uniform = torch.zeros_like(self._row[:1])

    def compute(self, latents: Tensor) -> Tensor:
        """The means of a chunk's logits, (n, J), for k (n, J, d)."""
        return latents.to(self._row.dtype) @ self._row + self._bias

    def subtract_gradients(
        self, uniform: Tensor, latents: Tensor, tokens: Tokens, *, gradients: Dict[str, Tensor]
    ) -> None:
        """Subtract the gradients of sum_j uniform_j mean_v(z_j) for some ``tokens``, with ``uniform`` (n, J).

        The gradients of W and b are one row for all words, which :meth:`finish` subtracts at the end.
        """
        if "latents" in gradients:
            gradients["latents"][tokens] -= uniform.unsqueeze(-1) * self._row
        self._sum_of_rows += uniform.flatten() @ latents.flatten(0, 1).to(uniform.dtype)
        self._sum_of_uniform += uniform.sum()

    def finish(self, gradients: Dict[str, Tensor]) -> None:
        """Subtract the sums over all chunks from the gradients of W and b."""
        if "weight" in gradients:
            gradients["weight"].sub_(self._sum_of_rows / self.vocab_size)
        if "bias" in gradients:
            gradients["bias"].sub_(self._sum_of_uniform / self.vocab_size)


# Which tokens a chunk has


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
    """The number of tokens of the chunk that runs fastest.

    Its logits fill :data:`CPU_CHUNK_BYTES`, or on a GPU :data:`GPU_CHUNK_SHARE` of its memory, but have at least about
    :data:`MIN_CHUNK_ROWS` rows. ``dtype`` is the type of the losses. Logits in 16 bits fill half as much.
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


# The scale of a chunk's gradients in float16


def float16_scale(rows: Tensor, weight: Tensor, factors: Tensor, *, chunk_size: int) -> Tensor:
    """The power of two that brings a chunk's gradients near the largest float16 without passing it.

    The absolute gradients of one token's scores ``rows`` W' add up to at most twice the token's factor, and none
    exceeds the factor.

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
