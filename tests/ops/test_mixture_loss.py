"""The loss of a mixture: values, gradients, ignored tokens, scores and memory.

Sizes are numbers of experts, words and tokens, and the width of the experts' hidden states.
"""

from collections import Counter

import pytest
import torch
from mixture_cases import (
    ALL_PARTS,
    BASE,
    GATE,
    OTHER,
    SIZES,
    SMOOTHED,
    assert_same,
    call,
    draw,
    formula,
    on_both_kernels,
    outcome,
    plain,
    smoothed_or_not,
)
from operations import TensorSizes
from plain_formulas import mixture_loss

from fairseq_plugins.ops import kernels, logit_gate, mixture_chunk
from fairseq_plugins.ops import mixture_loss as mixture_loss_module
from fairseq_plugins.ops.adversarial_margin import adversarial_margins
from fairseq_plugins.ops.logit_gate import LogitGate
from fairseq_plugins.ops.mixture_loss import mixture_nll

SMALL, MANY = (3, 11, 10, 5), (3, 11, 20, 5)

LOWERED = dict(adversarial_epsilon=0.3)
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
    [*((sizes, 1, None) for sizes in SIZES), (SIZES[0], 10, 50), (SIZES[1], 10, 7), (MANY, 1, 1)],
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
def test_without_a_token_that_counts_everything_is_zero():
    case = draw(*SMALL, **ALL_PARTS)
    leaves = case.leaves(torch.float32)
    case.target.fill_(-100)
    case.token_weights = torch.zeros(10)
    loss, nll = call(mixture_nll, case, leaves, **SMOOTHED)
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


def test_float16_is_not_scaled_by_a_token_that_is_ignored():
    case = draw(*SMALL, dtype=torch.float16, **ALL_PARTS)
    case.latents[case.token_weights == 0] = torch.nan
    assert all(found.isfinite().all() for found in outcome(mixture_nll, case, torch.float16).values())


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
        options = dict(bias=bias, token_weights=case.target.ne(3), chunk_dtype=chunk_dtype)
        assert call(mixture_nll, case, leaves, **options).loss.isfinite()


@pytest.mark.parametrize("value", [-1, 7, 10**12])
def test_a_target_that_is_no_word_is_refused_where_it_is_not_ignored(value):
    latents, log_prior, weight = torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 4), torch.zeros(7, 5)
    target = torch.tensor([[0, 6, 3], [1, value, 2]])
    for token_weights in (torch.ones(2, 3), None):
        with pytest.raises(ValueError, match=rf"mixture_nll: target .*\[{value}\]"):
            mixture_nll(latents, log_prior, weight, target, token_weights=token_weights)
    loss, nll = mixture_nll(latents, log_prior, weight, target, token_weights=target.ne(value))
    assert loss.isfinite() and nll[1, 1] == 0 and nll.count_nonzero() == 5


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


def test_latents_too_short_to_measure_have_no_margin():
    latents, weight = torch.full((1, 1, 4), 1e-30), torch.full((2, 4), 1e20)
    margins = adversarial_margins(latents, weight, torch.tensor([1]), epsilon=0.1)
    assert margins.values.item() == margins.slopes.item() == 0


def test_margins_of_narrow_latents_are_wide():
    latents, weight = 300 * torch.ones(2, 3, 4, dtype=torch.float16), 300 * torch.ones(5, 4, dtype=torch.float16)
    margins = adversarial_margins(latents, weight, torch.tensor([0, 4]), epsilon=0.1)
    torch.testing.assert_close(margins.values, torch.full((2, 3), 36_000.0))


def test_a_target_whose_probability_underflows_is_lowered_all_the_same():
    latents, weight = torch.tensor([[[20.0]]]), torch.tensor([[1.0], [30.0]])
    nll = mixture_nll(latents, torch.zeros(1, 1), weight, torch.tensor([0]), adversarial_epsilon=0.5).nll
    torch.testing.assert_close(nll, torch.tensor([600.0 - 10.0]), rtol=1e-6, atol=0)


@on_both_kernels
@pytest.mark.parametrize("epsilon, dtype", [(0.0, torch.float16), (0.3, torch.bfloat16), (0.3, torch.float16)])
def test_interpolated_gradients_in_16_bits_are_those_of_the_formula_up_to_rounding(epsilon, dtype):
    case = draw(3, 11, 20, 8, dtype=dtype, interpolated=True)
    ours = outcome(mixture_nll, case, dtype, adversarial_epsilon=epsilon)
    expected = outcome(formula, case, adversarial_epsilon=epsilon)
    for name in case.learned:
        bound = 0.02 * float(expected[name].abs().max())
        torch.testing.assert_close(ours[name].double(), expected[name], rtol=0, atol=bound)
