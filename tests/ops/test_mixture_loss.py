"""The loss of a mixture: values, gradients, ignored tokens, scores, memory and precision.

Sizes are numbers of experts, words and tokens, and the width of the experts' hidden states.
"""

from collections import Counter, defaultdict
from functools import lru_cache, partial

import pytest
import torch
from mixture_cases import (
    BASE,
    GATE,
    OTHER,
    assert_same,
    call,
    draw,
    formula,
    outcome,
    plain,
    smoothed_or_not,
    token_losses,
)
from nearness import assert_near
from plain_formulas import mixture_loss
from tensor_sizes import TensorSizes

from fairseq_plugins.ops import kernels, logit_gate, mixture_chunk
from fairseq_plugins.ops import mixture_loss as mixture_loss_module
from fairseq_plugins.ops.logit_gate import LogitGate
from fairseq_plugins.ops.mixture_chunk import Interpolation
from fairseq_plugins.ops.mixture_loss import mixture_nll

on_both_kernels = pytest.mark.usefixtures("kernel_set")

SIZES = [(1, 50, 40, 8), (1, 507, 123, 20), (3, 252, 60, 7), (20, 123, 50, 12), (3, 1, 10, 4), (4, 30, 1, 5)]
SMALL, MANY = (3, 11, 10, 5), (3, 11, 20, 5)
ALL_PARTS = dict(gate_width=6, interpolated=True)

SMOOTHED, LOWERED = dict(label_smoothing=0.1), dict(adversarial_epsilon=0.3)
every_loss = pytest.mark.parametrize(
    "parts, options",
    [
        pytest.param({}, {}, id="plain"),
        pytest.param(ALL_PARTS, LOWERED, id="gate, interpolation, margins"),
        pytest.param(dict(interpolated=True), SMOOTHED | LOWERED, id="interpolation, smoothing, margins"),
        pytest.param(ALL_PARTS, SMOOTHED, id="gate, interpolation, smoothing"),
        pytest.param(dict(gate_width=6), SMOOTHED | LOWERED, id="gate, smoothing, margins"),
    ],
)
"""All pairs of a gate, an interpolation, label smoothing and margins, with and without."""

# values and gradients


@on_both_kernels
@every_loss
@pytest.mark.parametrize(
    "sizes, scale, chunk_size",
    [*((sizes, 1, None) for sizes in SIZES), (SIZES[1], 10, 50), (SIZES[2], 10, 7), (MANY, 1, 1), (MANY, 1, 3)],
)
def test_loss_and_gradients_are_those_of_the_formula_whatever_the_chunk(sizes, scale, chunk_size, parts, options):
    case = draw(*sizes, scale=scale, **parts)
    assert_same(outcome(mixture_nll, case, chunk_size=chunk_size, **options), outcome(formula, case, **options))


@on_both_kernels
@pytest.mark.parametrize("with_bias, with_weights", [(False, False), (False, True), (True, False)])
def test_bias_and_token_weights_can_be_left_out(with_bias, with_weights):
    case, given = draw(*SMALL), {}
    if not with_bias:
        case.bias, given["bias"] = torch.zeros_like(case.bias), None
    if not with_weights:
        case.token_weights, given["token_weights"] = torch.ones_like(case.token_weights), None
    leaves, expected = case.leaves(torch.float64), outcome(formula, case, **SMOOTHED)
    loss, nll = call(mixture_nll, case, leaves, **SMOOTHED, **given)
    names = BASE if with_bias else BASE[:-1]
    gradients = torch.autograd.grad(loss, [leaves[name] for name in names])
    ours = {"loss": loss.detach(), "nll": nll, **dict(zip(names, gradients))}
    assert_same(ours, {name: expected[name] for name in ours})


@on_both_kernels
@pytest.mark.parametrize("is_gated", [False, True])
def test_a_matrix_that_is_also_the_embedding_gets_all_its_gradients(is_gated):
    """The latents and the gate's features are embedded words, and the gate has the same matrix."""
    weight, zeros = torch.randn(11, 5, dtype=torch.float64, requires_grad=True), torch.zeros(11).double()
    log_prior = torch.log_softmax(torch.randn(8, 2, dtype=torch.float64), -1)
    tokens, target = torch.randint(11, (2, 8))
    latents = torch.stack([torch.tanh(weight[tokens]), weight[tokens]], dim=1)
    gate = LogitGate(weight[tokens], weight, zeros) if is_gated else None
    loss = mixture_nll(latents, log_prior, weight, target, gate=gate, chunk_size=3, **SMOOTHED).loss
    expected = mixture_loss(latents, log_prior.exp(), weight, zeros, target, 0.1, gate)[0].sum()
    ours, theirs = [torch.autograd.grad(value, weight, retain_graph=True) for value in (loss, expected)]
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("leading", [(), (4,), (2, 3, 2)])
def test_any_number_of_leading_dimensions(leading):
    latents, log_prior = torch.randn(*leading, 3, 5), torch.log_softmax(torch.randn(*leading, 3), -1)
    weight, target = torch.randn(7, 5), torch.randint(7, leading)
    gate = LogitGate(torch.randn(*leading, 6), torch.randn(7, 6), torch.randn(7))
    leaves = [latents.requires_grad_(), gate.features.requires_grad_()]
    loss, nll = mixture_nll(latents, log_prior, weight, target, gate=gate)
    expected = mixture_loss(latents, log_prior.exp(), weight, torch.zeros(7), target, gate=gate)[1]
    assert loss.shape == () and nll.shape == leading
    torch.testing.assert_close(nll, expected, rtol=1e-5, atol=1e-5)
    assert [g.shape for g in torch.autograd.grad(loss, leaves)] == [leaf.shape for leaf in leaves]


