"""Computations of the functions in ``fairseq_plugins/ops``, for the comparison of devices.

Chunks in bfloat16 (``chunk_dtype``) are left out, because the comparison has no bound for them. The CPU rounds them to
16 bits from float64 as from float32, so the one is not exact, and the difference of the two does not show what another
device's roundings may err by. In units of bfloat16's rounding, sqrt(n) of them are two thirds of a tensor, which would
hide any mistake. The step ``output`` runs them.

Shapes: N tokens, J experts, d width, V vocabulary, B rows, T steps.
"""

from functools import partial
from typing import Any, Callable, Dict, Iterator

import torch
from torch import Tensor, nn

from fairseq_plugins.benchmarks.device.comparison import Computation, Tensors, random_inputs
from fairseq_plugins.ops import regularizers
from fairseq_plugins.ops.logit_gate import Interpolation, LogitGate, apply_gate
from fairseq_plugins.ops.matmul import add_matmul, linear, matmul, project
from fairseq_plugins.ops.mixture_distribution import (
    mean_log_probs,
    mixture_log_probs,
    mixture_log_probs_from_latents,
    responsibilities,
    softmax_entropies,
)
from fairseq_plugins.ops.mixture_loss import MixtureLoss, float16_scale, mixture_nll
from fairseq_plugins.ops.noise_contrastive import chosen_logits, noise_contrast
from fairseq_plugins.ops.recurrence import StepProducts, linear_scan, masked_lstm, recurrent_highway

N, J, D, V = 37, 3, 24, 301
B, T = 4, 9
GATE_WIDTH = 8
IGNORED = 7


def op_computations() -> Iterator[Computation]:
    """Every function of tensors, with what changes its course."""
    yield from _mixture_losses()
    yield from _distributions()
    yield from _products()
    yield _computation("chosen_logits", _chosen_logits, hidden=(N, D), labels=(V, D))
    yield _computation("noise_contrast", _noise_contrast, target_log_odds=(N,), noise_log_odds=(N, J))
    yield _computation("masked_lstm", _masked_lstm, inputs=(T, B, 4 * D), weight=(4 * D, D), h=(B, D), c=(B, D))
    highway = dict(inputs=(T, B, 2 * D), first=(2 * D, D), second=(2 * D, D), biases=(2, 2 * D), s=(B, D))
    yield _computation("recurrent_highway", _recurrent_highway, **highway)
    yield _computation("linear_scan", _linear_scan, inputs=(T, B, D), factors=(D,), start=(B, D))
    for name, matrix in (("one matrix", (D, D)), ("a matrix a row", (B, D, D))):
        yield _computation(f"StepProducts, {name}", _recurrence, known=(T, B, D), matrix=matrix, start=(B, D))
    yield from _penalties()


def _computation(name: str, function: Callable[[Tensors], Any], **shapes: Any) -> Computation:
    return Computation(name=name, compute=partial(_named, function), inputs=random_inputs(0, **shapes))


def _without_gradients(name: str, function: Callable[[Tensors], Any], **shapes: Any) -> Computation:
    inputs = random_inputs(0, **shapes)
    return Computation(name=name, compute=partial(_named, function), inputs=inputs, gradients="off")


def _named(function: Callable[[Tensors], Any], module: nn.Module, x: Tensors) -> Dict[str, Tensor]:
    results = function(x)
    results = results if isinstance(results, tuple) else (results,)
    return {str(number): result for number, result in enumerate(results)}


def _target(x: Tensor) -> Tensor:
    return torch.arange(N, device=x.device) * IGNORED % V


def _gate(x: Tensors) -> LogitGate:
    return LogitGate(x["features"], x["gate_weight"], x["gate_bias"])


MIXTURE = dict(latents=(N, J, D), scores=(N, J), weight=(V, D), bias=(V,))
GATE = dict(features=(N, GATE_WIDTH), gate_weight=(V, GATE_WIDTH), gate_bias=(V,))


def _loss(x: Tensors, **options: Any) -> MixtureLoss:
    log_prior = torch.log_softmax(x["scores"], dim=-1)
    if "gate_weight" in x:
        options["gate"] = _gate(x)
    if "share" in x:
        log_share = torch.nn.functional.logsigmoid(x["share"])
        options["interpolation"] = Interpolation(torch.nn.functional.logsigmoid(-x["share"]), log_share - 2)
    return mixture_nll(x["latents"], log_prior, x["weight"], _target(x["weight"]), bias=x["bias"], **options)


def _weighted_loss(x: Tensors) -> MixtureLoss:
    token_weights = torch.arange(N, device=x["weight"].device) % 3
    return _loss(x, token_weights=token_weights, ignore_index=IGNORED)


def _mixture_losses() -> Iterator[Computation]:
    single = {**MIXTURE, "latents": (N, 1, D), "scores": (N, 1)}
    yield _computation("mixture_nll", _loss, **MIXTURE)
    yield _computation("mixture_nll, one softmax", _loss, **single)
    yield _computation("mixture_nll, label smoothing", partial(_loss, label_smoothing=0.1), **MIXTURE)
    yield _computation("mixture_nll, adversarial margins", partial(_loss, adversarial_epsilon=0.1), **MIXTURE)
    yield _computation("mixture_nll, chunks of 5 tokens", partial(_loss, chunk_size=5), **MIXTURE)
    yield _computation("mixture_nll, weighted tokens", _weighted_loss, **MIXTURE)
    yield _computation("mixture_nll, gate", _loss, **MIXTURE, **GATE)
    yield _computation("mixture_nll, one softmax, gate", _loss, **single, **GATE)
    yield _computation("mixture_nll, interpolation", _loss, **MIXTURE, share=(N,))
    smoothed = partial(_loss, label_smoothing=0.1)
    yield _computation("mixture_nll, gate, label smoothing, interpolation", smoothed, **MIXTURE, **GATE, share=(N,))
    yield _without_gradients("mixture_nll, a loss a token", partial(_loss, reduction="none"), **MIXTURE)


