"""Comparisons of a device with the CPU cover every part, pass other orders of sums, and catch coarser rounding."""

import math
import pkgutil
import re
from pathlib import Path

import pytest
import torch
from example_gates import EXAMPLES, registered

import fairseq_plugins.ops
from fairseq_plugins.benchmarks.device import comparison, computations
from fairseq_plugins.benchmarks.device.comparison import Computation, compare, is_run_by_cudnn, outcome, random_inputs
from fairseq_plugins.benchmarks.device.computations import component_computations, output_computations
from fairseq_plugins.modules.attention import ATTENTIONS
from fairseq_plugins.modules.cell import RECURRENT_CELLS
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS

ALL = [*computations.op_computations(), *component_computations()]


def names():
    return [computation.name for computation in ALL]


def test_every_op_is_compared():
    modules = {module.name for module in pkgutil.iter_modules(fairseq_plugins.ops.__path__)}
    source = Path(computations.__file__).read_text()
    compared = set(re.findall(r"fairseq_plugins\.ops\.(\w+) import|fairseq_plugins\.ops import (\w+)", source))
    # mixture_loss computes by mixture_chunk
    assert modules - {"mixture_chunk"} == {first or second for first, second in compared}


def test_every_registered_part_is_compared():
    registries = {"cell": RECURRENT_CELLS, "steps of": RECURRENT_CELLS, "attention": ATTENTIONS}
    for kind, registry in {**registries, "output layer": OUTPUT_LAYERS}.items():
        found = {name.split(",")[0].removeprefix(f"{kind} ") for name in names() if name.startswith(f"{kind} ")}
        assert found == set(registry)
    assert len(set(names())) == len(names())


def test_gates_stand_beside_the_layers_that_take_them():
    with registered():
        found = [computation.name for computation in output_computations("doc")]
    for gate in EXAMPLES:
        assert f"output layer doc, gate {gate}, loss in evaluation" in found


@pytest.mark.parametrize("computation", ALL, ids=names())
def test_every_computation_runs_and_repeats_itself(computation):
    figures = compare(computation, device="cpu", dtype=torch.float32)
    assert "error" not in figures and figures["share"] < 1
    assert figures["relative_error"] > 0 or "scale" in computation.name


class OnTheDevice:
    """A product that the third call computes in another way; the first two are the CPU's."""

    def __init__(self, other):
        self.other, self.calls = other, 0

    def __call__(self, module, x):
        self.calls += 1
        product = self.other if self.calls == 3 else lambda a, b: a @ b
        return {"product": product(x["a"], x["b"])}


def reversed_sums(a, b):
    total = torch.zeros(a.size(0), b.size(1), dtype=a.dtype)
    for k in reversed(range(a.size(1))):
        total = total + a[:, k : k + 1] * b[k : k + 1]
    return total


def with_tf32(a, b):
    def rounded(x):
        bits = x.detach().view(torch.int32)
        return x + (((bits + 0x1000) & ~0x1FFF).view(torch.float32) - x).detach()

    return rounded(a) @ rounded(b)


def compared(other, dtype=torch.float32):
    inputs = random_inputs(0, a=(20, 300), b=(300, 30))
    return compare(Computation(name="product", compute=OnTheDevice(other), inputs=inputs), device="cpu", dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_another_order_of_sums_passes(dtype):
    figures = compared(reversed_sums, dtype)
    assert 0 < figures["share"] < 1 and "error" not in figures


def test_products_of_rounded_operands_do_not_pass():
    figures = compared(with_tf32)
    assert figures["share"] > 1 and "times what rounding allows" in figures["error"]


def test_a_wrong_gradient_does_not_pass():
    figures = compared(lambda a, b: a @ b + (a - a.detach()).sum() * 1e-3)
    assert figures["tensor"] == "gradient a" and "error" in figures


@pytest.mark.parametrize(
    "other, message",
    [
        (lambda a, b: (a @ b).detach(), "gradient"),
        (lambda a, b: (a @ b) / 0, "product has another shape or is not finite"),
        (lambda a, b: (a @ b)[:3], "product has another shape or is not finite"),
    ],
)
def test_results_of_another_kind_do_not_pass(other, message):
    try:
        error = compared(other)["error"]
    except AssertionError as failure:
        error = str(failure)
    assert message in error


def test_without_gradients_there_are_values_alone():
    inputs = random_inputs(0, a=(2, 3), b=(3, 4))
    computation = Computation(name="p", compute=OnTheDevice(None), inputs=inputs, gradients="off")
    assert list(outcome(computation, device="cpu", dtype=torch.float32).tensors) == ["value product"]


@pytest.mark.parametrize(
    "by_cudnn, roundings, dtype, passes",
    [(False, 2, torch.float32, False), (True, 2, torch.float32, True), (True, 9, torch.float32, False)]
    + [(True, 2, torch.float64, False)],
)
def test_cudnn_may_be_four_times_as_coarse_in_float32_alone(monkeypatch, by_cudnn, roundings, dtype, passes):
    monkeypatch.setattr(comparison, "is_run_by_cudnn", lambda results: by_cudnn)
    allowed = math.sqrt(300 * 30) * torch.finfo(dtype).eps
    figures = compared(lambda a, b: (a @ b) * (1 + roundings * allowed), dtype)
    assert ("error" not in figures) == passes


class CudnnRNN(torch.autograd.Function):
    """Has the name of cuDNN's kernel in the graph."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_cudnn_is_known_by_its_step_of_the_backward_pass():
    x = torch.randn(2, 2, requires_grad=True)
    assert is_run_by_cudnn([x @ x, CudnnRNN.apply(x) @ x])
    assert not is_run_by_cudnn([x @ x, torch.ones(2)])