@on_both_kernels
@every_loss
def test_experts_that_are_ruled_out_take_no_part(parts, options):
    case = draw(4, 11, 6, 5, **parts)
    case.token_weights.fill_(1)
    scores = torch.randn(6, 4, dtype=torch.float64)
    scores[:, 1] = scores[3, 0] = scores[4, 2:] = -torch.inf
    results = []
    for function in (mixture_nll, formula):
        leaves = {**case.leaves(torch.float64), "log_prior": scores.clone().requires_grad_()}
        inputs = {**leaves, "log_prior": torch.log_softmax(leaves["log_prior"], dim=-1)}
        loss, nll = call(function, case, inputs, **options)
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        results.append({"loss": loss.detach(), "nll": nll, **dict(zip(leaves, gradients))})
    ours, expected = results
    assert all(value.isfinite().all() for value in ours.values())
    assert not ours["latents"][:, 1].any() and not ours["log_prior"][:, 1].any()
    assert_same(ours, expected)


# ignored tokens


@on_both_kernels
@pytest.mark.parametrize("how", ["token_weights", "ignore_index", "both"])
def test_without_a_token_that_counts_everything_is_zero(how):
    case = draw(*SMALL, **ALL_PARTS)
    leaves = case.leaves(torch.float32)
    if how != "token_weights":
        case.target.fill_(-100)
    case.token_weights = torch.zeros(10) if how != "ignore_index" else torch.ones(10)
    ignore_index = -100 if how != "token_weights" else None
    loss, nll = call(mixture_nll, case, leaves, ignore_index=ignore_index, **SMOOTHED)
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    assert loss.item() == 0.0 and not nll.any()
    assert all(torch.equal(g, torch.zeros_like(leaf)) for g, leaf in zip(gradients, leaves.values()))


@on_both_kernels
@smoothed_or_not
@pytest.mark.parametrize("dtype, leading", [(torch.float32, (0, 5)), (torch.float32, (3, 0)), (torch.float16, (0,))])
def test_without_a_token_everything_is_zero(dtype, leading, smoothing):
    weight = torch.randn(7, 5).to(dtype).requires_grad_()
    latents, log_prior = torch.randn(*leading, 2, 5).to(dtype).requires_grad_(), torch.zeros(*leading, 2)
    tensors = torch.randn(*leading, 6), torch.randn(7, 6), torch.randn(7)
    gate = LogitGate(*(x.to(dtype).requires_grad_() for x in tensors))
    target = torch.zeros(leading, dtype=torch.long)
    loss, nll = mixture_nll(latents, log_prior, weight, target, gate=gate, label_smoothing=smoothing)
    leaves = [latents, weight, *gate]
    gradients = torch.autograd.grad(loss, leaves)
    assert loss.item() == 0.0 and nll.shape == leading
    assert [g.shape for g in gradients] == [leaf.shape for leaf in leaves] and not any(g.any() for g in gradients)


@on_both_kernels
@pytest.mark.parametrize("ignored", [-100, 3, 10**6])
def test_a_token_with_the_ignored_index_is_one_of_weight_zero(ignored):
    case = draw(*SMALL, **ALL_PARTS)
    case.target[[0, 3, 8]] = 3
    weightless = case.token_weights.masked_fill(case.target.eq(3), 0)
    results = []
    for target, options in (
        (case.target, {"token_weights": weightless}),
        (case.target.masked_fill(case.target.eq(3), ignored), {"ignore_index": ignored}),
    ):
        leaves, case.target = case.leaves(torch.float64), target
        loss, nll = call(mixture_nll, case, leaves, **SMOOTHED, **options)
        results.append([loss.detach(), nll, *torch.autograd.grad(loss, list(leaves.values()))])
    assert results[0][1][case.target.eq(ignored)].eq(0).all() and results[0][0] > 0
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-14)


@on_both_kernels
@every_loss
def test_nothing_is_read_of_a_token_that_is_ignored(parts, options):
    case = draw(*SMALL, **parts)
    expected = outcome(mixture_nll, case, **options)
    ignored = case.token_weights == 0
    for name in {"latents", "log_prior", "gate_features", *OTHER} & {*case.learned}:
        getattr(case, name)[ignored] = torch.inf if name == "log_prior" else torch.nan
    case.target[ignored] = 10**9
    assert ignored.any() and not ignored.all()
    assert_same(outcome(mixture_nll, case, **options), expected)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float16, torch.float64])
def test_token_weights_of_any_type(dtype):
    weights = torch.tensor([2, 0, 3, 1]).to(dtype)
    latents, log_prior = torch.randn(4, 2, 5), torch.log_softmax(torch.randn(4, 2), -1)
    loss, nll = mixture_nll(latents, log_prior, torch.randn(7, 5), torch.arange(4), token_weights=weights)
    torch.testing.assert_close(loss, (weights.float() * nll).sum(), rtol=1e-6, atol=0)
    assert torch.equal(nll != 0, weights != 0)


def test_a_word_that_is_forbidden_and_ignored_does_no_harm():
    case = draw(2, 11, 10, 5)
    leaves = case.leaves(torch.float32)
    bias = leaves["bias"].detach().clone()
    bias[3] = -torch.inf
    case.target = torch.tensor([3] * 4 + [0, 1, 2] * 2)
    for chunk_dtype in (None, torch.bfloat16):
        options = dict(bias=bias, ignore_index=3, token_weights=None, chunk_dtype=chunk_dtype)
        assert call(mixture_nll, case, leaves, **options).loss.isfinite()