def _distribution(x: Tensors) -> Tensor:
    return mixture_log_probs(x["logits"], torch.log_softmax(x["scores"], dim=-1))


def _decoded(x: Tensors) -> Tensor:
    log_prior = torch.log_softmax(x["scores"], dim=-1)
    gate = _gate(x) if "gate_weight" in x else None
    return mixture_log_probs_from_latents(x["latents"], log_prior, x["weight"], x["bias"], gate=gate)


def _entropies(x: Tensors) -> Tensor:
    return softmax_entropies(x["latents"], x["weight"], x["bias"], gate=_gate(x))


def _gated(x: Tensors) -> Tensor:
    return apply_gate(x["logits"], _gate(x))


def _averaged(x: Tensors) -> Any:
    log_probs = torch.log_softmax(x["logits"], dim=-1).unbind(1)
    return mean_log_probs(log_probs), torch.stack(list(responsibilities(log_probs)))


def _distributions() -> Iterator[Computation]:
    yield _computation("mixture_log_probs", _distribution, logits=(N, J, V), scores=(N, J))
    yield _without_gradients("mixture_log_probs_from_latents", _decoded, **MIXTURE)
    yield _without_gradients("mixture_log_probs_from_latents, gate", _decoded, **MIXTURE, **GATE)
    yield _without_gradients("softmax_entropies", _entropies, latents=(N, J, D), weight=(V, D), bias=(V,), **GATE)
    yield _computation("apply_gate", _gated, logits=(N, J, V), **GATE)
    yield _computation("mean_log_probs", _averaged, logits=(N, J, V))


def _linear(x: Tensors) -> Tensor:
    return linear(x["x"], x["weight"], x["bias"])


def _linear_of_features(x: Tensors) -> Tensor:
    features = torch.arange(0, D, 2, device=x["x"].device)
    return linear(x["x"], x["weight"][:, features], x["bias"], features=features)


def _matmul(x: Tensors) -> Tensor:
    return matmul(x["x"], x["weight"].t(), x["bias"])


def _add_matmul(x: Tensors) -> Tensor:
    total = x["bias"].repeat(N, 1)
    add_matmul(total, x["x"], x["weight"].t())
    return total


def _project(x: Tensors) -> Tensor:
    return project(x["x"], x["weight"], x["bias"], dtype=x["x"].dtype)


def _scale(x: Tensors) -> Tensor:
    return float16_scale(x["x"], x["weight"], x["x"][:, 0].abs(), chunk_size=5)


def _products() -> Iterator[Computation]:
    shapes = dict(x=(N, D), weight=(V, D), bias=(V,))
    yield _computation("linear", _linear, **shapes)
    yield _computation("linear, chosen features", _linear_of_features, **shapes)
    for name, function in (
        ("matmul", _matmul),
        ("add_matmul", _add_matmul),
        ("project", _project),
        ("float16_scale", _scale),
    ):
        yield _without_gradients(name, function, **shapes)


def _chosen_logits(x: Tensors) -> Tensor:
    first = _target(x["labels"]).unsqueeze(-1)
    return chosen_logits(x["hidden"], x["labels"], torch.cat([first, (first + 1) % V, (3 * first) % V], dim=1))


def _noise_contrast(x: Tensors) -> Tensor:
    is_hit = (torch.arange(N * J, device=x["noise_log_odds"].device) % 5 == 0).view(N, J)
    return noise_contrast(x["target_log_odds"], x["noise_log_odds"], is_hit)


def _mask(like: Tensor) -> Tensor:
    """0 and 2 by turns, (B, D)."""
    return 2.0 * (torch.arange(B * D, device=like.device).view(B, D) % 2).to(like)


def _masked_lstm(x: Tensors) -> Any:
    return masked_lstm(x["inputs"], x["weight"], _mask(x["h"]), x["h"], x["c"])


def _recurrent_highway(x: Tensors) -> Tensor:
    weights = [x["first"], x["second"]]
    return recurrent_highway(x["inputs"], weights, list(x["biases"]), x["s"], mask=_mask(x["s"]))


def _linear_scan(x: Tensors) -> Tensor:
    return linear_scan(x["inputs"], torch.tanh(x["factors"]), x["start"])


def _recurrence(x: Tensors) -> Tensor:
    products, state = StepProducts(x["known"], x["matrix"]), x["start"]
    states = []
    for t in range(T):
        state = torch.tanh(products(t, state))
        states.append(state)
    return torch.stack(states)


def _penalty(x: Tensors, *, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    mask = (torch.arange(B * T, device=x["x"].device).view(B, T) % 5 > 0).to(x["x"])
    return function(x["x"].softmax(dim=-1), mask)


def _penalties() -> Iterator[Computation]:
    for function in (
        regularizers.activation_regularization,
        regularizers.temporal_activation_regularization,
        regularizers.prior_balance_by_row,
        regularizers.prior_balance_by_batch,
    ):
        yield _computation(function.__name__, partial(_penalty, function=function), x=(B, T, J))
    yield _computation("absolute_sum", lambda x: regularizers.absolute_sum(x.values()), first=(D, J), second=(V,))
