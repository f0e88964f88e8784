"""Recurrences with written-out backward passes, and products of steps, against autograd of the plain formulas."""

import gc
import weakref
from types import SimpleNamespace

import plain_formulas
import pytest
import torch
from nearness import assert_near
from tensor_sizes import TensorSizes
from torch.utils.flop_counter import FlopCounterMode

from fairseq_plugins.ops import recurrence as recurrence_module
from fairseq_plugins.ops.recurrence import (
    StepProducts,
    linear_scan,
    masked_lstm,
    recurrent_highway,
    scan_by_doubling_,
    scan_by_steps_,
)

# LSTM

NAMES = ["inputs", "weight", "h", "c"]
SIZES = [(1, 1, 1), (5, 3, 4), (7, 1, 13), (2, 20, 33)]


def make(num_steps, num_rows, width, dtype=torch.float64):
    shapes = [(num_steps, num_rows, 4 * width), (4 * width, width), (num_rows, width), (num_rows, width)]
    mask = torch.randint(2, (num_rows, width)).to(dtype) * 2
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes], mask


def by_hand(inputs, weight, h, c, mask):
    share = torch.eye(inputs.size(-1), dtype=inputs.dtype)
    outputs, _, c = plain_formulas.lstm(inputs.transpose(0, 1), h, c, share, weight, 0.0, mask=mask)
    return outputs.transpose(0, 1), c


def run(tensors, mask):
    inputs, weight, h, c = tensors
    return masked_lstm(inputs, weight, mask, h, c)