# scoring without reduction


@on_both_kernels
@every_loss
def test_without_reduction_each_token_has_its_weighted_loss(parts, options):
    case = draw(*SMALL, **parts)
    inputs = {name: getattr(case, name) for name in case.learned}
    loss, nll = call(mixture_nll, case, inputs, reduction="none", chunk_size=4, **options)
    expected = call(token_losses, case, inputs, **options)
    torch.testing.assert_close(loss, expected.loss * case.token_weights, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(nll, expected.nll.masked_fill(case.token_weights == 0, 0), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", BASE + GATE + OTHER)
def test_without_reduction_a_gradient_is_refused(name):
    case = draw(*SMALL, **ALL_PARTS)
    leaves = {key: leaf.requires_grad_(key == name) for key, leaf in case.leaves(torch.float64).items()}
    with pytest.raises(ValueError, match=f'reduction="none" gives no gradient for {name.replace("gate_", "gate.")}:'):
        call(mixture_nll, case, leaves, reduction="none")
    with torch.no_grad():
        assert call(mixture_nll, case, leaves, reduction="none").loss.shape == (10,)


# what learns


@on_both_kernels
@pytest.mark.parametrize("num_experts", [1, 3])
@pytest.mark.parametrize(
    "learned",
    [*((name,) for name in BASE + GATE), BASE[1:3], BASE[::3], GATE, OTHER, (BASE[0], GATE[1]), (BASE[1], GATE[0])],
    ids="+".join,
)
def test_only_what_learns_gets_a_gradient(learned, num_experts):
    case = draw(num_experts, *SMALL[1:], **ALL_PARTS)
    leaves, expected = case.leaves(torch.float64), outcome(formula, case, **SMOOTHED)
    for name in set(case.learned) - set(learned):
        leaves[name].requires_grad_(False)
    call(mixture_nll, case, leaves, chunk_size=4, **SMOOTHED).loss.backward()
    assert {name for name, leaf in leaves.items() if leaf.grad is not None} == set(learned)
    assert_same({name: leaves[name].grad for name in learned}, {name: expected[name] for name in learned})


@pytest.mark.parametrize(
    "learned, num_products, num_gatings",
    [
        (GATE, 2 + 2, 1),
        (GATE[2:], 2 + 0, 1),
        (BASE[2:3], 2 + 1, 2),
        (BASE[1:2], 2 + 0, 1),
        ((), 2 + 0, 1),
        (BASE + GATE, 2 + 4, 2),
    ],
)
def test_work_for_what_is_frozen_is_left_out(learned, num_products, num_gatings, monkeypatch):
    """Beside the products for logits and gate, one for each of latents, weight, gate_features and gate_weight.

    The gate multiplies the logits, and the gradients by them if anything before it learns.
    """
    calls = Counter()

    def count(module, name, kind):
        function = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, **kwargs: calls.update([kind]) or function(*args, **kwargs))

    count(mixture_loss_module, "matmul", "product")
    count(kernels, "add_matmul", "product")
    for module in (mixture_loss_module, logit_gate):
        count(module, "project", "product")
    count(mixture_loss_module, "multiply_by_gate", "gating")
    count(mixture_chunk.MixtureChunk, "backward", "backward")
    case = draw(*SMALL, gate_width=6)
    leaves = {name: leaf.requires_grad_(name in learned) for name, leaf in case.leaves(torch.float64).items()}
    loss = call(mixture_nll, case, leaves, chunk_size=10).loss
    assert loss.requires_grad == bool(learned)
    assert calls == {"product": num_products, "gating": num_gatings, **({"backward": 1} if learned else {})}


def test_under_no_grad_there_is_no_gradient_and_the_values_are_the_same():
    case = draw(*SMALL, **ALL_PARTS)
    leaves = case.leaves(torch.float64)
    with torch.no_grad():
        scored = call(mixture_nll, case, leaves)
    learned = call(mixture_nll, case, leaves)
    assert not scored.loss.requires_grad and not learned.nll.requires_grad
    assert torch.equal(scored.loss, learned.loss) and torch.equal(scored.nll, learned.nll)


def test_a_graph_gives_its_gradients_once_or_while_it_is_kept():
    case = draw(*SMALL, **ALL_PARTS)
    leaves, expected = case.leaves(torch.float64), outcome(mixture_nll, case)
    loss, params = call(mixture_nll, case, leaves).loss, list(leaves.values())
    first = [g.clone() for g in torch.autograd.grad(loss, params, retain_graph=True)]
    torch.autograd.grad(3 * loss, params, retain_graph=True)
    second = torch.autograd.grad(loss, params)
    for gradients in (first, second):
        assert all(torch.equal(g, expected[name]) for g, name in zip(gradients, leaves))
    with pytest.raises(RuntimeError, match="retain_graph"):
        loss.backward()


def test_the_incoming_gradient_scales_all_gradients_and_they_add_up_over_calls():
    case = draw(*SMALL, **ALL_PARTS)
    leaves, expected = case.leaves(torch.float64), outcome(formula, case)
    for factor in (0.0, -0.5, 2.0**16):
        (factor * call(mixture_nll, case, leaves).loss).backward()
    (call(mixture_nll, case, leaves).loss + call(mixture_nll, case, leaves).loss).backward()
    total = -0.5 + 2.0**16 + 2
    assert_same({name: leaf.grad / total for name, leaf in leaves.items()}, {name: expected[name] for name in leaves})


def rearranged(x):
    """x with its first dimension last in memory; a vector with every second element of a longer one."""
    return torch.stack([x, x], dim=1)[:, 0] if x.dim() == 1 else x.transpose(0, -1).contiguous().transpose(0, -1)


def test_inputs_need_not_be_contiguous_and_are_left_as_they_are():
    case = draw(4, 11, 12, 4, **ALL_PARTS)
    expected = outcome(formula, case, **SMOOTHED)
    leaves = {name: rearranged(getattr(case, name)).requires_grad_() for name in case.learned}
    before = {name: leaf.detach().clone() for name, leaf in leaves.items()}
    case.target, case.token_weights = rearranged(case.target), rearranged(case.token_weights)
    assert not any(x.is_contiguous() for x in [*leaves.values(), case.target, case.token_weights])
    loss, nll = call(mixture_nll, case, leaves, chunk_size=5, **SMOOTHED)
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    assert_same({"loss": loss.detach(), "nll": nll, **dict(zip(leaves, gradients))}, expected)
    assert all(torch.equal(leaf, before[name]) for name, leaf in leaves.items())


def test_inputs_may_be_expanded():
    case = draw(*SMALL, **ALL_PARTS)
    per_token = ["latents", "log_prior", "gate_features", *OTHER]
    for name in per_token:
        setattr(case, name, getattr(case, name)[1:2])
    results = []
    for function in (mixture_nll, formula):
        leaves = case.leaves(torch.float64)
        inputs = {**leaves, "bias": leaves["bias"][:1].expand(11)}
        inputs.update({name: leaves[name].expand(10, *leaves[name].shape[1:]) for name in per_token})
        loss, _ = call(function, case, inputs, token_weights=torch.ones(()).expand(10))
        results.append(torch.autograd.grad(loss, list(leaves.values())))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


def test_a_second_derivative_is_refused():
    case = draw(*SMALL)
    leaves = case.leaves(torch.float64)
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad(call(mixture_nll, case, leaves).loss, leaves["latents"], create_graph=True)


# memory


@pytest.mark.parametrize(
    "gate_width, options, dtype",
    [(None, SMOOTHED, torch.float32), (6, {}, torch.float32), (6, SMOOTHED, torch.bfloat16)],
)
def test_memory_does_not_grow_with_tokens_times_vocabulary(gate_width, options, dtype):
    def sizes_of(function, num_tokens, **more):
        case = draw(3, 997, num_tokens, 8, gate_width=gate_width)
        with TensorSizes() as sizes:
            outcome(function, case, dtype, **options, **more)
        return sizes

    few, many = (sizes_of(mixture_nll, num_tokens, chunk_size=4) for num_tokens in (20, 80))
    chunk_logits, weight = 4 * 3 * 997, 997 * 8
    assert max(few.largest, many.largest) <= max(chunk_logits, weight) < 20 * 997
    # a few copies of latents and features, where one word each would be 997
    assert (many.peak - few.peak) / 60 < 5 * (3 * 8 + (gate_width or 0))
    few, many = (sizes_of(plain, num_tokens) for num_tokens in (20, 80))
    assert few.largest >= 20 * 3 * 997 and (many.peak - few.peak) / 60 > 3 * 997


@pytest.mark.parametrize("num_experts, dtype", [(1, torch.bfloat16), (8, torch.float32), (8, torch.bfloat16)])
@pytest.mark.parametrize("learned", [BASE, GATE, BASE + GATE])
def test_a_gate_holds_a_second_chunk_only_while_it_learns(learned, num_experts, dtype):
    chunk_size, vocab_size = 48 // num_experts, 2000
    case = draw(num_experts, vocab_size, 2 * chunk_size, 2, gate_width=2)
    leaves = {name: leaf.requires_grad_(name in learned) for name, leaf in case.leaves(dtype).items()}
    with TensorSizes() as sizes:
        call(mixture_nll, case, leaves, chunk_size=chunk_size)
    # a 16-bit product, and the 16-bit operand of the base's gradients, have as many elements as a chunk
    num_chunks = 1 + 1 / num_experts + (GATE[0] in learned)
    rounded = 1 if dtype == torch.bfloat16 and BASE[0] in learned else 0
    assert num_chunks <= sizes.peak / (48 * vocab_size) < num_chunks + rounded + 0.4


def test_smoothing_the_labels_of_one_softmax_needs_no_second_chunk():
    case = draw(1, 5000, 32, 2)
    with TensorSizes() as sizes:
        outcome(mixture_nll, case, torch.float32, label_smoothing=0.1, chunk_size=16)
    assert 16 * 5000 <= sizes.peak < 1.6 * 16 * 5000


# margins and interpolation


def test_the_bias_takes_no_part_in_the_margin():
    """With it, or without it at all: margins are the same."""
    case = draw(3, 11, 20, 5)
    leaves = case.leaves(torch.float64)
    rises = []
    for bias in (None, leaves["bias"] - 50, leaves["bias"] + 50):
        before, after = (
            call(mixture_nll, case, leaves, bias=bias, adversarial_epsilon=epsilon).nll for epsilon in (0.0, 0.1)
        )
        rises.append(after - before)
    assert (rises[0] >= 0).all() and rises[0].any()
    torch.testing.assert_close(rises[1], rises[2], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "dtype, chunk_dtype", [(torch.float32, None), (torch.float32, torch.bfloat16), (torch.bfloat16, None)]
)
def test_an_epsilon_of_zero_changes_no_bit(dtype, chunk_dtype, monkeypatch):
    case = draw(3, 11, 20, 5, dtype=torch.bfloat16, **ALL_PARTS)
    options = dict(chunk_dtype=chunk_dtype, **SMOOTHED)
    expected = outcome(mixture_nll, case, dtype, **options)
    monkeypatch.setattr(mixture_loss_module, "adversarial_margins", None)
    found = outcome(mixture_nll, case, dtype, adversarial_epsilon=0.0, **options)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_target_whose_probability_underflows_is_lowered_all_the_same():
    latents, weight = torch.tensor([[[20.0]]]), torch.tensor([[1.0], [30.0]])
    nll = mixture_nll(latents, torch.zeros(1, 1), weight, torch.tensor([0]), adversarial_epsilon=0.5).nll
    torch.testing.assert_close(nll, torch.tensor([600.0 - 10.0]), rtol=1e-6, atol=0)


def test_without_weight_for_the_other_distribution_it_is_the_mixture_bit_for_bit():
    case = draw(3, 11, 20, 5)
    expected = outcome(mixture_nll, case, torch.float32)
    nothing = Interpolation(torch.zeros(20), torch.full((20,), float("-inf")))
    found = outcome(mixture_nll, case, torch.float32, interpolation=nothing)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@on_both_kernels
@pytest.mark.parametrize("epsilon, dtype", [(0.0, torch.float16), (0.3, torch.bfloat16), (0.3, torch.float16)])
def test_interpolated_gradients_in_16_bits_are_those_of_the_formula_up_to_rounding(epsilon, dtype):
    case = draw(3, 11, 20, 8, dtype=dtype, interpolated=True)
    ours = outcome(mixture_nll, case, dtype, adversarial_epsilon=epsilon)
    expected = outcome(formula, case, adversarial_epsilon=epsilon)
    for name in case.learned:
        bound = 0.02 * float(expected[name].abs().max())
        torch.testing.assert_close(ours[name].double(), expected[name], rtol=0, atol=bound)


# errors in float32 and 16 bits, beside those of autograd; which of two paths rounds a single number better is chance

EPS = torch.finfo(torch.float32).eps
NUM_SEEDS = 5
MARGINS = dict(adversarial_epsilon=0.05)
GATED = dict(gate_width=6, **SMOOTHED)
PAIRS = [{}, GATED, dict(gate_width=6, **MARGINS), SMOOTHED | MARGINS]

sixteen_bits = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


def rms_errors(
    function, sizes, dtype, *, scale=1.0, with_bias=True, loss_scale=1.0, token_weight=None, gate_width=None, **options
):
    """Root mean squared error of NLL and gradients over all elements and seeds, with ``loss_scale`` taken out again."""
    of_the_loss = {name: options.get(name, 0.0) for name in ("label_smoothing", "adversarial_epsilon")}
    drawn = dict(scale=scale, dtype=dtype, with_bias=with_bias, token_weight=token_weight, gate_width=gate_width)
    squares = defaultdict(list)
    for seed in range(NUM_SEEDS):
        case, exact = _case(seed, sizes, **drawn, **of_the_loss)
        ours = outcome(scaled_by(loss_scale, function), case, dtype, **options)
        for name in ("nll", *case.learned):
            value = ours[name].double() / (1 if name == "nll" else loss_scale)
            squares[name].append((value - exact[name]).square().mean())
    return {name: torch.stack(values).mean().sqrt().item() for name, values in squares.items()}


@lru_cache(maxsize=NUM_SEEDS)
def _case(seed, sizes, *, scale, dtype, with_bias, token_weight, gate_width, **of_the_loss):
    """Inputs and what they give in float64, kept for the next function that is measured on them."""
    torch.manual_seed(seed)
    case = draw(*sizes, scale=scale, dtype=dtype, gate_width=gate_width)
    if not with_bias:
        case.bias.zero_()
    if token_weight is not None:
        case.token_weights.fill_(token_weight)
    return case, outcome(formula, case, **of_the_loss)


def scaled_by(factor, function):
    def scaled(*args, **options):
        loss, nll = function(*args, **options)
        return loss * factor, nll

    return scaled


def under_autocast(dtype, function):
    def call(*args, **options):
        with torch.autocast("cpu", dtype):
            return function(*args, **options)

    return call


@on_both_kernels
@pytest.mark.parametrize(
    "sizes, given, bound",
    [
        # the sums run in another order; one rounding of 1 is added because autograd is exact where V = 1
        *((sizes, options, 1.25) for sizes in SIZES[1:] for options in PAIRS[1:3]),
        *((SIZES[1], dict(scale=30, **options), 1.25) for options in PAIRS),
        *((SIZES[2], dict(scale=10, **options), 1.25) for options in PAIRS),
        # the products of the chunks are added one by one, each with a rounding
        *((SIZES[2], dict(chunk_size=size, **options), 1.5) for size in (1, 7) for options in ({}, GATED)),
    ],
)
def test_float32_error_is_no_larger_than_that_of_autograd(sizes, given, bound):
    ours, theirs = [rms_errors(function, sizes, torch.float32, **given) for function in (mixture_nll, plain)]
    for name, error in ours.items():
        assert error <= bound * theirs[name] + EPS, name


@on_both_kernels
@pytest.mark.slow
@sixteen_bits
@pytest.mark.parametrize(
    "sizes, given",
    [
        *((SIZES[1], dict(with_bias=False, **options)) for options in PAIRS),
        *((SIZES[2], options) for options in PAIRS[1:3]),
        *((SIZES[3], dict(scale=10, with_bias=False, **options)) for options in PAIRS),
        *((sizes, dict(chunk_size=7, **options)) for sizes in (SIZES[1], SIZES[3]) for options in ({}, GATED)),
    ],
)
def test_sixteen_bit_error_is_no_larger_than_that_of_autograd(sizes, given, dtype):
    ours, theirs = [rms_errors(function, sizes, dtype, **given) for function in (mixture_nll, plain)]
    for name, error in ours.items():
        # both paths take the same logits and products in 16 bits, and differ in how they round sums in float32;
        # the careful path rounds a gate's bias with its product, so that by chance its gate may be nearer
        factor = 1.25 if "adversarial_epsilon" in given else 1.2 if "gate_width" in given else 1.05
        # the product of each chunk is rounded and together they weigh as much as their sum's: sqrt(2) at most
        factor = 1.42 if "chunk_size" in given and name in ("weight", "gate_weight") else factor
        assert error <= factor * theirs[name] + EPS, name


@pytest.mark.slow
@sixteen_bits
@pytest.mark.parametrize("sizes, loss_scale", [(SIZES[1], 1.0), (SIZES[3], 2.0**16)])
def test_under_autocast_parameters_in_float32_have_gradients_in_float32(sizes, loss_scale, dtype):
    ours, theirs = [
        rms_errors(under_autocast(dtype, function), sizes, torch.float32, loss_scale=loss_scale, **GATED)
        for function in (mixture_nll, plain)
    ]
    for name, error in ours.items():
        # both round the operands of the same products to 16 bits; here the bias of the careful path is rounded too
        assert error <= 1.05 * theirs[name] + EPS, name
    types = outcome(under_autocast(dtype, mixture_nll), draw(*sizes, **ALL_PARTS), torch.float32)
    assert {value.dtype for value in types.values()} == {torch.float32}


@on_both_kernels
@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes, loss_scale, token_weight, options",
    [((1, 3000, 300, 8), 2.0**16, 2.0**-9, GATED), ((3, 600, 200, 8), 2.0**7, 1.0, {})],
)
def test_a_loss_scale_saves_small_gradients_in_float16(sizes, loss_scale, token_weight, options):
    given = dict(scale=0.3, loss_scale=loss_scale, token_weight=token_weight, **options)
    ours, theirs = [rms_errors(function, sizes, torch.float16, **given) for function in (mixture_nll, plain)]
    for name, error in ours.items():
        assert error <= 1.05 * theirs[name] + EPS * token_weight, name


