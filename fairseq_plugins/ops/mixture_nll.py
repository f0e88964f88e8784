"""Negative log-likelihood of a mixture of softmaxes at the price of its matrix products.

Shapes: * any leading dimensions, N tokens in all, n tokens of a chunk, J experts, d latent width, V vocabulary.
A row is one expert of one token: n * J rows a chunk.
"""

from dataclasses import dataclass
from typing import List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from fairseq_plugins.ops.autograd_graph import backward_keeps_graph
from fairseq_plugins.ops.matmul import add_matmul, matmul
from fairseq_plugins.ops.precision import accumulation_dtype, autocast_dtype

CPU_CHUNK_BYTES = 32 * 2**20
"""Logits of a chunk on a CPU: about a last-level cache."""
GPU_CHUNK_SHARE = 1 / 128
"""Logits of a chunk on a GPU, as a share of its memory."""
MIN_CHUNK_ROWS = 512
"""Fewer rows slow the matrix products down; from 16,384 words on they are more than the bytes above."""


class MixtureLoss(NamedTuple):
    """What :func:`mixture_nll` returns.

    Attributes:
        loss: weighted loss in nats, a scalar for ``reduction="sum"``, (*) for ``"none"``.
        nll: -log P(target) of every token, (*), without gradient and label smoothing; 0 where a token is ignored.
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
    token_weights: Optional[Tensor] = None,
    ignore_index: Optional[int] = None,
    label_smoothing: float = 0.0,
    reduction: str = "sum",
    chunk_size: Optional[int] = None,
) -> MixtureLoss:
    """Loss of P(v) = sum_j pi_j softmax(W k_j + b)_v  (Yang et al. 2018, eq. 2; Takase et al. 2018, eq. 7).

    The loss of a token is (1 - e) NLL + e mean_v(-log P(v)) with e = ``label_smoothing``. Tokens are processed
    in chunks; the gradients of their weighted sum are formed in the forward pass from each chunk's logits,

        d NLL / d z_{j,v} = r_j (softmax(z_j)_v - [v = target]),   d NLL / d log pi_j = -r_j,

    where r_j is the share of expert j in P(target), and only multiplied by the incoming gradient in the
    backward pass. So one chunk of logits is held (beside it half a chunk for 16-bit operands, and 1 + 2 / J chunks for
    label smoothing where J > 1), and training costs three matrix products; without gradients, one. Softmax, losses and
    sums over chunks are in float32 or wider; products of 16-bit operands, autocast's included, are rounded to 16
    bits. Tokens of weight zero are left out of the products.

    Args:
        latents: k, (*, J, d).
        log_prior: log pi, (*, J), normalised over J, float32 or wider; -inf where pi is zero.
        weight: W, (V, d).
        target: words to score, (*), int64, 0 <= target < V where a token is not ignored.
        bias: b, (V), finite.
        token_weights: factor of each token's loss, (*), without gradient; by default one. On a GPU, giving them or
            ``ignore_index`` waits for the device once, to count the tokens.
        ignore_index: target of tokens that count as if their weight were zero.
        label_smoothing: e, 0 <= e < 1.
        reduction: "sum" over all tokens, for training; "none", a loss for each token, for scoring.
        chunk_size: tokens of a chunk; by default as the device's memory or cache suggests. Results differ by
            rounding only.

    Raises:
        ValueError: if an argument has a wrong shape, type, device or value (the message names it), or if
            ``reduction="none"`` is called where a gradient would be needed.
        RuntimeError: if a second derivative is taken.
    """
    settings = _Settings(
        label_smoothing=label_smoothing,
        reduction=reduction,
        chunk_size=chunk_size,
        may_skip=token_weights is not None or ignore_index is not None,
        differentiate=torch.is_grad_enabled(),
    )
    _check(latents, log_prior, weight, target, bias, token_weights, settings)
    num_tokens, (num_experts, width) = target.numel(), latents.shape[-2:]
    weights = torch.ones_like(target, dtype=log_prior.dtype) if token_weights is None else token_weights.detach()
    if ignore_index is not None:
        weights = weights.masked_fill(target.eq(ignore_index), 0)
    if target.device.type == "cpu":  # elsewhere the check would wait for the device
        out_of_range = target[((target < 0) | (target >= weight.size(0))) & (weights != 0)]
        _require(
            not out_of_range.numel(),
            f"target has words outside 0 .. {weight.size(0) - 1}: {out_of_range[:3].tolist()}; mark padding by "
            "ignore_index or by token_weights of zero",
        )
    loss, nll = _MixtureNLL.apply(
        latents.reshape(num_tokens, num_experts, width),
        log_prior.reshape(num_tokens, num_experts),
        weight,
        bias,
        target.reshape(num_tokens),
        weights.reshape(num_tokens).to(log_prior.dtype),
        settings,
    )
    return MixtureLoss(loss=loss if reduction == "sum" else loss.view(target.shape), nll=nll.view(target.shape))


def default_chunk_size(num_experts: int, vocab_size: int, *, dtype: torch.dtype, device: torch.device) -> int:
    """Tokens whose logits fill the share of the device's memory, or of a CPU's cache, that runs fastest.

    Matrix products need a few hundred rows to run at full speed, whatever the vocabulary.
    """
    if device.type == "cuda":
        chunk_bytes = torch.cuda.get_device_properties(device).total_memory * GPU_CHUNK_SHARE
    else:
        chunk_bytes = CPU_CHUNK_BYTES
    num_rows = max(MIN_CHUNK_ROWS, int(chunk_bytes / (vocab_size * dtype.itemsize)))
    return max(1, num_rows // num_experts)


@dataclass(frozen=True)
class _Settings:
    label_smoothing: float
    reduction: str
    chunk_size: Optional[int]
    may_skip: bool
    differentiate: bool


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(f"mixture_nll: {message}")


def _check(latents, log_prior, weight, target, bias, token_weights, settings: _Settings) -> None:
    _require(
        latents.dim() >= 2 and latents.size(-1) > 0 and latents.size(-2) > 0,
        f"latents is {tuple(latents.shape)}: it must be (*, experts, width)",
    )
    leading, (num_experts, width) = tuple(latents.shape[:-2]), latents.shape[-2:]
    _require(
        weight.dim() == 2 and weight.size(0) > 0 and weight.size(1) == width,
        f"weight is {tuple(weight.shape)}: it must be (vocabulary, {width}), as wide as latents",
    )
    expected_shapes = {
        "log_prior": (log_prior, (*leading, num_experts)),
        "target": (target, leading),
        "bias": (bias, (weight.size(0),)),
        "token_weights": (token_weights, leading),
    }
    for name, (tensor, shape) in expected_shapes.items():
        if tensor is not None:
            _require(tuple(tensor.shape) == shape, f"{name} is {tuple(tensor.shape)}: it must be {shape}")
    for name, tensor in (("weight", weight), *((name, tensor) for name, (tensor, _) in expected_shapes.items())):
        if tensor is not None:
            _require(tensor.device == latents.device, f"{name} is on {tensor.device}, latents on {latents.device}")
    _require(latents.is_floating_point(), f"latents is {latents.dtype}: it must be a floating-point type")
    _require(target.dtype == torch.int64, f"target is {target.dtype}: it must be torch.int64")
    if autocast_dtype(latents) is None:
        for name, tensor in (("weight", weight), ("bias", bias)):
            if tensor is not None:
                _require(tensor.dtype == latents.dtype, f"{name} is {tensor.dtype}, latents {latents.dtype}: cast one")
    _require(
        log_prior.dtype == accumulation_dtype(latents),
        f"log_prior is {log_prior.dtype}: it must be {accumulation_dtype(latents)} for latents of {latents.dtype}",
    )
    _require(0.0 <= settings.label_smoothing < 1.0, f"label_smoothing is {settings.label_smoothing}: 0 <= e < 1")
    _require(
        settings.chunk_size is None or (isinstance(settings.chunk_size, int) and settings.chunk_size >= 1),
        f"chunk_size is {settings.chunk_size}: it must be a whole number of at least 1",
    )
    _require(settings.reduction in ("sum", "none"), f'reduction is "{settings.reduction}": choose "sum" or "none"')
    _require(
        not (settings.differentiate and token_weights is not None and token_weights.requires_grad),
        "token_weights requires a gradient, but none is formed: give token_weights.detach()",
    )
    if settings.reduction == "none" and settings.differentiate:
        inputs = {"latents": latents, "log_prior": log_prior, "weight": weight, "bias": bias}
        learned = [name for name, tensor in inputs.items() if tensor is not None and tensor.requires_grad]
        _require(not learned, f'reduction="none" gives no gradient for {", ".join(learned)}: score under no_grad()')


class _MixtureNLL(torch.autograd.Function):
    """The chunked loss: latents (N, J, d), log_prior (N, J), target and weights (N)."""

    @staticmethod
    def forward(ctx, latents, log_prior, weight, bias, target, weights, settings: _Settings):
        inputs = (latents, log_prior, weight, bias)
        ctx.dtypes = [None if x is None else x.dtype for x in inputs]
        operand_dtype = autocast_dtype(latents) or latents.dtype
        chunk_size = settings.chunk_size or default_chunk_size(
            latents.size(1), weight.size(0), dtype=log_prior.dtype, device=latents.device
        )
        num_chunks = max(1, -(-latents.size(0) // chunk_size))
        chunk_size = max(1, -(-latents.size(0) // num_chunks))  # all about as large
        gradient_scale = None
        if operand_dtype == torch.float16 and weights.numel():
            gradient_scale = _float16_scale(latents, weight, weights, chunk_size)
        ctx.gradient_scale = gradient_scale
        ctx.gradients = [
            torch.zeros_like(x, dtype=log_prior.dtype, memory_format=torch.contiguous_format)
            if needed and settings.differentiate
            else None
            for x, needed in zip(inputs, ctx.needs_input_grad)
        ]
        with torch.autocast(latents.device.type, enabled=False):
            losses, nll = _run_chunks(
                latents.to(operand_dtype),
                log_prior,
                weight.to(operand_dtype),
                bias,
                target,
                weights,
                weights if gradient_scale is None else weights * gradient_scale,
                chunks=_cut(weights, chunk_size, may_skip=settings.may_skip),
                label_smoothing=settings.label_smoothing,
                gradients=ctx.gradients,
            )
        if settings.reduction == "none":
            ctx.mark_non_differentiable(losses, nll)
            return losses, nll
        ctx.mark_non_differentiable(nll)
        return losses.sum(), nll

    @staticmethod
    def backward(ctx, grad_loss, _):
        if torch.is_grad_enabled():
            raise RuntimeError("mixture_nll has no second derivative: differentiate mixture_log_probs instead")
        if ctx.gradients is None:
            raise RuntimeError("mixture_nll was differentiated before: ask for retain_graph=True the first time")
        keep_graph = backward_keeps_graph()
        scale = grad_loss if ctx.gradient_scale is None else grad_loss / ctx.gradient_scale
        results = [
            None if gradient is None else (gradient * scale if keep_graph else gradient.mul_(scale)).to(dtype)
            for gradient, dtype in zip(ctx.gradients, ctx.dtypes)
        ]
        if not keep_graph:
            ctx.gradients = None
        return (*results, None, None, None)


def _run_chunks(
    latents: Tensor,
    log_prior: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    target: Tensor,
    weights: Tensor,
    gradient_weights: Tensor,
    *,
    chunks: Sequence[Union[slice, Tensor]],
    label_smoothing: float,
    gradients: List[Optional[Tensor]],
) -> Tuple[Tensor, Tensor]:
    """Weighted losses and NLL, both (N).

    ``gradients`` receive the gradients of the losses weighted by ``gradient_weights``, where they are not None.
    """
    _, num_experts, width = latents.shape
    d_latents, d_log_prior, d_weight, d_bias = gradients
    losses, nll = torch.zeros_like(weights), torch.zeros_like(weights)
    for chosen in chunks:
        rows = latents[chosen].flatten(0, 1)
        chunk = _Chunk(
            logits=project(rows, weight, bias, dtype=log_prior.dtype),
            log_prior=log_prior[chosen],
            target=target[chosen],
            label_smoothing=label_smoothing,
        )
        nll[chosen] = chunk.nll
        losses[chosen] = chunk.loss * weights[chosen]
        if any(gradient is not None for gradient in gradients):
            d_logits, d_prior = chunk.backward(gradient_weights[chosen])
            operand = d_logits.to(latents.dtype)
            if d_latents is not None:
                d_latents[chosen] = matmul(operand, weight).view(-1, num_experts, width).to(d_latents.dtype)
            if d_log_prior is not None:
                d_log_prior[chosen] = d_prior
            if d_weight is not None:
                add_matmul(d_weight, operand.t(), rows)
            if d_bias is not None:
                d_bias.add_(d_logits.sum(dim=0))
            del d_logits, operand
        del chunk  # or two chunks would be held
    return losses, nll


def _cut(weights: Tensor, chunk_size: int, *, may_skip: bool) -> Sequence[Union[slice, Tensor]]:
    """Indices of the tokens of each chunk; tokens of weight zero are in none."""
    num_tokens = weights.numel()
    kept = weights.nonzero().squeeze(-1) if may_skip else None
    if kept is None or kept.numel() == num_tokens:
        return [slice(first, first + chunk_size) for first in range(0, num_tokens, chunk_size)]
    return kept.split(chunk_size) if kept.numel() else []


class _Chunk:
    """Scores a chunk in place: of its logits (n * J, V) first the softmax is left, then their gradient.

    Where the labels of several experts are smoothed, another tensor as large receives the share of every expert in
    every P(v).
    """

    def __init__(self, *, logits, log_prior, target, label_smoothing):
        self.label_smoothing = label_smoothing
        self.targets = target.repeat_interleave(log_prior.size(1)).unsqueeze(-1)
        self.share = None
        target_logit = logits.gather(1, self.targets).view_as(log_prior)
        largest = logits.amax(dim=1).view_as(log_prior)
        if label_smoothing > 0:
            if log_prior.size(1) > 1:
                self.share = logits.clone().view(*log_prior.shape, -1)
            else:
                mean_logit = logits.mean(dim=1)
        self.probs = torch.softmax(logits, dim=1, out=logits)
        # log softmax(z)_v = (z_v - max z) + log max softmax(z): exact where softmax(z)_v underflows
        log_largest = self.probs.amax(dim=1).log().view_as(log_prior)
        joint = log_prior + (target_logit - largest + log_largest)
        log_prob = torch.logsumexp(joint, dim=1)
        self.target_share = torch.exp(joint - log_prob.unsqueeze(-1))
        self.nll = -log_prob
        self.loss = self.nll
        if label_smoothing > 0:
            if self.share is not None:
                mean_log_prob = self._mix(log_prior + log_largest - largest)
            else:
                mean_log_prob = mean_logit + (log_prior + log_largest - largest).squeeze(1)
            self.loss = (1 - label_smoothing) * self.nll - label_smoothing * mean_log_prob

    def _mix(self, log_scale: Tensor) -> Tensor:
        """mean_v log P(v), (n); leaves the experts' shares where the logits z were, of which
        log pi + log softmax(z) = z + ``log_scale``, (n, J)."""
        self.share.add_(log_scale.unsqueeze(-1))
        largest = self.share.amax(dim=1)
        total = self.share.sub_(largest.unsqueeze(1)).exp_().sum(dim=1)
        self.share.div_(total.unsqueeze(1))
        return largest.add_(total.log_()).mean(dim=-1)

    def backward(self, weights: Tensor) -> Tuple[Tensor, Tensor]:
        """Gradients of the weighted loss by the logits (n * J, V) and by log pi (n, J)."""
        on_target = (1 - self.label_smoothing) * weights.unsqueeze(-1) * self.target_share
        on_word = (self.label_smoothing / self.probs.size(1)) * weights
        if self.label_smoothing == 0:
            mass = on_target
        elif self.share is None:
            mass = on_target + self.label_smoothing * weights.unsqueeze(-1)
        else:
            mass = on_target + self.share.mul_(on_word.view(-1, 1, 1)).sum(dim=-1)
        d_logits = self.probs.mul_(mass.view(-1, 1))
        if self.label_smoothing > 0:
            d_logits.sub_(on_word.unsqueeze(-1) if self.share is None else self.share.flatten(0, 1))
        d_logits.scatter_add_(1, self.targets, -on_target.view(-1, 1))
        return d_logits, -mass


def project(rows: Tensor, weight: Tensor, bias: Optional[Tensor], *, dtype: torch.dtype) -> Tensor:
    """Logits W k + b of rows k, (n * J, V), in ``dtype``, which may be wider than that of the operands."""
    if dtype == rows.dtype:
        return matmul(rows, weight.t(), bias)
    logits = matmul(rows, weight.t()).to(dtype)
    return logits if bias is None else logits.add_(bias)


def _float16_scale(latents: Tensor, weight: Tensor, weights: Tensor, chunk_size: int) -> Tensor:
    """The power of two that brings a chunk's gradients near the largest float16 without passing it."""
    largest_latent, largest_weight, largest_factor = (
        torch.linalg.vector_norm(x, float("inf")).float() for x in (latents, weight, weights)
    )
    bound = largest_factor * torch.maximum(chunk_size * largest_latent, 2 * largest_weight).clamp(min=1)
    return torch.exp2(torch.floor(torch.log2(2**15 / bound.clamp(min=2**-10))))
