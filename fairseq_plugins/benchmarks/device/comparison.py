"""A computation on a device against the same on the CPU: values and gradients, with bounds from rounding.

The exact result is the CPU's in float64. What the CPU's float32 errs by shows how much the computation magnifies the
rounding of a number, in units of float32's rounding (at least one, where it happens to be exact). The device may err by
as many units of the type that it computes in, times sqrt(n), where n is the number of elements of the largest tensor:
no sum has more terms, and a sum's roundings add up like a random walk in an order that differs from device to device.
Errors are norms of whole tensors. What passes through cuDNN's recurrent kernel in float32 is allowed four times as
much: it is coarser (on an H200 LSTMs err by 1e-5 in it, by 2e-7 step by step, and in float64 by less than 1e-15).
"""

import copy
import math
from dataclasses import dataclass, field
from typing import Callable, Dict, Literal, Mapping, NamedTuple, Tuple

import torch
from torch import Tensor, nn

from fairseq_plugins.benchmarks.device.backward_nodes import is_run_by_cudnn
from fairseq_plugins.benchmarks.device.precision import float32_products
from fairseq_plugins.benchmarks.device.step import Figures

Tensors = Mapping[str, Tensor]

CUDNN_ROUNDINGS = 4
"""Roundings of float32 that make one of cuDNN's recurrent kernel; with one, LSTMs on an H200 err by up to 1.5 times
what is allowed."""


@dataclass(frozen=True, kw_only=True)
class Computation:
    """What both devices compute.

    Attributes:
        name: in tables.
        compute: of the module and the inputs to named results.
        inputs: on the CPU; floating-point ones, in float64, have gradients.
        module: on the CPU in float64, whose parameters have gradients, or None.
        mode: of the module.
        gradients: whether they are compared, or the computation runs without.
    """

    name: str
    compute: Callable[[nn.Module, Tensors], Tensors]
    inputs: Tensors
    module: nn.Module = field(default_factory=nn.Module)
    mode: Literal["training", "evaluation"] = "training"
    gradients: Literal["compared", "off"] = "compared"


def prepared(computation: Computation, *, device: str, dtype: torch.dtype) -> Tuple[nn.Module, Dict[str, Tensor]]:
    """Copies of the module and of the inputs on a device, in a type; floating-point inputs require gradients."""
    module = copy.deepcopy(computation.module).to(device=device, dtype=dtype)
    module.train(computation.mode == "training")
    inputs = {name: _moved(x, device, dtype) for name, x in computation.inputs.items()}
    return module, inputs


class Outcome(NamedTuple):
    """What a device computed.

    Attributes:
        tensors: results and gradients of a weighted sum of them, by name, on the CPU in float64.
        is_run_by_cudnn: whether cuDNN's recurrent kernel took part; not told where no gradients are compared.
    """

    tensors: Dict[str, Tensor]
    is_run_by_cudnn: bool


def outcome(computation: Computation, *, device: str, dtype: torch.dtype) -> Outcome:
    """Run a computation, forwards and, where gradients are compared, backwards."""
    module, inputs = prepared(computation, device=device, dtype=dtype)
    learned = {name: x for name, x in inputs.items() if x.requires_grad}
    learned.update({f"parameter {name}": parameter for name, parameter in module.named_parameters()})
    with torch.set_grad_enabled(computation.gradients == "compared"), float32_products("strict"):
        results = computation.compute(module, inputs)
        differentiable = {name: x for name, x in results.items() if x.requires_grad}
        found = {f"value {name}": x for name, x in results.items()}
        if differentiable:
            total = torch.stack([(x * _weights(x)).sum() for x in differentiable.values()]).sum()
            gradients = torch.autograd.grad(total, list(learned.values()), allow_unused=True)
            found.update({f"gradient {name}": x for name, x in zip(learned, gradients) if x is not None})
    assert bool(differentiable) == (computation.gradients == "compared"), f"{computation.name}: gradients"
    by_cudnn = is_run_by_cudnn(differentiable.values())
    return Outcome({name: x.detach().double().cpu() for name, x in found.items()}, is_run_by_cudnn=by_cudnn)


def compare(computation: Computation, *, device: str, dtype: torch.dtype) -> Figures:
    """The largest error of the device, as a share of what rounding allows, and whose it is; an error above 1."""
    exact = outcome(computation, device="cpu", dtype=torch.float64).tensors
    single = outcome(computation, device="cpu", dtype=torch.float32).tensors
    found, by_cudnn = outcome(computation, device=device, dtype=dtype)
    rounding = torch.finfo(dtype).eps
    if by_cudnn and dtype == torch.float32:
        rounding *= CUDNN_ROUNDINGS
    if found.keys() != exact.keys():
        return {"error": f"has other results than the CPU: {', '.join(sorted(found.keys() ^ exact.keys()))}"}
    num_terms = max(x.numel() for x in (*exact.values(), *computation.inputs.values()))
    figures: Figures = {"share": 0.0, "relative_error": 0.0, "tensor": ""}
    for name, value in found.items():
        if value.shape != exact[name].shape or not torch.equal(value.isfinite(), exact[name].isfinite()):
            return {"error": f"{name} has another shape or is not finite"}
        size = _norm(exact[name])
        error = _norm(value - exact[name])
        allowed = _allowed(_norm(single[name] - exact[name]), size, num_terms=num_terms, rounding=rounding)
        share = error / allowed if allowed else float(error > 0)
        if share >= figures["share"]:
            figures = {"share": share, "relative_error": error / size if size else error, "tensor": name}
    if figures["share"] > 1:
        figures["error"] = "{tensor} errs by {share:.3g} times what rounding allows".format(**figures)
    return figures


def _allowed(error_of_float32: float, size: float, *, num_terms: int, rounding: float) -> float:
    """What a tensor of norm ``size`` may err by where one number may by ``rounding``, relative to it."""
    rounding_of_float32 = torch.finfo(torch.float32).eps
    units = max(error_of_float32 / rounding_of_float32, size)
    return math.sqrt(num_terms) * units * rounding


def _norm(x: Tensor) -> float:
    return torch.linalg.vector_norm(torch.nan_to_num(x)).item()


def _moved(x: Tensor, device: str, dtype: torch.dtype) -> Tensor:
    """A copy that shares nothing."""
    if x.is_floating_point():
        return x.detach().clone().to(device=device, dtype=dtype).requires_grad_()
    return x.clone().to(device)


def _weights(x: Tensor) -> Tensor:
    """The same for every device, all apart from each other and from zero."""
    weights = torch.linspace(0.5, 1.5, x.numel(), dtype=torch.float64).sin()
    return weights.view(x.shape).to(x)


def random_inputs(seed: int, **shapes: Tuple[int, ...]) -> Dict[str, Tensor]:
    """Tensors of normally distributed numbers in float64, by name, of the given shapes."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
