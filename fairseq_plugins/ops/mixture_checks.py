"""Checks of the arguments of :func:`~fairseq_plugins.ops.mixture_loss.mixture_nll`."""

from typing import Dict, Optional, Tuple

import torch
from torch import Tensor

from fairseq_plugins.ops.logit_gate import LogitGate, check_gate
from fairseq_plugins.ops.matmul import accumulation_dtype, autocast_dtype
from fairseq_plugins.ops.mixture_chunk import Interpolation
from fairseq_plugins.options import UserError


def check_arguments(
    latents: Tensor,
    log_prior: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Optional[Tensor],
    gate: Optional[LogitGate],
    interpolation: Optional[Interpolation],
    token_weights: Optional[Tensor],
    label_smoothing: float,
    adversarial_epsilon: float,
    chunk_size: Optional[int],
    chunk_dtype: Optional[torch.dtype],
) -> None:
    """Check values, shapes, devices and types.

    Raises:
        UserError: on the first argument that does not fit. The message begins with its name.
    """
    _require(0.0 <= label_smoothing < 1.0, f"label_smoothing is {label_smoothing}: 0 <= e < 1")
    _require(0.0 <= adversarial_epsilon < 1.0, f"adversarial_epsilon is {adversarial_epsilon}: 0 <= epsilon < 1")
    is_size = chunk_size is None or (isinstance(chunk_size, int) and chunk_size >= 1)
    _require(is_size, f"chunk_size is {chunk_size}: it must be a whole number of at least 1")
    _require(chunk_dtype in (None, torch.bfloat16), f"chunk_dtype is {chunk_dtype}: choose torch.bfloat16 or None")
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
    check_gate(gate, latents, vocab_size=weight.size(0), caller="mixture_nll", name="latents")
    _require(
        token_weights is None or not (token_weights.requires_grad and torch.is_grad_enabled()),
        "token_weights requires a gradient, but none is formed: give token_weights.detach()",
    )
    check_targets(target, token_weights, vocab_size=weight.size(0))


def check_targets(target: Tensor, token_weights: Optional[Tensor], *, vocab_size: int) -> None:
    """Check that targets are words where their weight is not zero; on CPUs alone, because a GPU would have to wait."""
    if target.device.type != "cpu":
        return
    is_wrong = (target < 0) | (target >= vocab_size)
    if token_weights is not None:
        is_wrong &= token_weights != 0
    wrong = target[is_wrong]
    _require(
        not wrong.numel(),
        f"target has words outside 0 .. {vocab_size - 1}: {wrong[:3].tolist()}; give padding token_weights of zero",
    )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(f"mixture_nll: {message}")
