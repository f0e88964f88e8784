"""Recurrences with written-out backward passes, and products of steps, against autograd of the plain formulas."""

import weakref
from types import SimpleNamespace
from typing import Callable, Dict, List, NamedTuple, Sequence, Tuple
from unittest import mock

import plain_formulas
import pytest
import torch
from assertions import ROUNDINGS, assert_near
from operations import TensorSizes, count_launches
from torch import Tensor

from fairseq_plugins.ops import recurrence as recurrence_module
from fairseq_plugins.ops.mogrifier import mogrifier_lstm
from fairseq_plugins.ops.recurrence import (
    StepProducts,
    linear_scan,
    masked_lstm,
    recurrent_highway,
    scan_by_doubling_,
    scan_by_steps_,
)

# what holds for every recurrence


class Recurrence(NamedTuple):
    """A recurrence and its formula.

    Attributes:
        draw: of sizes and dtype, tensors with gradients and factors without.
        run: of these, the results.
        by_hand: the same, by the formula.
        sizes: steps, rows, width and further sizes.
    """

    draw: Callable[..., Tuple[List[Tensor], Dict[str, Tensor]]]
    run: Callable[[Sequence[Tensor], Dict[str, Tensor]], Sequence[Tensor]]
    by_hand: Callable[[Sequence[Tensor], Dict[str, Tensor]], Sequence[Tensor]]
    sizes: Sequence[Tuple[int, ...]]


def leaves(*shapes, dtype=torch.float64):
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def draw_lstm(num_steps, num_rows, width, dtype=torch.float64):
    tensors = leaves((num_steps, num_rows, 4 * width), (4 * width, width), *[(num_rows, width)] * 2, dtype=dtype)
    return tensors, {"mask": torch.randint(2, (num_rows, width)).to(dtype) * 2}


def run_lstm(tensors, factors):
    inputs, weight, h, c = tensors
    return masked_lstm(inputs, weight, factors["mask"], h, c)


def lstm_by_hand(tensors, factors):
    inputs, weight, h, c = tensors
    share = torch.eye(inputs.size(-1), dtype=inputs.dtype)
    outputs, _, c = plain_formulas.lstm(inputs.transpose(0, 1), h, c, share, weight, 0.0, **factors)
    return outputs.transpose(0, 1), c


def draw_highway(num_steps, num_rows, width, depth, dtype=torch.float64):
    """Inputs, start, matrices and biases of the micro-layers, and factors of the state."""
    shapes = [(2 * width, width)] * depth + [(2 * width,)] * depth
    tensors = leaves((num_steps, num_rows, 2 * width), (num_rows, width), *shapes, dtype=dtype)
    for matrix in tensors[2 : 2 + depth]:
        matrix.data /= width**0.5
    mask = torch.randint(2, (num_rows, width)).to(dtype) * 2
    return tensors, {"mask": mask, "keep": torch.randint(2, (num_steps, num_rows, 1)).to(dtype)}


def run_highway(tensors, factors):
    inputs, s, *parameters = tensors
    depth = len(parameters) // 2
    return [recurrent_highway(inputs, parameters[:depth], parameters[depth:], s, **factors)]


def highway_by_hand(tensors, factors):
    inputs, s, *parameters = tensors
    depth, share = len(parameters) // 2, torch.eye(inputs.size(-1), dtype=inputs.dtype)
    outputs = []
    for t, x in enumerate(inputs):
        micro_layers, mask = list(zip(parameters[:depth], parameters[depth:])), factors.get("mask", 1.0)
        _, s = plain_formulas.recurrent_highway(x.unsqueeze(1), s, share, micro_layers, mask=mask)
        s = s * factors["keep"][t] if "keep" in factors else s
        outputs.append(s)
    return [torch.stack(outputs)]


@pytest.fixture(autouse=True)
def kernels_of_a_gpu(monkeypatch):
    """A CPU has none for a GRU."""
    monkeypatch.setattr(recurrence_module, "fused_gru", gru)
    monkeypatch.setattr(recurrence_module, "fused_gru_backward", gru_backward)


def gru(gates, rest, s):
    (r, z, n), (r_rest, z_rest, n_rest) = gates.chunk(3, dim=1), rest.chunk(3, dim=1)
    r, z = torch.sigmoid(r + r_rest), torch.sigmoid(z + z_rest)
    n = torch.tanh(n + r * n_rest)
    return n + z * (s - n), torch.cat([r, z, n, s, n_rest.expand_as(n)], dim=1)