@on_both_kernels
@pytest.mark.parametrize("num_experts", [1, 3])
@pytest.mark.parametrize("logit", [0.0, 20.3, 80.3, 3000.3])
def test_a_confident_prediction_costs_nothing_however_large_its_logit(logit, num_experts):
    latents, weight, bias = torch.zeros(50, num_experts, 2), torch.zeros(11, 2), torch.randn(11)
    log_prior, target = torch.log_softmax(torch.randn(50, num_experts), -1), torch.full((50,), 4)
    bias[4] = logit
    nll = mixture_nll(latents, log_prior, weight, target, bias=bias).nll
    expected = mixture_loss(*(x.double() for x in (latents, log_prior.exp(), weight, bias)), target)[1]
    if num_experts == 1:
        assert (nll >= 0).all()
    torch.testing.assert_close(nll.double(), expected, rtol=2 * EPS, atol=4 * EPS)


@on_both_kernels
@smoothed_or_not
@pytest.mark.parametrize("num_experts, vocab_size, scale", [(1, 123, 200), (3, 252, 80), (20, 50, 200), (3, 252, 1)])
def test_probabilities_that_underflow_do_no_harm(num_experts, vocab_size, scale, smoothing):
    """Word 0 has the logit +scale, the others -scale, so that their probability is e^(-2 scale)."""
    target, ones = torch.arange(60) % vocab_size, torch.ones(60)
    latents, bias = torch.randn(60, num_experts, 5), torch.full((vocab_size,), -float(scale))
    weight, log_prior = 0.1 * torch.randn(vocab_size, 5), torch.log_softmax(torch.randn(60, num_experts), -1)
    bias[0] = scale

    def results(function, dtype):
        leaves = [x.to(dtype, copy=True).requires_grad_() for x in (latents, log_prior, weight, bias)]
        options = dict(bias=leaves[3], token_weights=ones.to(dtype), label_smoothing=smoothing)
        loss, nll = function(*leaves[:3], target, **options)
        return [nll, *torch.autograd.grad(loss, leaves)]

    ours, exact = results(mixture_nll, torch.float32), results(formula, torch.float64)
    assert all(value.isfinite().all() for value in ours)
    # logits have a size of scale, and a gradient sums up to 60 of them
    torch.testing.assert_close(ours[0].double(), exact[0], rtol=1e-6, atol=4 * EPS * scale)
    for value, exact_value in zip(ours[1:], exact[1:]):
        torch.testing.assert_close(value.double(), exact_value, rtol=1e-4, atol=16 * EPS * scale)
    if scale > 1:
        probs = (torch.softmax(latents @ weight.T + bias, -1) * log_prior.exp().unsqueeze(-1)).sum(-2)
        assert probs.gather(-1, target[:, None]).log().isinf().any(), "nothing underflows here"


