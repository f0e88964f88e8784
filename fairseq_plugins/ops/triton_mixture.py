"""The loss of a chunk by Triton: one kernel for the rows, two for the tokens, and one for distributions.

The row kernel takes the softmax in place, and its statistics in float32. It reads the logits twice, the second time
mostly from the cache, and writes them once. The token kernels compute the mixture of a token's experts and the factors
of its gradient. Nothing is added atomically, so that results repeat to the bit.

Import this module only where Triton is installed. With ``TRITON_INTERPRET=1`` in the environment the kernels run on a
CPU, slowly, for tests.

Shapes: n tokens of the chunk, J experts, V words. A row is one expert of one token. The notation is that of
:mod:`~fairseq_plugins.ops.mixture_chunk`.
"""

from typing import Any, Optional, Tuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_plugins.ops.kernels import Kernels
from fairseq_plugins.ops.mixture_chunk import Chunk, LogitGradient

WORDS_AT_ONCE = 4096
"""Words of a row that a program holds at once."""
NUM_WARPS = 8


@triton.jit
def softmax_rows(
    logits,
    probs,
    target,
    log_prob,
    on_target,
    rest,
    log_sum,
    num_experts,
    vocab_size: tl.constexpr,
    writes: tl.constexpr,
    block: tl.constexpr,
):
    """The statistics of a row, and where ``writes`` its softmax, with zero in place of the target's probability.

    ``vocab_size`` is a constant, so that the compiler knows the alignment of the rows.
    """
    row = tl.program_id(0).to(tl.int64)
    word = tl.load(target + row // num_experts)
    word = tl.minimum(tl.maximum(word, 0), vocab_size - 1)  # an ignored token may have any target
    first = row * vocab_size
    at_target = tl.load(logits + first + word).to(tl.float32)
    largest = at_target
    others = 0.0
    for start in range(0, vocab_size, block):
        words = start + tl.arange(0, block)
        z = tl.load(logits + first + words, mask=words < vocab_size, other=float("-inf")).to(tl.float32)
        new_largest = tl.maximum(largest, tl.max(z, axis=0))
        # a row may begin with -inf only: then the shift is 0, and e^z is 0
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        others = others * tl.exp(largest - shift) + tl.sum(tl.where(words == word, 0.0, tl.exp(z - shift)), axis=0)
        largest = new_largest
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    own = tl.exp(at_target - shift)
    total = own + others
    normaliser = shift + tl.log(total)
    tl.store(log_prob + row, at_target - normaliser)
    tl.store(on_target + row, own / total)
    tl.store(rest + row, others / total)
    tl.store(log_sum + row, normaliser)
    if writes:
        for start in range(0, vocab_size, block):
            words = start + tl.arange(0, block)
            inside = words < vocab_size
            z = tl.load(logits + first + words, mask=inside, other=float("-inf")).to(tl.float32)
            p = tl.where(words == word, 0.0, tl.exp(z - shift) / total)
            tl.store(probs + first + words, p, mask=inside)


@triton.jit
def mix_experts(
    log_prior,
    log_prob,
    log_sum,
    mean_logits,
    responsibilities,
    nll,
    loss,
    smoothing,
    num_experts,
    is_smoothed: tl.constexpr,
    block: tl.constexpr,
):
    """The NLL and the loss of a token, and the responsibilities of its experts."""
    token = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, block)
    inside = experts < num_experts
    offsets = token * num_experts + experts
    prior = tl.load(log_prior + offsets, mask=inside, other=float("-inf"))
    joint = prior + tl.load(log_prob + offsets, mask=inside, other=float("-inf"))
    largest = tl.max(joint, axis=0)
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    log_total = shift + tl.log(tl.sum(tl.exp(joint - shift), axis=0))
    tl.store(responsibilities + offsets, tl.exp(joint - log_total), mask=inside)
    tl.store(nll + token, -log_total)
    token_loss = -log_total
    if is_smoothed:
        uniform_nll = tl.load(log_sum + offsets, mask=inside, other=0.0) - tl.load(
            mean_logits + offsets, mask=inside, other=0.0
        )
        smoothed = tl.sum(tl.where(inside, tl.exp(prior) * uniform_nll, 0.0), axis=0)
        token_loss = (1 - smoothing) * token_loss + smoothing * smoothed
    tl.store(loss + token, token_loss)


