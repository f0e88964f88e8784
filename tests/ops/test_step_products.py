"""Products of a sequence's steps against known_t + x_t A, where each x depends on the result before."""

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fairseq_plugins.ops import step_products
from fairseq_plugins.ops.step_products import StepProducts

T, B, K, D = 5, 3, 4, 6
SIZES = [(T, B, K, D), (1, 1, 1, 1), (7, 2, 9, 1), (3, 20, 33, 17)]
NAMES = ["known", "matrix", "start", "mixing"]

every_matrix = pytest.mark.parametrize("per_row", [False, True], ids=["one matrix", "a matrix a row"])


def draw(sizes=(T, B, K, D), *, per_row=False, dtype=torch.float64):
    """known, A, the first x, and what makes the next x of a result, (D, K)."""
    num_steps, num_rows, width_in, width = sizes
    shapes = [(num_steps, num_rows, width), (width_in, width), (num_rows, width_in), (width, width_in)]
    if per_row:
        shapes[1] = (num_rows, *shapes[1])
    return [torch.randn(shape, dtype=dtype).mul_(0.5).requires_grad_() for shape in shapes]


def recurrence(add_product, known, start, mixing):
    """All results, (T', B, D)."""
    x, results = start, []
    for t in range(len(known)):
        results.append(add_product(t, x))
        x = torch.tanh(results[-1] @ mixing)
    return torch.stack(results)


def ours(known, matrix, start, mixing):
    return recurrence(StepProducts(known, matrix), known, start, mixing)


def plain(known, matrix, start, mixing):
    subscripts = "bk,bkd->bd" if matrix.dim() == 3 else "bk,kd->bd"
    return recurrence(lambda t, x: known[t] + torch.einsum(subscripts, x, matrix), known, start, mixing)


def gradients(function, inputs, materialize_grads=True, **options):
    return torch.autograd.grad(function(*inputs).square().sum(), inputs, materialize_grads=True, **options)


@pytest.fixture(params=[True, False], ids=["gathered as on a CPU", "step by step as on a GPU"])
def both_ways(request, monkeypatch):
    monkeypatch.setattr(step_products, "gathers_gradients", lambda matrix: request.param)


@pytest.mark.parametrize(
    "device, dtype, gathers",
    [("cpu", torch.float32, True), ("cpu", torch.bfloat16, True), ("cuda", torch.float32, False)]
    + [("cuda", torch.float64, False), ("cuda", torch.bfloat16, True), ("cuda", torch.float16, True)],
)
def test_sums_in_16_bits_are_gathered_everywhere(device, dtype, gathers):
    assert step_products.gathers_gradients(SimpleNamespace(is_cuda=device == "cuda", dtype=dtype)) == gathers


@every_matrix
@pytest.mark.parametrize("sizes", SIZES)
def test_results_and_gradients_are_those_of_the_formula(sizes, per_row, both_ways):
    inputs = draw(sizes, per_row=per_row)
    torch.testing.assert_close(ours(*inputs), plain(*inputs), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients(ours, inputs), gradients(plain, inputs), rtol=1e-10, atol=1e-12)


@every_matrix
def test_gradients_are_finite_differences(per_row, both_ways):
    assert torch.autograd.gradcheck(ours, draw((3, 2, 2, 3), per_row=per_row))


@every_matrix
@pytest.mark.parametrize("sizes", SIZES)
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
@pytest.mark.parametrize("frozen", NAMES)
def test_what_needs_no_gradient_changes_no_other(frozen, per_row, both_ways):
    inputs = draw(per_row=per_row)
    learned = [x for name, x in zip(NAMES, inputs) if name != frozen]
    expected = torch.autograd.grad(ours(*inputs).square().sum(), learned)
    inputs[NAMES.index(frozen)] = inputs[NAMES.index(frozen)].detach()
    assert all(map(torch.equal, torch.autograd.grad(ours(*inputs).square().sum(), learned), expected))


@every_matrix
def test_known_may_be_expanded_and_need_no_gradient(per_row, both_ways):
    _, *inputs = draw(per_row=per_row)
    known = torch.randn(D, dtype=torch.float64, requires_grad=True)

    def run(function, bias):
        return function(bias.expand(T, B, D), *inputs).square().sum()

    results = [torch.autograd.grad(run(function, known), [known, *inputs]) for function in (ours, plain)]
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)
    results = [torch.autograd.grad(run(function, known.detach()), inputs) for function in (ours, plain)]
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
    known, matrix, start, _ = inputs
    products = StepProducts(known, matrix)
    found = [products(t, start * t) for t in (3, 1)]
    subscripts = "bk,bkd->bd" if per_row else "bk,kd->bd"
    expected = [known[t] + torch.einsum(subscripts, start * t, matrix) for t in (3, 1)]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    wanted = inputs[:3]
    results = [torch.autograd.grad(sum(x.pow(3).sum() for x in steps), wanted) for steps in (found, expected)]
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


def test_a_second_pass_over_a_graph_that_was_not_kept_is_refused():
    known, matrix, start, _ = draw()
    products = StepProducts(known, matrix)
    first, second = (products(t, start) for t in (0, 1))
    first.sum().backward()
    with pytest.raises(RuntimeError, match="the operands are gone .*: give it retain_graph=True"):
        second.sum().backward()


def test_where_no_step_is_taken_the_matrix_has_a_gradient_of_zero():
    known, matrix, _, _ = draw()
    products = StepProducts(known, matrix)
    (gradient,) = torch.autograd.grad(products._known[0].sum(), matrix)
    assert gradient.shape == matrix.shape and not gradient.any()


@every_matrix
def test_a_steps_result_may_go_unused(per_row, both_ways):
    inputs = draw(per_row=per_row)
    results = [torch.autograd.grad(function(*inputs)[2].sum(), inputs) for function in (ours, plain)]
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


@every_matrix
def test_the_gradient_of_the_matrix_is_one_product_of_all_steps(per_row, monkeypatch):
    shapes, one_product = [], step_products._matrix_gradient

    def spy(operands, d_results, **options):
        shapes.append((operands.shape, d_results.shape))
        return one_product(operands, d_results, **options)

    monkeypatch.setattr(step_products, "_matrix_gradient", spy)
    inputs = draw(per_row=per_row)
    with FlopCounterMode(display=False) as counter:
        gradients(ours, inputs)
    assert shapes == [((T, B, K), (T, B, D))]
    # forward, for the operands and for the matrices; what is mixed after the last step has no gradient
    assert counter.get_total_flops() / 2 == B * K * D * (3 * T + T + 2 * (T - 1))


@pytest.mark.parametrize("with_gradient", [True, False])
def test_operands_are_kept_no_longer_than_the_backward_pass_needs_them(with_gradient):
    known, matrix, start, _ = draw()
    with torch.set_grad_enabled(with_gradient):
        products = StepProducts(known, matrix)
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
def test_autocast_takes_the_products_in_16_bits(per_row):
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


def test_there_is_no_second_derivative():
    inputs = draw()
    gradient = gradients(ours, inputs, create_graph=True)[1]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