@on_both_kernels
@smoothed_or_not
def test_experts_that_disagree_by_400_nats(smoothing):
    logits = torch.full((2, 2, 7), -200.0)
    logits[:, 0, 0] = logits[:, 1, 1] = 200.0
    log_prior = torch.tensor([[0.25, 0.75]]).log().repeat(2, 1).requires_grad_()
    logits.requires_grad_()
    loss, nll = mixture_nll(logits, log_prior, torch.eye(7), torch.tensor([0, 1]), label_smoothing=smoothing)
    torch.testing.assert_close(nll, -torch.tensor([0.25, 0.75]).log(), rtol=1e-6, atol=0)
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, [logits, log_prior]))


@sixteen_bits
def test_sixteen_bit_inputs_have_losses_in_float32_and_gradients_of_their_own_type(dtype):
    case = draw(*SIZES[1], dtype=dtype, **ALL_PARTS)
    ours = outcome(mixture_nll, case, dtype)
    wide = {"loss", "nll", "log_prior", *OTHER}
    assert {name: value.dtype for name, value in ours.items()} == {
        name: torch.float32 if name in wide else dtype for name in ("loss", "nll", *case.learned)
    }


@on_both_kernels
@pytest.mark.parametrize("dtype, num_tokens", [(torch.bfloat16, 1000), (torch.float16, 3000)])
def test_contributions_of_many_small_chunks_add_up(dtype, num_tokens):
    """Each token adds 1/2; sums in 16 bits would stop to grow at 128 in bfloat16 and at 1,024 in float16."""
    weight, bias = torch.zeros(2, 1, dtype=dtype, requires_grad=True), torch.zeros(2, dtype=dtype, requires_grad=True)
    latents, target = torch.ones(num_tokens, 1, 1, dtype=dtype), torch.zeros(num_tokens, dtype=torch.long)
    loss = mixture_nll(latents, torch.zeros(num_tokens, 1), weight, target, bias=bias, chunk_size=1).loss
    expected = torch.tensor([-num_tokens / 2, num_tokens / 2])
    for gradient in torch.autograd.grad(loss, [weight, bias]):
        torch.testing.assert_close(gradient.flatten().float(), expected, rtol=torch.finfo(dtype).eps, atol=0)