@pytest.mark.parametrize("sizes", SIZES)
def test_values_and_gradients_are_those_of_the_recurrence(sizes):
    tensors, mask = make(*sizes)
    found, expected = run(tensors, mask), by_hand(*tensors, mask)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weights = [torch.randn_like(x) for x in expected]
    gradients = [
        torch.autograd.grad(sum((a * b).sum() for a, b in zip(result, weights)), tensors)
        for result in (found, expected)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


def test_gradients_are_finite_differences():
    tensors, mask = make(4, 2, 3)
    assert torch.autograd.gradcheck(lambda *tensors: run(tensors, mask), tensors)


def test_where_nothing_learns_the_values_are_the_same_and_no_step_is_kept():
    num_steps, num_rows, width = 40, 3, 8
    tensors, mask = make(num_steps, num_rows, width)
    expected = run(tensors, mask)
    frozen = [x.detach() for x in tensors]
    peaks = []
    for given, mode in ((frozen, True), (frozen, False), (tensors, False), (tensors, True)):
        with torch.set_grad_enabled(mode), TensorSizes() as sizes:
            found = run(given, mask)
        assert all(map(torch.equal, found, expected))
        peaks.append(sizes.peak)
    results = num_steps * num_rows * width
    assert peaks[0] == peaks[1] == peaks[2] < 6 * results < 12 * results < peaks[3]


@pytest.mark.parametrize("frozen", NAMES)
def test_what_needs_no_gradient_changes_no_other(frozen):
    tensors, mask = make(5, 3, 4)
    learned = [x for name, x in zip(NAMES, tensors) if name != frozen]
    expected = torch.autograd.grad(run(tensors, mask)[0].square().sum(), learned)
    tensors[NAMES.index(frozen)] = tensors[NAMES.index(frozen)].detach()
    assert all(map(torch.equal, torch.autograd.grad(run(tensors, mask)[0].square().sum(), learned), expected))


@pytest.mark.parametrize("sizes", SIZES)
def test_the_error_in_float32_is_that_of_the_recurrence_in_float32(sizes):
    tensors, mask = make(*sizes)
    exact = by_hand(*tensors, mask)[0]
    narrow = [x.detach().float() for x in tensors]
    errors = [(result[0] - exact).abs().max() for result in (run(narrow, mask.float()), by_hand(*narrow, mask.float()))]
    assert errors[0] <= 2 * errors[1] + 1e-7


def test_autocast_takes_the_products_in_16_bits():
    tensors, mask = make(5, 3, 4, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs, c = run(tensors, mask)
    assert outputs.dtype == c.dtype == torch.bfloat16
    (outputs.float().sum() + c.float().sum()).backward()
    assert all(x.grad.dtype == torch.float32 and x.grad.isfinite().all() for x in tensors)
    assert_near(outputs, run(tensors, mask)[0])


def test_there_is_no_second_derivative():
    tensors, mask = make(3, 2, 2)
    (gradient, *_) = torch.autograd.grad(run(tensors, mask)[0].square().sum(), tensors, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


# linear scan

LINEAR_SCAN_SIZES = [(1, 1, 1), (2, 3, 5), (7, 2, 4), (8, 1, 3), (33, 4, 6)]

every_size = pytest.mark.parametrize("sizes", LINEAR_SCAN_SIZES)
every_scan = pytest.mark.parametrize("scan", [scan_by_steps_, scan_by_doubling_])


def make_scan(num_steps, num_rows, width, dtype=torch.float64):
    shapes = [(num_steps, num_rows, width), (width,), (num_rows, width)]
    inputs, factors, start = (torch.randn(shape, dtype=dtype) for shape in shapes)
    return [tensor.requires_grad_() for tensor in (inputs, torch.tanh(factors).detach(), start)]


def scan_by_hand(inputs, factors, start):
    outputs = []
    for u in inputs:
        start = u + factors * start
        outputs.append(start)
    return torch.stack(outputs)


@every_size
@every_scan
def test_both_ways_are_the_recurrence(sizes, scan):
    inputs, factors, start = (tensor.detach() for tensor in make_scan(*sizes))
    expected, place = scan_by_hand(inputs, factors, start), inputs.clone()
    assert scan(place, factors, start) is place
    torch.testing.assert_close(place, expected, rtol=1e-12, atol=1e-12)


@every_size
@every_scan
def test_linear_scan_values_and_gradients_are_those_of_the_recurrence(sizes, scan, monkeypatch):
    monkeypatch.setattr("fairseq_plugins.ops.recurrence.scan_", scan)
    tensors = make_scan(*sizes)
    found, expected = linear_scan(*tensors), scan_by_hand(*tensors)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(expected)
    gradients = [torch.autograd.grad((result * weights).sum(), tensors) for result in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


def test_linear_scan_gradients_are_finite_differences():
    assert torch.autograd.gradcheck(linear_scan, make_scan(4, 2, 3))


def test_inputs_stay_as_they_are():
    tensors = make_scan(5, 2, 3)
    before = [tensor.detach().clone() for tensor in tensors]
    linear_scan(*tensors).sum().backward()
    assert all(torch.equal(tensor, kept) for tensor, kept in zip(tensors, before))


def test_sums_of_16_bits_are_formed_in_32():
    """0.995 is 0.9961 in bfloat16, whose sums would stop to grow."""
    inputs = torch.ones(400, 1, 1, dtype=torch.bfloat16)
    found = linear_scan(inputs, torch.tensor([0.995]), torch.zeros(1, 1))
    assert found.dtype == torch.bfloat16
    assert found[-1].item() == pytest.approx((1 - 0.995**400) / (1 - 0.995), rel=0.01)


def test_no_tensor_is_larger_than_the_inputs():
    inputs, factors, start = make_scan(64, 5, 20, torch.float32)
    with TensorSizes() as sizes:
        linear_scan(inputs, factors, start).sum().backward()
    assert sizes.largest == inputs.numel()


# products of steps

T, B, K, D = 5, 3, 4, 6
STEP_PRODUCTS_SIZES = [(T, B, K, D), (1, 1, 1, 1), (7, 2, 9, 1), (3, 20, 33, 17)]
STEP_PRODUCTS_NAMES = ["precomputed", "matrix", "start", "mixing"]

every_matrix = pytest.mark.parametrize("per_row", [False, True], ids=["one matrix", "a matrix a row"])


def draw(sizes=(T, B, K, D), *, per_row=False, dtype=torch.float64):
    """precomputed, A, the first x, and what makes the next x of a result, (D, K)."""
    num_steps, num_rows, width_in, width = sizes
    shapes = [(num_steps, num_rows, width), (width_in, width), (num_rows, width_in), (width, width_in)]
    if per_row:
        shapes[1] = (num_rows, *shapes[1])
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
    subscripts = "bk,bkd->bd" if matrix.dim() == 3 else "bk,kd->bd"
    return recurrence(lambda t, x: precomputed[t] + torch.einsum(subscripts, x, matrix), precomputed, start, mixing)


def gradients(function, inputs, materialize_grads=True, **options):
    return torch.autograd.grad(function(*inputs).square().sum(), inputs, materialize_grads=True, **options)


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


@every_matrix
@pytest.mark.parametrize("sizes", STEP_PRODUCTS_SIZES)
def test_results_and_gradients_are_those_of_the_formula(sizes, per_row, both_ways):
    inputs = draw(sizes, per_row=per_row)
    torch.testing.assert_close(ours(*inputs), plain(*inputs), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients(ours, inputs), gradients(plain, inputs), rtol=1e-10, atol=1e-12)


@every_matrix
def test_step_products_gradients_are_finite_differences(per_row, both_ways):
    assert torch.autograd.gradcheck(ours, draw((3, 2, 2, 3), per_row=per_row))


@every_matrix
@pytest.mark.parametrize("sizes", STEP_PRODUCTS_SIZES)
def test_float32_is_as_exact_as_the_formula_in_float32(sizes, per_row):
    inputs = draw(sizes, per_row=per_row)
    narrow = [x.detach().float().requires_grad_() for x in inputs]
    exact = [plain(*inputs), *gradients(plain, inputs)]
    errors = [
        [(a - b).abs().max() for a, b in zip([function(*narrow), *gradients(function, narrow)], exact)]
        for function in (ours, plain)
    ]
    for found, allowed, scale in zip(*errors, exact):
        assert found <= 4 * allowed + 1e-6 * scale.abs().max()


@every_matrix
@pytest.mark.parametrize("frozen", STEP_PRODUCTS_NAMES)
def test_step_products_what_needs_no_gradient_changes_no_other(frozen, per_row, both_ways):
    inputs = draw(per_row=per_row)
    learned = [x for name, x in zip(STEP_PRODUCTS_NAMES, inputs) if name != frozen]
    expected = torch.autograd.grad(ours(*inputs).square().sum(), learned)
    inputs[STEP_PRODUCTS_NAMES.index(frozen)] = inputs[STEP_PRODUCTS_NAMES.index(frozen)].detach()
    assert all(map(torch.equal, torch.autograd.grad(ours(*inputs).square().sum(), learned), expected))


@every_matrix
def test_known_may_be_expanded_and_need_no_gradient(per_row, both_ways):
    _, *inputs = draw(per_row=per_row)
    precomputed = torch.randn(D, dtype=torch.float64, requires_grad=True)

    def run(function, bias):
        return function(bias.expand(T, B, D), *inputs).square().sum()

    results = [torch.autograd.grad(run(function, precomputed), [precomputed, *inputs]) for function in (ours, plain)]
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)
    results = [torch.autograd.grad(run(function, precomputed.detach()), inputs) for function in (ours, plain)]
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


@every_matrix
def test_a_graph_that_is_kept_gives_the_same_gradients_again(per_row, both_ways):
    inputs = draw(per_row=per_row)
    loss = ours(*inputs).square().sum()
    first = torch.autograd.grad(loss, inputs, retain_graph=True)
    partly = torch.autograd.grad(loss, inputs[2], retain_graph=True)
    assert torch.equal(partly[0], first[2])
    assert all(map(torch.equal, torch.autograd.grad(loss, inputs), first))


@every_matrix
def test_two_losses_of_one_run_add_up(per_row, both_ways):
    inputs = draw(per_row=per_row)
    results = ours(*inputs)
    results[:2].sum().backward(retain_graph=True)
    results[1:].square().sum().backward()
    expected = plain(*inputs)
    expected = torch.autograd.grad(expected[:2].sum() + expected[1:].square().sum(), inputs)
    torch.testing.assert_close([x.grad for x in inputs], list(expected), rtol=1e-10, atol=1e-12)


@every_matrix
def test_only_some_steps_may_be_taken_and_in_any_order(per_row, both_ways):
    inputs = draw(per_row=per_row)
    precomputed, matrix, start, _ = inputs
    products = StepProducts(precomputed, matrix)
    found = [products(t, start * t) for t in (3, 1)]
    subscripts = "bk,bkd->bd" if per_row else "bk,kd->bd"
    expected = [precomputed[t] + torch.einsum(subscripts, start * t, matrix) for t in (3, 1)]
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


@every_matrix
def test_a_steps_result_may_go_unused(per_row, both_ways):
    inputs = draw(per_row=per_row)
    results = [torch.autograd.grad(function(*inputs)[2].sum(), inputs) for function in (ours, plain)]
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


@every_matrix
def test_the_gradient_of_the_matrix_is_one_product_of_all_steps(per_row, monkeypatch):
    shapes, one_product = [], recurrence_module._matrix_gradient

    def spy(operands, d_results, **options):
        shapes.append((operands.shape, d_results.shape))
        return one_product(operands, d_results, **options)

    monkeypatch.setattr(recurrence_module, "_matrix_gradient", spy)
    inputs = draw(per_row=per_row)
    with FlopCounterMode(display=False) as counter:
        gradients(ours, inputs)
    assert shapes == [((T, B, K), (T, B, D))]
    # forward, for the operands and for the matrices; what is mixed after the last step has no gradient
    assert counter.get_total_flops() / 2 == B * K * D * (3 * T + T + 2 * (T - 1))


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
    gc.collect()
    assert operand() is None


@every_matrix
def test_step_products_autocast_takes_the_products_in_16_bits(per_row):
    inputs = draw((T, 8, 16, 16), per_row=per_row, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results = ours(*inputs)
    assert results.dtype == torch.bfloat16
    exact, errors = [plain(*inputs), *gradients(plain, inputs)], []
    for function in (ours, plain):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            results = function(*inputs)
        found = torch.autograd.grad(results.float().square().sum(), inputs)
        assert all(x.dtype == torch.float32 for x in found)
        errors.append([(a - b).norm() / b.norm() for a, b in zip([results, *found], exact)])
    assert all(found <= 2 * allowed for found, allowed in zip(*errors))


def test_autocast_leaves_float64_alone():
    inputs = draw()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        products = StepProducts(inputs[0], inputs[1])
        found = products(0, inputs[2])
    assert torch.equal(found, StepProducts(inputs[0], inputs[1])(0, inputs[2]))


def test_step_products_there_is_no_second_derivative():
    inputs = draw()
    gradient = gradients(ours, inputs, create_graph=True)[1]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


# recurrent highway network

HIGHWAY_SIZES = [(1, 1, 1, 1), (5, 3, 4, 2), (7, 1, 13, 3), (2, 20, 33, 5)]
EXTRAS = ["mask", "keep"]

every_extra = pytest.mark.parametrize("extras", [[], ["mask"], ["keep"], EXTRAS], ids=lambda names: "+".join(names))


def make_highway(num_steps, num_rows, width, depth, dtype=torch.float64):
    """Tensors with gradients, those of the micro-layers at the end, and factors of the state without."""
    shapes = [(num_steps, num_rows, 2 * width), (num_rows, width)]
    tensors = [torch.randn(shape, dtype=dtype) for shape in shapes]
    tensors += [torch.randn(2 * width, width, dtype=dtype) / width**0.5 for _ in range(depth)]
    tensors += [torch.randn(2 * width, dtype=dtype) for _ in range(depth)]
    mask = torch.randint(2, (num_rows, width)).to(dtype) * 2
    keep = torch.randint(2, (num_steps, num_rows, 1)).to(dtype)
    return [tensor.requires_grad_() for tensor in tensors], {"mask": mask, "keep": keep}


def run_highway(tensors, factors):
    inputs, s, *parameters = tensors
    depth = len(parameters) // 2
    return recurrent_highway(inputs, parameters[:depth], parameters[depth:], s, **factors)


def highway_by_hand(tensors, factors):
    inputs, s, *parameters = tensors
    depth, share = len(parameters) // 2, torch.eye(inputs.size(-1), dtype=inputs.dtype)
    outputs = []
    for t, x in enumerate(inputs):
        micro_layers, mask = list(zip(parameters[:depth], parameters[depth:])), factors.get("mask", 1.0)
        _, s = plain_formulas.recurrent_highway(x.unsqueeze(1), s, share, micro_layers, mask=mask)
        s = s * factors["keep"][t] if "keep" in factors else s
        outputs.append(s)
    return torch.stack(outputs)


@every_extra
@pytest.mark.parametrize("sizes", HIGHWAY_SIZES)
def test_highway_values_and_gradients_are_those_of_the_recurrence(sizes, extras):
    tensors, factors = make_highway(*sizes)
    factors = {name: factors[name] for name in extras}
    found, expected = run_highway(tensors, factors), highway_by_hand(tensors, factors)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(expected)
    gradients = [torch.autograd.grad((result * weights).sum(), tensors) for result in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


def test_highway_gradients_are_finite_differences():
    tensors, factors = make_highway(3, 2, 3, 2)
    assert torch.autograd.gradcheck(lambda *tensors: run_highway(tensors, factors), tensors)


def test_without_gradients_the_values_are_the_same():
    tensors, factors = make_highway(6, 3, 4, 3)
    with torch.no_grad():
        found = run_highway(tensors, factors)
    assert torch.equal(found, run_highway(tensors, factors)) and not found.requires_grad


def test_a_frozen_network_keeps_no_more_than_one_without_gradients():
    num_steps, num_rows, width, depth = 40, 3, 8, 2
    tensors, factors = make_highway(num_steps, num_rows, width, depth)
    frozen = [x.detach() for x in tensors]
    peaks = []
    for given, mode in ((frozen, True), (frozen, False), (tensors, True)):
        with torch.set_grad_enabled(mode), TensorSizes() as sizes:
            run_highway(given, factors)
        peaks.append(sizes.peak)
    results = num_steps * num_rows * width
    assert peaks[0] == peaks[1] < 4 * results < (2 + 3 * depth) * results < peaks[2]


@pytest.mark.parametrize("frozen", range(6))
def test_highway_what_needs_no_gradient_changes_no_other(frozen):
    tensors, factors = make_highway(5, 3, 4, 2)
    learned = [x for n, x in enumerate(tensors) if n != frozen]
    expected = torch.autograd.grad(run_highway(tensors, factors).square().sum(), learned)
    tensors[frozen] = tensors[frozen].detach()
    assert all(
        map(
            torch.equal,
            torch.autograd.grad(run_highway(tensors, factors).square().sum(), learned),
            expected,
        )
    )


def test_a_second_backward_pass_gives_the_same():
    tensors, factors = make_highway(5, 3, 4, 2)
    total = run_highway(tensors, factors).square().sum()
    first = torch.autograd.grad(total, tensors, retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(total, tensors)))


@pytest.mark.parametrize("sizes", HIGHWAY_SIZES)
def test_highway_the_error_in_float32_is_that_of_the_recurrence_in_float32(sizes):
    tensors, factors = make_highway(*sizes)
    exact = highway_by_hand(tensors, factors)
    narrow, narrow_factors = [x.detach().float() for x in tensors], {name: x.float() for name, x in factors.items()}
    errors = [(function(narrow, narrow_factors) - exact).abs().max() for function in (run_highway, highway_by_hand)]
    assert errors[0] <= 2 * errors[1] + 1e-7


def test_highway_autocast_takes_the_products_in_16_bits():
    tensors, factors = make_highway(5, 3, 4, 2, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = run_highway(tensors, factors)
    assert outputs.dtype == torch.bfloat16
    outputs.float().sum().backward()
    assert all(x.grad.dtype == torch.float32 and x.grad.isfinite().all() for x in tensors)
    assert_near(outputs, run_highway(tensors, factors))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_in_16_bits_runs(dtype):
    tensors, factors = make_highway(5, 3, 4, 2)
    narrow = [x.detach().to(dtype).requires_grad_() for x in tensors]
    outputs = run_highway(narrow, {name: x.to(dtype) for name, x in factors.items()})
    assert outputs.dtype == dtype
    outputs.sum().backward()
    assert all(x.grad.dtype == dtype and x.grad.isfinite().all() for x in narrow)
    assert_near(outputs, run_highway(tensors, factors))


def test_highway_there_is_no_second_derivative():
    tensors, factors = make_highway(3, 2, 2, 2)
    (gradient, *_) = torch.autograd.grad(run_highway(tensors, factors).square().sum(), tensors, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