@triton.jit
def gradient_factors(
    probs,
    target,
    log_prior,
    log_sum,
    mean_logits,
    responsibilities,
    on_target,
    rest,
    weights,
    posterior,
    factors,
    uniform,
    d_log_prior,
    smoothing,
    num_experts,
    vocab_size: tl.constexpr,
    is_smoothed: tl.constexpr,
    is_interpolated: tl.constexpr,
    block: tl.constexpr,
):
    """The factors of a token's rows, the elements of its target in them, and its gradient of log pi."""
    token = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, block)
    inside = experts < num_experts
    offsets = token * num_experts + experts
    weight = tl.load(weights + token)
    target_weight = weight
    if is_interpolated:
        target_weight = weight * tl.load(posterior + token)
    t = target_weight * tl.load(responsibilities + offsets, mask=inside, other=0.0)
    others = tl.load(rest + offsets, mask=inside, other=0.0)
    element = -others
    factor = t
    gradient = -t
    if is_smoothed:
        t = (1 - smoothing) * t
        u = smoothing * weight * tl.exp(tl.load(log_prior + offsets, mask=inside, other=float("-inf")))
        factor = t + u
        divisor = tl.where(factor == 0, 1.0, factor)  # t and u are zero if the prior is zero
        own = tl.load(on_target + offsets, mask=inside, other=0.0)
        element = (u / divisor) * own - (t / divisor) * others
        uniform_nll = tl.load(log_sum + offsets, mask=inside, other=0.0) - tl.load(
            mean_logits + offsets, mask=inside, other=0.0
        )
        gradient = u * uniform_nll - t
        tl.store(uniform + offsets, u, mask=inside)
    tl.store(factors + offsets, factor, mask=inside)
    tl.store(d_log_prior + offsets, gradient, mask=inside)
    word = tl.load(target + token)
    word = tl.minimum(tl.maximum(word, 0), vocab_size - 1)
    tl.store(probs + offsets * vocab_size + word, element, mask=inside)


@triton.jit
def mix_distributions(
    logits, log_prior, log_sum, out, num_experts: tl.constexpr, vocab_size: tl.constexpr, block: tl.constexpr
):
    """log sum_j pi_j p_j(v) of a token and a block of words, in log space."""
    token, start = tl.program_id(0).to(tl.int64), tl.program_id(1) * block
    words = start + tl.arange(0, block)
    inside = words < vocab_size
    largest = tl.full((block,), float("-inf"), tl.float32)
    total = tl.zeros((block,), tl.float32)
    for j in range(0, num_experts):
        row = token * num_experts + j
        z = tl.load(logits + row * vocab_size + words, mask=inside, other=float("-inf")).to(tl.float32)
        joint = z + (tl.load(log_prior + row) - tl.load(log_sum + row))
        new_largest = tl.maximum(largest, joint)
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        total = total * tl.exp(largest - shift) + tl.exp(joint - shift)
        largest = new_largest
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    tl.store(out + token * vocab_size + words, shift + tl.log(total), mask=inside)