def gru_backward(d_s, workspace):
    r, z, n, s, n_rest = workspace.chunk(5, dim=1)
    d_n = d_s * (1 - z) * (1 - n * n)
    return torch.cat([d_n * n_rest * r * (1 - r), d_s * (s - n) * z * (1 - z), d_n], dim=1), d_s * z


def fused(run):
    """The same recurrence as a GPU takes it."""

    def run_fused(tensors, factors):
        with mock.patch.object(recurrence_module, "has_fused_gru", lambda x: True):
            return run(tensors, factors)

    return run_fused


def draw_mogrifier(num_steps, num_rows, width_in, width, num_rounds, rank, dtype=torch.float64):
    """Inputs, h, c, W and b, and of each round b and matrices."""
    shapes = [(num_steps, num_rows, width_in), (num_rows, width), (num_rows, width)]
    shapes += [(4 * width, width_in + width), (4 * width,)]
    for n in range(num_rounds):
        gated, read = (width_in, width) if n % 2 == 0 else (width, width_in)
        shapes += [(gated,), *([(rank, read), (gated, rank)] if rank else [(gated, read)])]
    tensors = leaves(*shapes, dtype=dtype)
    for x in tensors[3:]:
        x.data /= x.size(-1) ** 0.5
    return tensors, {"mask": torch.randint(2, (num_rows, width)).to(dtype) * 2}


def rounds_of(tensors):
    """b and matrices of each round, which begins with the one tensor of one dimension."""
    rounds = []
    for x in tensors:
        if x.dim() == 1:
            rounds.append((x, []))
        else:
            rounds[-1][1].append(x)
    return rounds


def run_mogrifier(tensors, factors):
    inputs, h, c, weight, bias, *others = tensors
    return mogrifier_lstm(inputs, rounds_of(others), weight, bias, h, c, **factors)


def mogrifier_by_hand(tensors, factors):
    inputs, h, c, weight, bias, *others = tensors
    rounds = [(first if not rest else rest[0] @ first, b) for b, (first, *rest) in rounds_of(others)]
    w_x, w_h = weight.tensor_split([inputs.size(2)], dim=1)
    outputs, _, c = plain_formulas.mogrifier(inputs.transpose(0, 1), h, c, rounds, w_x, w_h, bias, **factors)
    return outputs.transpose(0, 1), c


def draw_scan(num_steps, num_rows, width, dtype=torch.float64):
    inputs, factors, start = leaves((num_steps, num_rows, width), (width,), (num_rows, width), dtype=dtype)
    return [inputs, torch.tanh(factors).detach().requires_grad_(), start], {}


def scan_by_hand(tensors, factors):
    inputs, factors, start = tensors
    outputs = []
    for u in inputs:
        start = u + factors * start
        outputs.append(start)
    return [torch.stack(outputs)]


T, B, K, D = 5, 3, 4, 6
PRODUCT_SIZES = [(T, B, K, D), (1, 1, 1, 1), (7, 2, 9, 1)]


def draw(sizes=(T, B, K, D), *, dtype=torch.float64):
    """precomputed, A, the first x, and what makes the next x of a result, (D, K)."""
    num_steps, num_rows, width_in, width = sizes
    shapes = [(num_steps, num_rows, width), (width_in, width), (num_rows, width_in), (width, width_in)]
    return [torch.randn(shape, dtype=dtype).mul_(0.5).requires_grad_() for shape in shapes]


def recurrence(add_product, precomputed, start, mixing):
    """All results, (T', B, D)."""
    x, results = start, []
    for t in range(len(precomputed)):
        results.append(add_product(t, x))
        x = torch.tanh(results[-1] @ mixing)
    return torch.stack(results)


def ours(precomputed, matrix, start, mixing):
    return recurrence(StepProducts(precomputed, matrix), precomputed, start, mixing)


def plain(precomputed, matrix, start, mixing):
    return recurrence(lambda t, x: precomputed[t] + x @ matrix, precomputed, start, mixing)


def products(*, gathers=True):
    """:class:`StepProducts` with gradients that are gathered, as on a CPU, or step by step, as on a GPU."""

    def run(tensors, _):
        with mock.patch.object(recurrence_module, "gathers_gradients", lambda matrix: gathers):
            return [ours(*tensors)]

    def draw_products(*sizes, dtype=torch.float64):
        return draw(sizes, dtype=dtype), {}

    return Recurrence(draw_products, run, lambda tensors, _: [plain(*tensors)], PRODUCT_SIZES)