@sixteen_bits
def test_autocast_takes_its_products_in_sixteen_bits_and_leaves_float64_alone(dtype):
    case = draw(*SIZES[3])
    latents, log_prior, weight = case.latents.float(), case.log_prior.float(), case.weight.float().requires_grad_()
    rounded = mixture_nll(latents.to(dtype), log_prior, weight.to(dtype), case.target)
    assert not torch.equal(mixture_nll(latents, log_prior, weight, case.target).nll, rounded.nll)
    for given in (latents, latents.to(dtype)):
        with torch.autocast("cpu", dtype):
            loss, nll = mixture_nll(given.requires_grad_(), log_prior, weight, case.target)
        d_latents, d_weight = torch.autograd.grad(loss, [given, weight])
        assert torch.equal(nll, rounded.nll) and loss.dtype == d_weight.dtype == torch.float32
        assert d_latents.dtype == given.dtype
    expected, ours = outcome(mixture_nll, case), outcome(under_autocast(dtype, mixture_nll), case)
    assert all(torch.equal(ours[name], value) for name, value in expected.items())


# float16


@on_both_kernels
@pytest.mark.parametrize("token_weight, latent, weight", [(1, 1, 0), (16, 1, 0), (1, 16, 0), (1, 1, 16)])
@pytest.mark.parametrize("num_tokens, chunk_size", [(300, 1), (4000, None)])
def test_float16_gradients_of_a_frequent_word_are_finite(num_tokens, chunk_size, token_weight, latent, weight):
    """float16 ends at 65,504. These gradients stay below it, so what is formed on the way must stay below it, too."""
    case = draw(1, 50, num_tokens, 1)
    case.latents.fill_(latent)
    case.bias.zero_()
    case.weight[:25], case.weight[25:] = -weight, weight
    case.target.fill_(7)
    case.token_weights.fill_(token_weight)
    assert_finite_in_float16(case, outcome(formula, case), BASE, chunk_size)


