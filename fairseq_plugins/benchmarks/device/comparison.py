"""Compare a computation on a device with the same computation on the CPU: values and gradients, with error bounds.

The CPU's result in float64 counts as exact. The error of the CPU in float32, in units of float32's rounding, shows how
much the computation magnifies the rounding of a number. It counts as at least one unit, because it may be zero by luck.
The device may err by the same number of units of its own type, times sqrt(n), where n is the number of elements of the
largest tensor: no sum has more terms, and the roundings of a sum add up like a random walk, in an order that differs
between devices. Errors are norms of whole tensors. Results of cuDNN's recurrent kernel in float32 may err by four times
as much, because that kernel is coarser: on an H200, LSTMs err by 1e-5 with it and by 2e-7 step by step. In float64 both
err by less than 1e-15.
"""

import copy
import math
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Callable, Dict, Iterable, Iterator, Literal, Mapping, NamedTuple, Tuple

import torch
from torch import Tensor, nn

from fairseq_plugins.benchmarks.device.record import Figures


@contextmanager
def float32_products(kind: Literal["strict", "TF32"]) -> Iterator[None]:
    """Within the context, products of float32 operands keep float32's precision or round their operands to TF32.

    Both matrix products and cuDNN are set. cuDNN's default is TF32.
    """
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision("high" if kind == "TF32" else "highest")
        torch.backends.cudnn.allow_tf32 = kind == "TF32"
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def is_run_by_cudnn(results: Iterable[Tensor]) -> bool:
    """Whether cuDNN's recurrent kernel computed the results or a part of them, as the autograd graph shows."""
    waiting = [x.grad_fn for x in results]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        if "cudnnrnn" in node.name().lower():
            return True
        following = {function for function, _ in node.next_functions} - seen
        seen |= following
        waiting += following
    return False


Tensors = Mapping[str, Tensor]

CUDNN_ROUNDINGS = 4
"""Bound on the error of cuDNN's recurrent kernel, in roundings of float32. With 1 instead, LSTMs on an H200 exceed the
bound by a factor of up to 1.5."""


@dataclass(frozen=True, kw_only=True)
class Computation:
    """A computation that both devices run.

    Attributes:
        name: its name in tables.
        compute: maps the module and the inputs to named results.
        inputs: tensors on the CPU. Those of floating point are in float64 and get gradients.
        module: on the CPU in float64. Its parameters get gradients.
        mode: mode of the module.
        gradients: "compared", or "off" to run without autograd.
    """

    name: str
    compute: Callable[[nn.Module, Tensors], Tensors]
    inputs: Tensors
    module: nn.Module = field(default_factory=nn.Module)
    mode: Literal["training", "evaluation"] = "training"
    gradients: Literal["compared", "off"] = "compared"


def prepared(computation: Computation, *, device: str, dtype: torch.dtype) -> Tuple[nn.Module, Dict[str, Tensor]]:
    """Copies of the module and of the inputs on a device in a dtype. Floating-point inputs require gradients."""
    module = copy.deepcopy(computation.module).to(device=device, dtype=dtype)
    module.train(computation.mode == "training")
    inputs = {}
    for name, x in computation.inputs.items():
        x = x.detach().clone()  # .to() alone may return the same tensor
        is_real = x.is_floating_point()
        inputs[name] = x.to(device=device, dtype=dtype).requires_grad_() if is_real else x.to(device)
    return module, inputs


class Outcome(NamedTuple):
    """Results of a computation on a device.

    Attributes:
        tensors: results and gradients of a weighted sum of them, by name, on the CPU in float64.
        is_run_by_cudnn: whether cuDNN's recurrent kernel took part. False where no gradients are compared.
    """

    tensors: Dict[str, Tensor]
    is_run_by_cudnn: bool


def outcome(computation: Computation, *, device: str, dtype: torch.dtype) -> Outcome:
    """Run a computation forward, and backward if gradients are compared."""
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
    """The largest error of the device as a share of its bound, with the name of the tensor. A share above 1 fails."""
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
        units = max(_norm(single[name] - exact[name]) / torch.finfo(torch.float32).eps, size)
        allowed = math.sqrt(num_terms) * units * rounding
        share = error / allowed if allowed else float(error > 0)
        if share >= figures["share"]:
            figures = {"share": share, "relative_error": error / size if size else error, "tensor": name}
    if figures["share"] > 1:
        figures["error"] = "{tensor} errs by {share:.3g} times what rounding allows".format(**figures)
    return figures


def _norm(x: Tensor) -> float:
    return torch.linalg.vector_norm(torch.nan_to_num(x)).item()


def _weights(x: Tensor) -> Tensor:
    """Weights of a result in the sum that is differentiated: equal on all devices, distinct, and not zero."""
    weights = torch.linspace(0.5, 1.5, x.numel(), dtype=torch.float64).sin()
    return weights.view(x.shape).to(x)


def random_inputs(seed: int, **shapes: Tuple[int, ...]) -> Dict[str, Tensor]:
    """Tensors of standard normal numbers in float64, by name and shape."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