RECURRENCES = {
    "lstm": Recurrence(draw_lstm, run_lstm, lstm_by_hand, [(4, 2, 3), (1, 1, 1), (7, 1, 13), (2, 20, 33)]),
    "highway": Recurrence(
        draw_highway, run_highway, highway_by_hand, [(3, 2, 3, 2), (1, 1, 1, 1), (7, 1, 13, 3), (2, 20, 33, 5)]
    ),
    "highway, fused": Recurrence(draw_highway, fused(run_highway), highway_by_hand, [(3, 2, 3, 2), (2, 20, 33, 5)]),
    "mogrifier": Recurrence(
        draw_mogrifier,
        run_mogrifier,
        mogrifier_by_hand,
        [(4, 2, 3, 5, 5, 2), (1, 1, 1, 1, 1, 0), (7, 1, 13, 6, 4, 0), (2, 20, 33, 9, 3, 1), (3, 2, 4, 5, 0, 0)],
    ),
    "scan": Recurrence(
        draw_scan, lambda tensors, _: [linear_scan(*tensors)], scan_by_hand, [(4, 2, 3), (1, 1, 1), (33, 4, 6)]
    ),
    "products": products(),
    "products, step by step": products(gathers=False),
}

every_recurrence = pytest.mark.parametrize("recurrence", RECURRENCES.values(), ids=list(RECURRENCES))
every_size = pytest.mark.parametrize(
    "recurrence, sizes", [(one, sizes) for one in RECURRENCES.values() for sizes in one.sizes]
)


def total(results):
    return sum(x.to(torch.promote_types(x.dtype, torch.float32)).square().sum() for x in results)


def assert_formula(run, by_hand, tensors, factors):
    found, expected = (list(function(tensors, factors)) for function in (run, by_hand))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weights = [torch.randn_like(x) for x in expected]
    losses = (sum((a * b).sum() for a, b in zip(results, weights)) for results in (found, expected))
    gradients = [torch.autograd.grad(loss, tensors, materialize_grads=True) for loss in losses]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


@every_size
def test_values_and_gradients_are_those_of_the_recurrence(recurrence, sizes):
    assert_formula(recurrence.run, recurrence.by_hand, *recurrence.draw(*sizes))


@pytest.mark.parametrize("extras", [[], ["mask"], ["keep"]], ids=repr)
def test_highway_factors_may_be_left_out(extras):
    tensors, factors = draw_highway(5, 3, 4, 2)
    assert_formula(run_highway, highway_by_hand, tensors, {name: factors[name] for name in extras})


@every_recurrence
def test_what_needs_no_gradient_changes_no_other(recurrence):
    tensors, factors = recurrence.draw(*recurrence.sizes[0])
    expected = torch.autograd.grad(total(recurrence.run(tensors, factors)), tensors)
    for frozen in range(len(tensors)):
        given = [x.detach() if n == frozen else x for n, x in enumerate(tensors)]
        learned = [n for n in range(len(tensors)) if n != frozen]
        found = torch.autograd.grad(total(recurrence.run(given, factors)), [tensors[n] for n in learned])
        assert all(torch.equal(gradient, expected[n]) for gradient, n in zip(found, learned))


@every_recurrence
def test_a_kept_graph_gives_the_same_gradients_again_and_inputs_stay(recurrence):
    tensors, factors = recurrence.draw(*recurrence.sizes[0])
    before = [x.detach().clone() for x in tensors]
    loss = total(recurrence.run(tensors, factors))
    first = torch.autograd.grad(loss, tensors, retain_graph=True)
    for n, x in enumerate(tensors):
        assert torch.equal(torch.autograd.grad(loss, x, retain_graph=True)[0], first[n])
    assert all(map(torch.equal, first, torch.autograd.grad(loss, tensors)))
    assert all(map(torch.equal, tensors, before))


@every_size
def test_the_error_in_float32_is_that_of_the_recurrence_in_float32(recurrence, sizes):
    tensors, factors = recurrence.draw(*sizes)
    narrow, narrow_factors = [x.detach().float() for x in tensors], {name: x.float() for name, x in factors.items()}

    def with_gradients(run, given, given_factors):
        given = [x.detach().requires_grad_() for x in given]
        results = run(given, given_factors)
        return [results[0], *torch.autograd.grad(total(results), given, materialize_grads=True)]

    exact = with_gradients(recurrence.by_hand, tensors, factors)
    errors = [
        [(a - b).abs().max() for a, b in zip(with_gradients(run, narrow, narrow_factors), exact)]
        for run in (recurrence.run, recurrence.by_hand)
    ]
    assert errors[0][0] <= 2 * errors[1][0] + 1e-7
    for found, allowed, scale in zip(*errors, exact):
        assert found <= 4 * allowed + 1e-6 * scale.abs().max()