@on_both_kernels
@pytest.mark.parametrize("num_experts, chunk_size", [(1, None), (3, 1)])
@pytest.mark.parametrize("feature, logit", [(1, 256), (16, 32), (1 / 16, 2048)])
def test_float16_gradients_of_a_gate_on_large_logits_are_finite(feature, logit, num_experts, chunk_size):
    """A gate's sigmoid is a half here, so its slope is a quarter.

    The gradient by a score is a quarter of the logit times the gradient by the logit. Some of the latter are one.
    """
    case = draw(num_experts, 50, 60, 1, gate_width=1)
    for x in (case.weight, case.gate_weight, case.gate_bias):
        x.zero_()
    case.bias[:25], case.bias[25:] = -logit, logit
    case.gate_features.fill_(feature)
    case.target.fill_(7)
    case.token_weights.fill_(1)
    exact = outcome(plain, case)  # in float64, where the probability of a word may underflow: e^-2048
    assert_finite_in_float16(case, exact, GATE, chunk_size)


def assert_finite_in_float16(case, exact, names, chunk_size):
    ours = outcome(mixture_nll, case, torch.float16, chunk_size=chunk_size)
    for name in names:
        assert exact[name].abs().max() < torch.finfo(torch.float16).max and ours[name].isfinite().all(), name
        # a rounding each of p - 1, of the product and of the result
        rounding = 3 * torch.finfo(torch.float16).eps * exact[name].abs().max()
        torch.testing.assert_close(ours[name].double(), exact[name], rtol=0, atol=rounding.item() + EPS)