class TritonChunk(Chunk):
    """The loss of a chunk with float32 statistics in three launches.

    It takes the arguments of :class:`~fairseq_plugins.ops.mixture_chunk.MixtureChunk`. No logits are computed again.

    The rows of its gradient are probabilities, so that their absolute values add up to at most 2.
    """

    def __init__(
        self,
        *,
        logits: Tensor,
        log_prior: Tensor,
        target: Tensor,
        keep_logits: bool,
        label_smoothing: float = 0.0,
        mean_logits: Optional[Tensor] = None,
    ):
        self._target, self._log_prior = target.contiguous(), log_prior.contiguous()
        self._label_smoothing = label_smoothing
        self._mean_logits = None if mean_logits is None else mean_logits.contiguous()
        self._probs = torch.empty_like(logits) if keep_logits else logits
        log_prob, self._on_target, self._rest, self._log_sum = _row_statistics(
            logits, self._target, like=self._log_prior, probs=self._probs
        )
        self._responsibilities, self.nll = torch.empty_like(self._log_prior), log_prior.new_empty(len(log_prior))
        self.loss = torch.empty_like(self.nll)
        num_experts = log_prior.size(1)
        if len(log_prior):
            mix_experts[(len(log_prior),)](
                self._log_prior,
                log_prob,
                self._log_sum,
                self._log_sum if self._mean_logits is None else self._mean_logits,
                self._responsibilities,
                self.nll,
                self.loss,
                label_smoothing,
                num_experts,
                is_smoothed=mean_logits is not None,
                block=triton.next_power_of_2(num_experts),
                num_warps=1,
            )

    def backward(self, weights: Tensor, posterior: Optional[Tensor] = None) -> Tuple[LogitGradient, Tensor]:
        is_smoothed, (num_tokens, num_experts) = self._mean_logits is not None, self._log_prior.shape
        factors, d_log_prior = torch.empty_like(self._log_prior), torch.empty_like(self._log_prior)
        uniform = torch.empty_like(self._log_prior) if is_smoothed else None
        if num_tokens:
            gradient_factors[(num_tokens,)](
                self._probs,
                self._target,
                self._log_prior,
                self._log_sum,
                self._log_sum if self._mean_logits is None else self._mean_logits,
                self._responsibilities,
                self._on_target,
                self._rest,
                weights.contiguous(),
                weights if posterior is None else posterior.contiguous(),
                factors,
                factors if uniform is None else uniform,
                d_log_prior,
                self._label_smoothing,
                num_experts,
                vocab_size=self._probs.size(1),
                is_smoothed=is_smoothed,
                is_interpolated=posterior is not None,
                block=triton.next_power_of_2(num_experts),
                num_warps=1,
            )
        return LogitGradient(self._probs, factors.view(-1, 1), uniform), d_log_prior


def _row_statistics(
    logits: Tensor, target: Tensor, *, like: Tensor, probs: Optional[Tensor]
) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """log p(y), p(y), the other words' p and log sum_v e^z of logits (n * J, V), each ``like`` log pi, (n, J).

    The softmax is written to ``probs`` if it is given.
    """
    log_prob, on_target, rest, log_sum = (torch.empty_like(like) for _ in range(4))
    num_rows, vocab_size = logits.shape
    if num_rows:
        softmax_rows[(num_rows,)](
            logits,
            logits if probs is None else probs,
            target,
            log_prob,
            on_target,
            rest,
            log_sum,
            like.size(1),
            vocab_size=vocab_size,
            writes=probs is not None,
            block=min(WORDS_AT_ONCE, triton.next_power_of_2(vocab_size)),
            num_warps=NUM_WARPS,
        )
    return log_prob, on_target, rest, log_sum


class TritonKernels(Kernels):
    """The chunk of the loss and the distribution of a search by Triton; the rest by plain torch."""

    name = "triton"
    bfloat16_logits = True

    def make_chunk(self, **arguments: Any) -> Chunk:
        if arguments["log_prior"].dtype != torch.float32:
            return super().make_chunk(**arguments)
        return TritonChunk(**{name: value for name, value in arguments.items() if name != "recompute_logits"})

    def log_mixture(self, logits: Tensor, log_prior: Tensor, *, out: Tensor) -> bool:
        if out.dtype != torch.float32:
            return False
        num_tokens, vocab_size = out.shape
        log_prior = log_prior.contiguous()
        any_word = torch.zeros(num_tokens, dtype=torch.int64, device=logits.device)
        *_, log_sum = _row_statistics(logits, any_word, like=log_prior, probs=None)
        if num_tokens:
            block = min(WORDS_AT_ONCE // 4, triton.next_power_of_2(vocab_size))
            mix_distributions[(num_tokens, triton.cdiv(vocab_size, block))](
                logits,
                log_prior,
                log_sum,
                out,
                num_experts=log_prior.size(1),
                vocab_size=vocab_size,
                block=block,
                num_warps=4,
            )
        return True


TRITON = TritonKernels()