@pytest.mark.parametrize(
    "name, sizes, factor",  # states are in 16 bits, too, but for autograd in 32
    [("lstm", (5, 3, 4), 2), ("highway", (5, 3, 4, 2), 8), ("mogrifier", (5, 3, 4, 5, 5, 2), 16)]
    + [(name, (5, 8, 16, 16), 2) for name in ("products", "products, step by step")],
)
def test_autocast_takes_the_products_in_16_bits_and_errs_little(name, sizes, factor):
    recurrence = RECURRENCES[name]
    tensors, factors = recurrence.draw(*sizes, dtype=torch.float32)

    def outcome(run, enabled):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            results = run(tensors, factors)
        return [*results, *torch.autograd.grad(total(results), tensors, materialize_grads=True)]

    exact, *others = outcome(recurrence.run, False), outcome(recurrence.run, True), outcome(recurrence.by_hand, True)
    num_results = len(exact) - len(tensors)
    assert [x.dtype for x in others[0]] == [torch.bfloat16] * num_results + [torch.float32] * len(tensors)
    errors = [[(x - y).norm() / y.norm() for x, y in zip(found, exact)] for found in others]
    assert all(ours <= max(factor * allowed, ROUNDINGS / 2**9) for ours, allowed in zip(*errors)), errors


@pytest.mark.parametrize("name", ["lstm", "highway", "mogrifier", "scan", "products"])
def test_there_is_no_second_derivative(name):
    recurrence = RECURRENCES[name]
    tensors, factors = recurrence.draw(*recurrence.sizes[0])
    (gradient, *_) = torch.autograd.grad(total(recurrence.run(tensors, factors)), tensors, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    "name, sizes, fewest, most",
    [("lstm", (40, 3, 8), 6, 12), ("highway", (40, 3, 8, 2), 4, 8), ("mogrifier", (40, 3, 5, 8, 5, 2), 4, 19)],
)
def test_where_nothing_learns_the_values_are_the_same_and_no_step_is_kept(name, sizes, fewest, most):
    recurrence = RECURRENCES[name]
    tensors, factors = recurrence.draw(*sizes)
    expected = recurrence.run(tensors, factors)
    frozen = [x.detach() for x in tensors]
    peaks = []
    for given, mode in ((frozen, True), (frozen, False), (tensors, False), (tensors, True)):
        with torch.set_grad_enabled(mode), TensorSizes() as tensor_sizes:
            found = recurrence.run(given, factors)
        # products with and without a gradient may round differently, as on AMD's processors
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
        peaks.append(tensor_sizes.peak)
    results = 40 * 3 * 8
    assert peaks[0] == peaks[1] == peaks[2] < fewest * results < most * results < peaks[3]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_highway_network_in_16_bits_runs(dtype):
    tensors, factors = draw_highway(5, 3, 4, 2)
    narrow = [x.detach().to(dtype).requires_grad_() for x in tensors]
    (outputs,) = run_highway(narrow, {name: x.to(dtype) for name, x in factors.items()})
    assert outputs.dtype == dtype
    outputs.sum().backward()
    assert all(x.grad.dtype == dtype and x.grad.isfinite().all() for x in narrow)
    assert_near(outputs, run_highway(tensors, factors)[0])


# linear scan


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 3, 5), (7, 2, 4), (8, 1, 3), (33, 4, 6)])
@pytest.mark.parametrize("scan", [scan_by_steps_, scan_by_doubling_])
def test_both_ways_are_the_recurrence(sizes, scan, monkeypatch):
    tensors, _ = draw_scan(*sizes)
    inputs, factors, start = (x.detach() for x in tensors)
    place = inputs.clone()
    assert scan(place, factors, start) is place
    torch.testing.assert_close([place], scan_by_hand((inputs, factors, start), {}), rtol=1e-12, atol=1e-12)
    monkeypatch.setattr("fairseq_plugins.ops.recurrence.scan_", scan)
    assert_formula(RECURRENCES["scan"].run, scan_by_hand, tensors, {})


def test_sums_of_16_bits_are_formed_in_32():
    """0.995 is 0.9961 in bfloat16, whose sums would stop to grow."""
    inputs = torch.ones(400, 1, 1, dtype=torch.bfloat16)
    found = linear_scan(inputs, torch.tensor([0.995]), torch.zeros(1, 1))
    assert found.dtype == torch.bfloat16
    assert found[-1].item() == pytest.approx((1 - 0.995**400) / (1 - 0.995), rel=0.01)


def test_no_tensor_is_larger_than_the_inputs():
    (inputs, factors, start), _ = draw_scan(64, 5, 20, torch.float32)
    with TensorSizes() as sizes:
        linear_scan(inputs, factors, start).sum().backward()
    assert sizes.largest == inputs.numel()