# chunks in bfloat16

MAX_GRADIENT_ERROR = 0.01
MAX_LOSS_BIAS = 1e-4
NUM_TOKENS = 1000

narrow_nll = partial(mixture_nll, chunk_dtype=torch.bfloat16)


def assert_safe(case, **options):
    case.token_weights.fill_(1)
    ours = outcome(narrow_nll, case, torch.float32, **options)
    exact = outcome(formula, case, **options)
    of_the_mixture = (
        exact["loss"]
        if case.log_other is None
        else call(formula, case, case.leaves(torch.float64), interpolation=None, **options).loss
    )
    assert abs(ours["loss"].double() - exact["loss"]) < MAX_LOSS_BIAS * of_the_mixture
    for name in case.learned:
        error = (ours[name].double() - exact[name]).norm() / exact[name].norm()
        assert error < MAX_GRADIENT_ERROR, name
        assert ours[name].dtype == torch.float32


@on_both_kernels
@pytest.mark.parametrize(
    "num_experts, scale, parts, options",
    [
        (1, 1, {}, SMOOTHED),
        (3, 1, dict(gate_width=6), SMOOTHED),
        (3, 3, {}, dict(adversarial_epsilon=0.005, **SMOOTHED)),
        (3, 3, dict(gate_width=6), dict(adversarial_epsilon=0.1, **SMOOTHED)),
        (1, 3, dict(interpolated=True), MARGINS),
        (3, 3, dict(interpolated=True), SMOOTHED),
    ],
)
def test_random_weights(num_experts, scale, parts, options):
    assert_safe(draw(num_experts, 1000, NUM_TOKENS, 64, scale=scale, **parts), **options)


@on_both_kernels
def test_trained_weights():
    """Trained on one text, on another of the same language."""
    truth = draw(3, 1000, 2 * NUM_TOKENS, 64, scale=3)
    probs = (torch.softmax(truth.latents @ truth.weight.T, -1) * truth.log_prior.exp().unsqueeze(-1)).sum(-2)
    target = torch.multinomial(probs, 1).squeeze(1)
    weights = [torch.zeros_like(x, dtype=torch.float32).requires_grad_() for x in (truth.weight, truth.bias)]
    optimiser = torch.optim.Adam(weights, lr=0.02)
    losses = []
    for _ in range(50):
        seen = truth.latents[:NUM_TOKENS].float(), truth.log_prior[:NUM_TOKENS].float()
        loss = mixture_nll(*seen, weights[0], target[:NUM_TOKENS], bias=weights[1]).loss / NUM_TOKENS
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    case = draw(3, 1000, NUM_TOKENS, 64)
    unseen = slice(NUM_TOKENS, None)
    case.latents, case.log_prior, case.target = truth.latents[unseen], truth.log_prior[unseen], target[unseen]
    case.weight, case.bias = (weight.detach().double() for weight in weights)
    assert_safe(case)


@on_both_kernels
@pytest.mark.parametrize("scale, num_experts", [(80.0, 1), (300.0, 3), (3e38, 1), (3e38, 3)])
def test_logits_beyond_the_exponential_are_scored_all_the_same(scale, num_experts):
    """e^z would be infinite, or zero for all words of a row."""
    latents, weight = torch.zeros(6, num_experts, 2), torch.zeros(11, 2)
    log_prior, target = torch.full((6, num_experts), 1 / num_experts).log(), torch.arange(6)
    for sign in (1, -1):
        bias = torch.full((11,), sign * scale).requires_grad_()
        loss, nll = narrow_nll(latents, log_prior, weight, target, bias=bias)
        torch.testing.assert_close(nll, torch.full((6,), 11.0).log(), rtol=0.01, atol=0)
        assert torch.autograd.grad(loss, bias)[0].isfinite().all()


@pytest.mark.parametrize("size, num_looks", [(1.0, 0), (-60.0, 0), (-200.0, 1)])
def test_exponentials_beyond_the_numbers_are_seen(size, num_looks, monkeypatch):
    """Centred on the targets' row, the third word's logit is -2 ``size``."""
    looks = []
    softmax = torch.softmax
    monkeypatch.setattr(torch, "softmax", lambda *args, **kwargs: looks.append(args) or softmax(*args, **kwargs))
    weight = torch.tensor([[1.0], [1.0], [-1.0]])
    narrow_nll(torch.full((2, 1, 1), size / 2), torch.zeros(2, 1), weight, torch.tensor([0, 1]))
    assert len(looks) == num_looks


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_tensors_of_any_type_have_gradients_of_their_own(dtype):
    case = draw(3, 50, 20, 8, dtype=torch.float16)
    ours, exact = outcome(narrow_nll, case, dtype), outcome(formula, case)
    for name in case.learned:
        assert ours[name].dtype == (torch.promote_types(dtype, torch.float32) if name == "log_prior" else dtype)
        assert_near(ours[name], exact[name])


def test_a_chunk_takes_half_the_memory():
    case = draw(3, 5000, 60, 4)
    leaves = case.leaves(torch.float32)
    largest = []
    for function in (mixture_nll, narrow_nll):
        with TensorSizes() as sizes:
            call(function, case, leaves, chunk_size=20)
        largest.append(sizes.largest_bytes)
    assert largest == [20 * 3 * 5000 * 4, 20 * 3 * 5000 * 2]
