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
from typing import Callable, Dict, Mapping

import torch
from torch import Tensor, nn

CUDNN_ROUNDINGS = 4
"""Bound on the error of cuDNN's recurrent kernel, in roundings of float32. With 1 instead, LSTMs on an H200 exceed the
bound by a factor of up to 1.5."""


@dataclass(frozen=True)
class Computation:
    """A computation that both devices run.

    Attributes:
        compute: maps the module and the inputs to named results.
        inputs: tensors on the CPU. Those of floating point are in float64 and get gradients.
        module: on the CPU in float64. Its parameters get gradients.
        has_gradients: whether any result depends on a leaf by autograd.
    """

    compute: Callable[[nn.Module, Mapping[str, Tensor]], Mapping[str, Tensor]]
    inputs: Mapping[str, Tensor]
    module: nn.Module = field(default_factory=nn.Module)
    has_gradients: bool = True


@contextmanager
def strict_float32():
    """Products of float32 operands are not rounded to TF32, which is cuDNN's default."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def is_run_by_cudnn(results):
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


def on_device(computation, *, device, dtype, training):
    """Copies of the module and of the inputs on a device in a dtype. Floating-point inputs require gradients."""
    module = copy.deepcopy(computation.module).to(device=device, dtype=dtype).train(training)
    inputs = {}
    for name, x in computation.inputs.items():
        x = x.detach().clone()  # .to() alone may return the same tensor
        is_real = x.is_floating_point()
        inputs[name] = x.to(device=device, dtype=dtype).requires_grad_() if is_real else x.to(device)
    return module, inputs


def outcome(computation, *, device, dtype, training=True):
    """Results, and gradients of a weighted sum of them, in float64 on the CPU, and whether cuDNN took part."""
    module, inputs = on_device(computation, device=device, dtype=dtype, training=training)
    learned = {name: x for name, x in inputs.items() if x.requires_grad}
    learned.update({f"parameter {name}": parameter for name, parameter in module.named_parameters()})
    with torch.set_grad_enabled(computation.has_gradients), strict_float32():
        results = computation.compute(module, inputs)
        differentiable = {name: x for name, x in results.items() if x.requires_grad}
        found = {f"value {name}": x for name, x in results.items()}
        if differentiable:
            total = torch.stack([(x * _weights(x)).sum() for x in differentiable.values()]).sum()
            gradients = torch.autograd.grad(total, list(learned.values()), allow_unused=True)
            found.update({f"gradient {name}": x for name, x in zip(learned, gradients) if x is not None})
    assert bool(differentiable) == computation.has_gradients, "no gradient"
    tensors = {name: x.detach().double().cpu() for name, x in found.items()}
    return tensors, is_run_by_cudnn(differentiable.values())


def compare(computation, *, device, dtype, training=True) -> Dict[str, float]:
    """Errors of the device as shares of their bounds, by tensor. A share above 1 fails."""
    exact, _ = outcome(computation, device="cpu", dtype=torch.float64, training=training)
    single, _ = outcome(computation, device="cpu", dtype=torch.float32, training=training)
    found, by_cudnn = outcome(computation, device=device, dtype=dtype, training=training)
    rounding = torch.finfo(dtype).eps * (CUDNN_ROUNDINGS if by_cudnn and dtype == torch.float32 else 1)
    assert found.keys() == exact.keys()
    num_terms = max(x.numel() for x in (*exact.values(), *computation.inputs.values()))
    shares = {}
    for name, value in found.items():
        assert value.shape == exact[name].shape, f"{name} has another shape"
        assert torch.equal(value.isfinite(), exact[name].isfinite()), f"{name} is not finite"
        error, size = _norm(value - exact[name]), _norm(exact[name])
        units = max(_norm(single[name] - exact[name]) / torch.finfo(torch.float32).eps, size)
        allowed = math.sqrt(num_terms) * units * rounding
        shares[name] = error / allowed if allowed else float(error > 0)
        assert shares[name] <= 1, f"{name} errs by {shares[name]:.3g} times what rounding allows"
    return shares


def _norm(x):
    return torch.linalg.vector_norm(torch.nan_to_num(x)).item()


def _weights(x):
    """Weights of a result in the sum that is differentiated: equal on all devices, distinct, and not zero."""
    weights = torch.linspace(0.5, 1.5, x.numel(), dtype=torch.float64).sin()
    return weights.view(x.shape).to(x)


def random_inputs(seed=0, **shapes):
    """Tensors of standard normal numbers in float64, by name and shape."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