# products of steps


def gradients(function, inputs):
    return torch.autograd.grad(function(*inputs).square().sum(), inputs, materialize_grads=True)


@pytest.fixture(params=[True, False], ids=["gathered as on a CPU", "step by step as on a GPU"])
def both_ways(request, monkeypatch):
    monkeypatch.setattr(recurrence_module, "gathers_gradients", lambda matrix: request.param)


@pytest.mark.parametrize(
    "device, dtype, gathers",
    [("cpu", torch.float32, True), ("cpu", torch.bfloat16, True), ("cuda", torch.float32, False)]
    + [("cuda", torch.float64, False), ("cuda", torch.bfloat16, True), ("cuda", torch.float16, True)],
)
def test_sums_in_16_bits_are_gathered_everywhere(device, dtype, gathers):
    assert recurrence_module.gathers_gradients(SimpleNamespace(is_cuda=device == "cuda", dtype=dtype)) == gathers


def test_a_precomputed_part_may_be_expanded_and_need_no_gradient(both_ways):
    _, *inputs = draw()
    precomputed = torch.randn(D, dtype=torch.float64, requires_grad=True)

    def run(function, bias):
        return function(bias.expand(T, B, D), *inputs).square().sum()

    results = [torch.autograd.grad(run(function, precomputed), [precomputed, *inputs]) for function in (ours, plain)]
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)
    results = [torch.autograd.grad(run(function, precomputed.detach()), inputs) for function in (ours, plain)]
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


def test_two_losses_of_one_run_add_up(both_ways):
    """Each leaves results of other steps unused."""
    inputs = draw()
    results = ours(*inputs)
    results[:2].sum().backward(retain_graph=True)
    results[1:].square().sum().backward()
    expected = plain(*inputs)
    expected = torch.autograd.grad(expected[:2].sum() + expected[1:].square().sum(), inputs)
    torch.testing.assert_close([x.grad for x in inputs], list(expected), rtol=1e-10, atol=1e-12)


def test_only_some_steps_may_be_taken_and_in_any_order(both_ways):
    inputs = draw()
    precomputed, matrix, start, _ = inputs
    products = StepProducts(precomputed, matrix)
    found = [products(t, start * t) for t in (3, 1)]
    expected = [precomputed[t] + start * t @ matrix for t in (3, 1)]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    wanted = inputs[:3]
    results = [torch.autograd.grad(sum(x.pow(3).sum() for x in steps), wanted) for steps in (found, expected)]
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


def test_a_second_pass_over_a_graph_that_was_not_kept_is_refused():
    precomputed, matrix, start, _ = draw()
    products = StepProducts(precomputed, matrix)
    first, second = (products(t, start) for t in (0, 1))
    first.sum().backward()
    with pytest.raises(RuntimeError, match="the operands are gone .*: give it retain_graph=True"):
        second.sum().backward()


def test_where_no_step_is_taken_the_matrix_has_a_gradient_of_zero():
    precomputed, matrix, _, _ = draw()
    products = StepProducts(precomputed, matrix)
    (gradient,) = torch.autograd.grad(products._precomputed[0].sum(), matrix)
    assert gradient.shape == matrix.shape and not gradient.any()


def test_the_gradient_of_the_matrix_is_one_product_of_all_steps():
    def count_products(num_steps):
        inputs = draw((num_steps, B, K, D))
        launches = count_launches(lambda: gradients(ours, inputs))
        return sum(num for name, num in launches.items() if "mm" in name)

    # the product and the mixing of a further step, and backwards one for the operand and two for the mixing
    assert count_products(T + 1) - count_products(T) == 2 + 3


@pytest.mark.parametrize("with_gradient", [True, False])
def test_operands_are_kept_no_longer_than_the_backward_pass_needs_them(with_gradient):
    precomputed, matrix, start, _ = draw()
    with torch.set_grad_enabled(with_gradient):
        products = StepProducts(precomputed, matrix)
        x = start * 2
        result, operand = products(0, x), weakref.ref(x)
        kept = products._operands
    if with_gradient:
        assert kept[0] is not None
        result.sum().backward()
        assert kept == []
    else:
        assert kept == [None] * T and not result.requires_grad
    del x, result, products
    assert operand() is None


def test_autocast_leaves_float64_alone():
    inputs = draw()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        products = StepProducts(inputs[0], inputs[1])
        found = products(0, inputs[2])
    assert torch.equal(found, StepProducts(inputs[0], inputs[1])(0, inputs[2]))
