"""Arguments of the mixture loss and what is refused among them."""

from dataclasses import dataclass
from typing import Dict, Mapping, Optional, Tuple

import torch
from torch import Tensor

from fairseq_plugins.ops.interpolation import Interpolation
from fairseq_plugins.ops.logit_gate import LogitGate, check_gate
from fairseq_plugins.ops.precision import accumulation_dtype, autocast_dtype


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
    """Refuse arguments of :func:`~fairseq_plugins.ops.mixture_nll.mixture_nll` that do not fit.

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
