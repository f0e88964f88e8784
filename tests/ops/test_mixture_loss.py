"""The loss of a mixture: its values and gradients, the tokens that it ignores, and scoring token by token."""

import math
from collections import Counter
from functools import partial

import pytest
import torch
from mixture_cases import BASE, GATE, assert_same, call, draw, formula, gated_or_not, outcome, plain, smoothed_or_not
from nearness import assert_near
from plain_formulas import mixture, mixture_loss, mixture_nll_gradients
from rounding_errors import EPS, rms_errors, under_autocast
from tensor_sizes import TensorSizes

from fairseq_plugins.ops import logit_gate, mixture_chunk
from fairseq_plugins.ops import mixture_loss as mixture_loss_module
from fairseq_plugins.ops.logit_gate import Interpolation, LogitGate
from fairseq_plugins.ops.mixture_distribution import mixture_log_probs_from_latents
from fairseq_plugins.ops.mixture_loss import (
    CPU_CHUNK_BYTES,
    MIN_CHUNK_ROWS,
    default_chunk_size,
    even_chunk_size,
    float16_scale,
    iter_chunks,
    logit_bound,
    mixture_nll,
)

SHAPES = [  # experts, vocabulary, tokens, width
    (1, 50, 40, 8),
    (1, 507, 123, 20),
    (3, 252, 60, 7),
    (20, 123, 50, 12),
    (3, 1, 10, 4),
    (4, 30, 1, 5),
    (1, 1, 1, 1),
]
SMALL = (3, 11, 10, 5)

# values and gradients


@gated_or_not
@smoothed_or_not
@pytest.mark.parametrize("scale", [1, 10])
@pytest.mark.parametrize("shape", SHAPES)
def test_loss_and_gradients_are_those_of_the_formula(shape, scale, smoothing, gate_width):
    case = draw(*shape, scale=scale, gate_width=gate_width)
    expected = outcome(formula, case, label_smoothing=smoothing)
    assert_same(outcome(mixture_nll, case, label_smoothing=smoothing), expected)


@smoothed_or_not
@pytest.mark.parametrize("with_weights", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_bias_and_token_weights_can_be_left_out(with_bias, with_weights, smoothing):
    case = draw(*SMALL)
    case.bias = case.bias if with_bias else torch.zeros_like(case.bias)
    case.token_weights = case.token_weights if with_weights else torch.ones_like(case.token_weights)
    leaves, expected = case.leaves(torch.float64), outcome(formula, case, label_smoothing=smoothing)
    given = {"token_weights": case.token_weights} if with_weights else {}
    names = BASE if with_bias else BASE[:-1]
    args = [leaves[name] for name in BASE[:-1]]
    given.update({"bias": leaves["bias"]} if with_bias else {})
    loss, nll = mixture_nll(*args, case.target, label_smoothing=smoothing, **given)
    gradients = torch.autograd.grad(loss, [leaves[name] for name in names])
    ours = {"loss": loss.detach(), "nll": nll, **dict(zip(names, gradients))}
    assert_same(ours, {name: expected[name] for name in ours})


@pytest.mark.parametrize("scale", [1, 10])
@pytest.mark.parametrize("num_experts, vocab_size", [(3, 252), (20, 50), (1, 123)])
def test_gradients_by_logits_and_prior_are_those_of_the_papers(num_experts, vocab_size, scale):
    logits = (scale * torch.randn(9, num_experts, vocab_size, dtype=torch.float64)).requires_grad_()
    log_prior = torch.log_softmax(torch.randn(9, num_experts, dtype=torch.float64), -1).requires_grad_()
    target = torch.randint(vocab_size, (9,))
    loss, nll = mixture_nll(logits, log_prior, torch.eye(vocab_size, dtype=torch.float64), target)
    d_logits, d_log_prior = torch.autograd.grad(loss, [logits, log_prior])
    expected = mixture_nll_gradients(logits.detach(), log_prior.detach().exp(), target)
    probs = mixture(logits, log_prior.exp()).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(nll, -probs.detach().log(), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close((d_logits, d_log_prior), expected, rtol=1e-9, atol=1e-12)


@smoothed_or_not
@gated_or_not
def test_gradcheck(gate_width, smoothing):
    case = draw(3, 7, 5, 4, gate_width=gate_width)
    case.target[0] = -1
    options = dict(ignore_index=-1, label_smoothing=smoothing, chunk_size=2)

    def loss(*inputs):
        leaves = dict(zip(case.learned, inputs))
        leaves["log_prior"] = torch.log_softmax(leaves["log_prior"], -1)
        return call(mixture_nll, case, leaves, **options).loss

    assert torch.autograd.gradcheck(loss, tuple(case.leaves(torch.float64).values()))


@smoothed_or_not
def test_a_matrix_that_is_also_the_embedding_gets_both_gradients(smoothing):
    weight = torch.randn(11, 5, dtype=torch.float64, requires_grad=True)
    log_prior = torch.log_softmax(torch.randn(8, 2, dtype=torch.float64), -1)
    tokens, target = torch.randint(11, (2, 8))
    latents = torch.stack([torch.tanh(weight[tokens]), weight[tokens]], dim=1)
    loss = mixture_nll(latents, log_prior, weight, target, label_smoothing=smoothing, chunk_size=3).loss
    expected = mixture_loss(latents, log_prior.exp(), weight, torch.zeros(11).double(), target, smoothing)[0].sum()
    ours, theirs = [torch.autograd.grad(value, weight, retain_graph=True) for value in (loss, expected)]
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@gated_or_not
@smoothed_or_not
@pytest.mark.parametrize("chunk_size", [1, 2, 3, 7, 20, 50])
def test_the_chunk_is_no_part_of_the_result(chunk_size, smoothing, gate_width):
    case = draw(3, 11, 20, 5, gate_width=gate_width)
    expected = outcome(formula, case, label_smoothing=smoothing)
    assert_same(outcome(mixture_nll, case, label_smoothing=smoothing, chunk_size=chunk_size), expected)


@gated_or_not
@pytest.mark.parametrize("leading", [(), (4,), (2, 3), (2, 3, 2)])
def test_any_number_of_leading_dimensions(leading, gate_width):
    latents, log_prior = torch.randn(*leading, 3, 5), torch.log_softmax(torch.randn(*leading, 3), -1)
    weight, target = torch.randn(7, 5), torch.randint(7, leading)
    gate = None
    if gate_width is not None:
        gate = LogitGate(torch.randn(*leading, gate_width), torch.randn(7, gate_width), torch.randn(7))
    leaves = [latents.requires_grad_(), *([] if gate is None else [gate.features.requires_grad_()])]
    loss, nll = mixture_nll(latents, log_prior, weight, target, gate=gate)
    expected = mixture_loss(latents, log_prior.exp(), weight, torch.zeros(7), target, gate=gate)[1]
    assert loss.shape == () and nll.shape == leading
    torch.testing.assert_close(nll, expected, rtol=1e-5, atol=1e-5)
    assert [g.shape for g in torch.autograd.grad(loss, leaves)] == [leaf.shape for leaf in leaves]


@smoothed_or_not
@gated_or_not
def test_experts_that_are_ruled_out_take_no_part(gate_width, smoothing):
    case = draw(4, 11, 6, 5, gate_width=gate_width)
    case.token_weights.fill_(1)
    scores = torch.randn(6, 4, dtype=torch.float64)
    scores[:, 1] = scores[3, 0] = scores[4, 2:] = -torch.inf
    results = []
    for function in (mixture_nll, formula):
        leaves = {**case.leaves(torch.float64), "log_prior": scores.clone().requires_grad_()}
        inputs = {**leaves, "log_prior": torch.log_softmax(leaves["log_prior"], dim=-1)}
        loss, nll = call(function, case, inputs, label_smoothing=smoothing)
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        results.append({"loss": loss.detach(), "nll": nll, **dict(zip(leaves, gradients))})
    ours, expected = results
    assert all(value.isfinite().all() for value in ours.values())
    assert not ours["latents"][:, 1].any() and not ours["log_prior"][:, 1].any()
    assert_same(ours, expected)


def test_the_nll_has_neither_smoothing_nor_weight_nor_gradient():
    case = draw(*SMALL)
    leaves = case.leaves(torch.float64)
    nll = call(mixture_nll, case, leaves, label_smoothing=0.3, token_weights=7 * torch.ones(10)).nll
    expected = mixture_loss(case.latents, case.log_prior.exp(), case.weight, case.bias, case.target)[1]
    torch.testing.assert_close(nll, expected, rtol=1e-11, atol=1e-11)
    assert not nll.requires_grad


# ignored tokens


@gated_or_not
@pytest.mark.parametrize("how", ["token_weights", "ignore_index", "both"])
@smoothed_or_not
def test_without_a_token_that_counts_everything_is_zero(how, smoothing, gate_width):
    case = draw(*SMALL, gate_width=gate_width)
    leaves = case.leaves(torch.float32)
    if how != "token_weights":
        case.target.fill_(-100)
    case.token_weights = torch.zeros(10) if how != "ignore_index" else torch.ones(10)
    ignore_index = -100 if how != "token_weights" else None
    loss, nll = call(mixture_nll, case, leaves, label_smoothing=smoothing, ignore_index=ignore_index)
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    assert loss.item() == 0.0 and not nll.any()
    assert all(torch.equal(g, torch.zeros_like(leaf)) for g, leaf in zip(gradients, leaves.values()))


@smoothed_or_not
@gated_or_not
@pytest.mark.parametrize("leading", [(0,), (0, 5), (3, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_without_a_token_everything_is_zero(dtype, leading, gate_width, smoothing):
    weight = torch.randn(7, 5).to(dtype).requires_grad_()
    latents, log_prior = torch.randn(*leading, 2, 5).to(dtype).requires_grad_(), torch.zeros(*leading, 2)
    gate = None
    if gate_width is not None:
        tensors = torch.randn(*leading, gate_width), torch.randn(7, gate_width), torch.randn(7)
        gate = LogitGate(*(x.to(dtype).requires_grad_() for x in tensors))
    target = torch.zeros(leading, dtype=torch.long)
    loss, nll = mixture_nll(latents, log_prior, weight, target, gate=gate, label_smoothing=smoothing)
    leaves = [latents, weight, *(gate or [])]
    gradients = torch.autograd.grad(loss, leaves)
    assert loss.item() == 0.0 and nll.shape == leading
    assert [g.shape for g in gradients] == [leaf.shape for leaf in leaves] and not any(g.any() for g in gradients)


@gated_or_not
@pytest.mark.parametrize("ignored", [-100, 3, 10**6])
def test_a_token_with_the_ignored_index_is_one_of_weight_zero(ignored, gate_width):
    case = draw(*SMALL, gate_width=gate_width)
    case.target[[0, 3, 8]] = 3
    weightless = case.token_weights.masked_fill(case.target.eq(3), 0)
    results = []
    for target, options in (
        (case.target, {"token_weights": weightless}),
        (case.target.masked_fill(case.target.eq(3), ignored), {"ignore_index": ignored}),
    ):
        leaves, case.target = case.leaves(torch.float64), target
        loss, nll = call(mixture_nll, case, leaves, label_smoothing=0.1, **options)
        results.append([loss.detach(), nll, *torch.autograd.grad(loss, list(leaves.values()))])
    assert results[0][1][case.target.eq(ignored)].eq(0).all() and results[0][0] > 0
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-14)


@gated_or_not
@smoothed_or_not
def test_nothing_is_read_of_a_token_that_is_ignored(smoothing, gate_width):
    case = draw(*SMALL, gate_width=gate_width)
    expected = outcome(mixture_nll, case, label_smoothing=smoothing)
    ignored = case.token_weights == 0
    case.latents[ignored], case.log_prior[ignored] = torch.nan, torch.inf
    if gate_width is not None:
        case.gate_features[ignored] = torch.nan
    case.target[ignored] = 10**9
    assert ignored.any() and not ignored.all()
    assert_same(outcome(mixture_nll, case, label_smoothing=smoothing), expected)


@pytest.mark.parametrize("weights", [[1, 0, 1, 0], [2, 0, 3, 1]])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float16, torch.float64])
def test_token_weights_of_any_type(weights, dtype):
    weights = torch.tensor(weights).to(dtype)
    latents, log_prior = torch.randn(4, 2, 5), torch.log_softmax(torch.randn(4, 2), -1)
    loss, nll = mixture_nll(latents, log_prior, torch.randn(7, 5), torch.arange(4), token_weights=weights)
    torch.testing.assert_close(loss, (weights.float() * nll).sum(), rtol=1e-6, atol=0)
    assert torch.equal(nll != 0, weights != 0)


# scoring without reduction


@smoothed_or_not
@gated_or_not
def test_without_reduction_each_token_has_its_weighted_loss(gate_width, smoothing):
    case = draw(*SMALL, gate_width=gate_width)
    inputs = {name: getattr(case, name) for name in case.learned}
    options = dict(label_smoothing=smoothing, chunk_size=4)
    loss, nll = call(mixture_nll, case, inputs, reduction="none", **options)
    gate = [inputs[name] for name in GATE] if gate_width else None
    expected, expected_nll = mixture_loss(
        case.latents, case.log_prior.exp(), case.weight, case.bias, case.target, smoothing, gate
    )
    torch.testing.assert_close(loss, expected * case.token_weights, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(nll, expected_nll.masked_fill(case.token_weights == 0, 0), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(loss.sum(), call(mixture_nll, case, inputs, **options).loss, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", BASE + GATE)
def test_without_reduction_a_gradient_is_refused(name):
    case = draw(*SMALL, gate_width=3)
    leaves = {key: leaf.requires_grad_(key == name) for key, leaf in case.leaves(torch.float64).items()}
    argument = name.replace("gate_", "gate.")
    with pytest.raises(ValueError, match=f'reduction="none" gives no gradient for {argument}: '):
        call(mixture_nll, case, leaves, reduction="none")
    with torch.no_grad():
        assert call(mixture_nll, case, leaves, reduction="none").loss.shape == (10,)


@smoothed_or_not
@gated_or_not
@pytest.mark.parametrize("learned", [BASE[:1], BASE[1:2], BASE[2:3], BASE[3:], BASE[1:3], BASE[::3]])
def test_only_what_learns_gets_a_gradient(learned, gate_width, smoothing):
    check_gradients(draw(*SMALL, gate_width=gate_width), learned, smoothing)


@smoothed_or_not
@pytest.mark.parametrize("num_experts", [1, 3])
@pytest.mark.parametrize("learned", [GATE, GATE[:1], GATE[1:2], GATE[2:], (BASE[0], GATE[1]), (BASE[1], GATE[0])])
def test_only_what_learns_of_a_gate_gets_a_gradient(learned, num_experts, smoothing):
    check_gradients(draw(num_experts, *SMALL[1:], gate_width=6), learned, smoothing)


def check_gradients(case, learned, smoothing):
    leaves, expected = case.leaves(torch.float64), outcome(formula, case, label_smoothing=smoothing)
    for name in set(case.learned) - set(learned):
        leaves[name].requires_grad_(False)
    call(mixture_nll, case, leaves, label_smoothing=smoothing, chunk_size=4).loss.backward()
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

    for name in ("matmul", "add_matmul"):
        count(mixture_loss_module, name, "product")
    count(logit_gate, "project", "product")
    for module in (mixture_loss_module, logit_gate):
        count(module, "multiply_by_gate", "gating")
    case = draw(*SMALL, gate_width=6)
    leaves = {name: leaf.requires_grad_(name in learned) for name, leaf in case.leaves(torch.float64).items()}
    call(mixture_nll, case, leaves, chunk_size=10)
    assert calls == {"product": num_products, "gating": num_gatings}


@gated_or_not
def test_where_nothing_learns_there_is_no_graph(gate_width):
    case = draw(*SMALL, gate_width=gate_width)
    leaves = case.leaves(torch.float64)
    with torch.no_grad():
        scored = call(mixture_nll, case, leaves)
    frozen = call(mixture_nll, case, {name: leaf.detach() for name, leaf in leaves.items()})
    assert not scored.loss.requires_grad and not frozen.loss.requires_grad
    assert torch.equal(scored.loss, call(mixture_nll, case, leaves).loss) and torch.equal(scored.nll, frozen.nll)


@gated_or_not
def test_a_graph_that_is_kept_gives_the_same_gradients_again(gate_width):
    case = draw(*SMALL, gate_width=gate_width)
    leaves, expected = case.leaves(torch.float64), outcome(mixture_nll, case)
    loss, params = call(mixture_nll, case, leaves).loss, list(leaves.values())
    first = [g.clone() for g in torch.autograd.grad(loss, params, retain_graph=True)]
    torch.autograd.grad(3 * loss, params, retain_graph=True)
    second = torch.autograd.grad(loss, params)
    for gradients in (first, second):
        assert all(torch.equal(g, expected[name]) for g, name in zip(gradients, leaves))


@gated_or_not
def test_a_graph_that_is_not_kept_can_be_used_once(gate_width):
    case = draw(*SMALL, gate_width=gate_width)
    loss = call(mixture_nll, case, case.leaves(torch.float64)).loss
    loss.backward()
    with pytest.raises(RuntimeError, match="retain_graph"):
        loss.backward()


@gated_or_not
@pytest.mark.parametrize("factor", [0.0, 1.0, -0.5, 3.0, 2.0**16])
def test_the_incoming_gradient_scales_all_gradients(factor, gate_width):
    case = draw(*SMALL, gate_width=gate_width)
    leaves, expected = case.leaves(torch.float64), outcome(formula, case)
    gradients = torch.autograd.grad(factor * call(mixture_nll, case, leaves).loss, list(leaves.values()))
    assert_same(dict(zip(leaves, gradients)), {name: factor * expected[name] for name in leaves}, atol=1e-10)


@gated_or_not
def test_gradients_add_up_over_calls(gate_width):
    case = draw(*SMALL, gate_width=gate_width)
    leaves, expected = case.leaves(torch.float64), outcome(formula, case)
    for _ in range(2):
        call(mixture_nll, case, leaves).loss.backward()
    (call(mixture_nll, case, leaves).loss + call(mixture_nll, case, leaves).loss).backward()
    assert_same({name: leaf.grad for name, leaf in leaves.items()}, {name: 4 * expected[name] for name in leaves})


@gated_or_not
def test_inputs_need_not_be_contiguous(gate_width):
    case = draw(4, 11, 12, 4, gate_width=gate_width)
    expected = outcome(formula, case)
    leaves = {name: rearranged(getattr(case, name)).requires_grad_() for name in case.learned}
    case.target, case.token_weights = rearranged(case.target), rearranged(case.token_weights)
    assert not any(x.is_contiguous() for x in [*leaves.values(), case.target, case.token_weights])
    loss, nll = call(mixture_nll, case, leaves, chunk_size=5)
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    assert_same({"loss": loss.detach(), "nll": nll, **dict(zip(leaves, gradients))}, expected)


def rearranged(x):
    """x with its first dimension last in memory; a vector with every second element of a longer one."""
    return torch.stack([x, x], dim=1)[:, 0] if x.dim() == 1 else x.transpose(0, -1).contiguous().transpose(0, -1)


@gated_or_not
def test_inputs_may_be_expanded(gate_width):
    case = draw(*SMALL, gate_width=gate_width)
    per_token = [name for name in ("latents", "log_prior", "gate_features") if name in case.learned]
    for name in per_token:
        setattr(case, name, getattr(case, name)[:1])
    results = []
    for function in (mixture_nll, formula):
        leaves = case.leaves(torch.float64)
        inputs = {**leaves, "bias": leaves["bias"][:1].expand(11)}
        inputs.update({name: leaves[name].expand(10, *leaves[name].shape[1:]) for name in per_token})
        loss, _ = call(function, case, inputs, token_weights=torch.ones(()).expand(10))
        results.append(torch.autograd.grad(loss, list(leaves.values())))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


@gated_or_not
def test_the_inputs_are_left_as_they_are(gate_width):
    case = draw(*SMALL, gate_width=gate_width)
    leaves = case.leaves(torch.float32)
    call(mixture_nll, case, leaves, label_smoothing=0.1, chunk_size=4).loss.backward()
    assert all(torch.equal(leaf.double(), getattr(case, name)) for name, leaf in leaves.items())


@gated_or_not
def test_a_second_derivative_is_refused(gate_width):
    case = draw(*SMALL, gate_width=gate_width)
    leaves = case.leaves(torch.float64)
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad(call(mixture_nll, case, leaves).loss, leaves["latents"], create_graph=True)


# memory


def sizes_of(function, num_tokens, dtype, *, gate_width=None, **options):
    case = draw(3, 997, num_tokens, 8, gate_width=gate_width)
    with TensorSizes() as sizes:
        outcome(function, case, dtype, **options)
    return sizes


@smoothed_or_not
@gated_or_not
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_tokens", [20, 60, 240])
def test_no_tensor_is_larger_than_a_chunk_of_logits(num_tokens, dtype, gate_width, smoothing):
    chunk_logits, weight, latents = 4 * 3 * 997, 997 * 8, num_tokens * 3 * 8
    options = dict(gate_width=gate_width, label_smoothing=smoothing)
    fused = sizes_of(mixture_nll, num_tokens, dtype, chunk_size=4, **options)
    assert fused.largest <= max(chunk_logits, weight, latents) < num_tokens * 997
    assert sizes_of(plain, num_tokens, dtype, **options).largest >= num_tokens * 3 * 997


@smoothed_or_not
@gated_or_not
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_does_not_grow_with_tokens_times_vocabulary(dtype, gate_width, smoothing):
    options = dict(gate_width=gate_width, label_smoothing=smoothing)
    few, many = [sizes_of(mixture_nll, n, dtype, chunk_size=4, **options).peak for n in (60, 240)]
    row = 3 * 8 + (gate_width or 0)
    assert (many - few) / 180 < 5 * row  # a few copies of latents and features, where one word each would be 997
    few, many = [sizes_of(plain, n, dtype, **options).peak for n in (60, 240)]
    assert (many - few) / 180 > 3 * 997


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_experts", [1, 8])
@pytest.mark.parametrize("learned", [BASE, GATE, BASE + GATE])
def test_a_gate_holds_a_second_chunk_only_while_it_learns(learned, num_experts, dtype):
    chunk_size, vocab_size = 48 // num_experts, 5000
    case = draw(num_experts, vocab_size, 2 * chunk_size, 2, gate_width=2)
    leaves = {name: leaf.requires_grad_(name in learned) for name, leaf in case.leaves(dtype).items()}
    with TensorSizes() as sizes:
        call(mixture_nll, case, leaves, chunk_size=chunk_size)
    # a 16-bit product, and the 16-bit operand of the base's gradients, have as many elements as a chunk
    num_chunks = 1 + 1 / num_experts + (GATE[0] in learned)
    rounded = 1 if dtype == torch.bfloat16 and BASE[0] in learned else 0
    assert num_chunks <= sizes.peak / (48 * vocab_size) < num_chunks + rounded + 0.4


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_scoring_forms_no_gradient(reduction, monkeypatch):
    formed = []
    backward = mixture_chunk.MixtureChunk.backward
    monkeypatch.setattr(mixture_chunk.MixtureChunk, "backward", lambda *args: formed.append(args) or backward(*args))
    case = draw(*SMALL)
    leaves = case.leaves(torch.float32)
    with torch.no_grad():
        call(mixture_nll, case, leaves, reduction=reduction)
    assert not formed
    call(mixture_nll, case, leaves)
    assert formed


def test_smoothing_the_labels_of_one_softmax_needs_no_second_chunk():
    case = draw(1, 5000, 32, 2)
    with TensorSizes() as sizes:
        outcome(mixture_nll, case, torch.float32, label_smoothing=0.1, chunk_size=16)
    assert 16 * 5000 <= sizes.peak < 1.6 * 16 * 5000


# label smoothing


@pytest.mark.parametrize("frozen", [("weight",), ("latents",), ("bias",), ("weight", "bias")])
def test_the_means_of_logits_learn_where_their_parts_do(frozen):
    case = draw(3, 17, 10, 5, scale=3)
    expected, leaves = outcome(formula, case, label_smoothing=0.3), case.leaves(torch.float64)
    for name in frozen:
        leaves[name].requires_grad_(False)
    args = (leaves["latents"], leaves["log_prior"], leaves["weight"], case.target)
    options = dict(bias=leaves["bias"], token_weights=case.token_weights, label_smoothing=0.3, chunk_size=4)
    mixture_nll(*args, **options).loss.backward()
    learned = {name: leaf.grad for name, leaf in leaves.items() if name not in frozen}
    assert_same(learned, {name: expected[name] for name in learned})
    assert all(leaves[name].grad is None for name in frozen)


# adversarial margins

ADVERSARIAL_SHAPES = [  # experts, vocabulary, tokens, width
    (1, 507, 123, 20),
    (3, 252, 60, 7),
    (20, 50, 30, 12),
    (3, 1, 10, 4),
    (1, 1, 1, 1),
]
ADVERSARIAL_SMALL = (3, 11, 20, 5)

every_epsilon = pytest.mark.parametrize("epsilon", [0.005, 0.3])


@gated_or_not
@smoothed_or_not
@every_epsilon
@pytest.mark.parametrize("scale", [1, 10])
@pytest.mark.parametrize("shape", ADVERSARIAL_SHAPES)
def test_with_margins_loss_and_gradients_are_those_of_the_formula(shape, scale, epsilon, smoothing, gate_width):
    case = draw(*shape, scale=scale, gate_width=gate_width)
    options = dict(label_smoothing=smoothing, adversarial_epsilon=epsilon)
    assert_same(outcome(mixture_nll, case, **options), outcome(formula, case, **options))


@gated_or_not
@smoothed_or_not
@pytest.mark.parametrize("chunk_size", [1, 3, 7, 50])
def test_with_margins_the_chunk_is_no_part_of_the_result(chunk_size, smoothing, gate_width):
    case = draw(*ADVERSARIAL_SMALL, gate_width=gate_width)
    options = dict(label_smoothing=smoothing, adversarial_epsilon=0.1)
    assert_same(outcome(mixture_nll, case, chunk_size=chunk_size, **options), outcome(formula, case, **options))


def test_the_bias_takes_no_part_in_the_margin():
    """With it, or without it at all: margins are the same."""
    case = draw(*ADVERSARIAL_SMALL)
    leaves = case.leaves(torch.float64)
    rises = []
    for bias in (None, leaves["bias"] - 50, leaves["bias"] + 50):
        logits_of_target = [
            call(mixture_nll, case, leaves, bias=bias, adversarial_epsilon=epsilon, reduction="sum").nll
            for epsilon in (0.0, 0.1)
        ]
        rises.append(logits_of_target[1] - logits_of_target[0])
    assert (rises[0] >= 0).all() and rises[0].any()
    torch.testing.assert_close(rises[1], rises[2], rtol=1e-9, atol=1e-11)


def test_experts_that_speak_against_the_target_keep_their_logits():
    latents = torch.tensor([[[3.0, 4.0], [-3.0, -4.0]]]).double()
    weight, target = torch.tensor([[0.6, 0.8], [0.0, 0.0]]).double(), torch.tensor([0])
    for priors, logit in (([[1.0, 0.0]], 5 - 0.1 * 5), ([[0.0, 1.0]], -5.0)):
        log_prior = torch.tensor(priors).double().log()
        nll = mixture_nll(latents, log_prior, weight, target, adversarial_epsilon=0.1).nll
        assert nll.item() == pytest.approx(math.log1p(math.exp(-logit)), rel=1e-6)


@gated_or_not
@smoothed_or_not
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chunk_dtype", [None, torch.bfloat16])
def test_an_epsilon_of_zero_changes_no_bit(chunk_dtype, dtype, smoothing, gate_width, monkeypatch):
    case = draw(*ADVERSARIAL_SMALL, gate_width=gate_width, dtype=torch.bfloat16)
    options = dict(label_smoothing=smoothing, chunk_dtype=chunk_dtype)
    expected = outcome(mixture_nll, case, dtype, **options)
    monkeypatch.setattr(mixture_loss_module, "adversarial_margins", None)
    found = outcome(mixture_nll, case, dtype, adversarial_epsilon=0.0, **options)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@gated_or_not
def test_with_margins_nothing_is_read_of_a_token_that_is_ignored(gate_width):
    case = draw(*ADVERSARIAL_SMALL, gate_width=gate_width)
    expected = outcome(mixture_nll, case, adversarial_epsilon=0.1)
    ignored = case.token_weights == 0
    case.latents[ignored], case.target[ignored] = torch.nan, 10**9
    assert ignored.any() and not ignored.all()
    assert_same(outcome(mixture_nll, case, adversarial_epsilon=0.1), expected)


@every_epsilon
def test_without_reduction_each_token_has_its_loss(epsilon):
    case = draw(*ADVERSARIAL_SMALL)
    inputs = {name: getattr(case, name) for name in case.learned}
    options = dict(adversarial_epsilon=epsilon)
    losses = call(mixture_nll, case, inputs, reduction="none", **options)
    expected = call(formula, case, inputs, **options)
    torch.testing.assert_close(losses.nll, expected.nll, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(losses.loss.sum(), expected.loss, rtol=1e-11, atol=0)


@gated_or_not
@smoothed_or_not
@pytest.mark.parametrize("scale", [1, 10, 30])
@pytest.mark.parametrize("shape", [(1, 507, 123, 20), (3, 252, 60, 7)])
def test_with_margins_float32_error_is_no_larger_than_that_of_autograd(shape, scale, smoothing, gate_width):
    options = dict(scale=scale, label_smoothing=smoothing, gate_width=gate_width, adversarial_epsilon=0.05)
    ours, theirs = [rms_errors(function, shape, torch.float32, **options) for function in (mixture_nll, plain)]
    assert all(error <= 1.25 * theirs[name] + EPS for name, error in ours.items())


@gated_or_not
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_error_of_16_bits_is_no_larger_than_that_of_autograd(dtype, gate_width):
    options = dict(gate_width=gate_width, adversarial_epsilon=0.05)
    ours, theirs = [rms_errors(function, (3, 252, 60, 12), dtype, **options) for function in (mixture_nll, plain)]
    assert all(error <= 1.25 * theirs[name] + EPS for name, error in ours.items())


def test_a_target_whose_probability_underflows_is_lowered_all_the_same():
    latents, weight = torch.tensor([[[20.0]]]), torch.tensor([[1.0], [30.0]])
    nll = mixture_nll(latents, torch.zeros(1, 1), weight, torch.tensor([0]), adversarial_epsilon=0.5).nll
    torch.testing.assert_close(nll, torch.tensor([600.0 - 10.0]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("epsilon", [-0.1, 1.0, 2.0, float("nan")])
def test_an_epsilon_outside_its_range_is_refused(epsilon):
    case = draw(*ADVERSARIAL_SMALL)
    with pytest.raises(ValueError, match="mixture_nll: adversarial_epsilon is .*: 0 <= epsilon < 1"):
        call(mixture_nll, case, case.leaves(torch.float32), adversarial_epsilon=epsilon)


# chunks in bfloat16

MAX_GRADIENT_ERROR = 0.01
MAX_LOSS_BIAS = 1e-4
NUM_TOKENS = 2000

narrow_nll = partial(mixture_nll, chunk_dtype=torch.bfloat16)


def assert_safe(case, **options):
    ours = outcome(narrow_nll, case, torch.float32, **options)
    exact = outcome(formula, case, **options)
    assert abs(ours["loss"].double() / exact["loss"] - 1) < MAX_LOSS_BIAS
    for name in case.learned:
        error = (ours[name].double() - exact[name]).norm() / exact[name].norm()
        assert error < MAX_GRADIENT_ERROR, name
        assert ours[name].dtype == torch.float32


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("gate_width", [None, 6], ids=["no gate", "gated"])
@pytest.mark.parametrize("num_experts", [1, 3])
@pytest.mark.parametrize("scale", [1, 3])
def test_random_weights(scale, num_experts, gate_width, smoothing):
    case = draw(num_experts, 1000, NUM_TOKENS, 64, scale=scale, gate_width=gate_width)
    case.token_weights.fill_(1)
    assert_safe(case, label_smoothing=smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("gate_width", [None, 6], ids=["no gate", "gated"])
@pytest.mark.parametrize("num_experts", [1, 3])
@pytest.mark.parametrize("epsilon", [0.005, 0.1])
def test_adversarial_margins(epsilon, num_experts, gate_width, smoothing):
    case = draw(num_experts, 1000, NUM_TOKENS, 64, scale=3, gate_width=gate_width)
    case.token_weights.fill_(1)
    assert_safe(case, label_smoothing=smoothing, adversarial_epsilon=epsilon)


@pytest.mark.parametrize("num_experts", [1, 3])
def test_trained_weights(num_experts):
    """Trained on one text, on another of the same language."""
    truth = draw(num_experts, 1000, 2 * NUM_TOKENS, 64, scale=3)
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
    case = draw(num_experts, 1000, NUM_TOKENS, 64)
    case.latents, case.log_prior, case.target = (
        truth.latents[NUM_TOKENS:],
        truth.log_prior[NUM_TOKENS:],
        target[NUM_TOKENS:],
    )
    case.weight, case.bias = (weight.detach().double() for weight in weights)
    case.token_weights.fill_(1)
    assert_safe(case)


@pytest.mark.parametrize("num_experts", [1, 3])
@pytest.mark.parametrize("scale", [80.0, 300.0, 3e38])
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_no_other_type_is_taken(dtype):
    case = draw(3, 11, 10, 5)
    with pytest.raises(ValueError, match="chunk_dtype is torch.*choose torch.bfloat16 or None"):
        call(mixture_nll, case, case.leaves(torch.float32), chunk_dtype=dtype)


@pytest.mark.parametrize("num_experts", [1, 4])
def test_log_probs_in_bfloat16_are_near_and_in_float32(num_experts):
    latents, weight, bias = torch.randn(30, num_experts, 16), torch.randn(200, 16) / 4, torch.randn(200)
    log_prior = torch.log_softmax(torch.randn(30, num_experts), -1)
    exact = mixture_log_probs_from_latents(latents, log_prior, weight, bias)
    near = mixture_log_probs_from_latents(latents, log_prior, weight, bias, chunk_dtype=torch.bfloat16)
    assert near.dtype == torch.float32 and not torch.equal(near, exact)
    torch.testing.assert_close(near, exact, rtol=0, atol=0.08)
    torch.testing.assert_close(near.exp().sum(-1), torch.ones(30), rtol=0, atol=0.01)


@pytest.mark.parametrize("scale", [1.0, 30.0, 300.0])
def test_log_probs_in_bfloat16_of_logits_beyond_the_exponential(scale):
    latents, weight = torch.randn(40, 4, 2), torch.randn(50, 2) * scale
    log_prior = torch.log_softmax(torch.randn(40, 4), -1)
    exact = mixture_log_probs_from_latents(latents, log_prior, weight)
    near = mixture_log_probs_from_latents(latents, log_prior, weight, chunk_dtype=torch.bfloat16)
    assert near.isfinite().all()
    largest_logit = (latents.abs().flatten(0, 1) @ weight.abs().T).max()
    torch.testing.assert_close(near, exact, rtol=0, atol=0.03 + 4 * 2**-9 * largest_logit.item())


@pytest.mark.parametrize("logits", [(86.0, 87.0), (-80.0, -93.0), (-86.0, -91.0)])
def test_log_probs_in_bfloat16_of_an_expert_at_the_end_of_the_numbers(logits):
    """The other expert is near zero, so that their sum alone looks well."""
    latents, weight = torch.eye(2).unsqueeze(0), torch.zeros(8, 2)
    weight[:, 0], weight[3, 0] = logits
    log_prior = torch.full((1, 2), 0.5).log()
    exact = mixture_log_probs_from_latents(latents, log_prior, weight)
    near = mixture_log_probs_from_latents(latents, log_prior, weight, chunk_dtype=torch.bfloat16)
    torch.testing.assert_close(near, exact, rtol=0, atol=0.5)


def test_a_word_that_is_forbidden_and_ignored_does_no_harm():
    case = draw(2, 11, 10, 5)
    leaves = case.leaves(torch.float32)
    bias = leaves["bias"].detach().clone()
    bias[3] = -torch.inf
    case.target[:4] = 3
    case.target[4:] = torch.arange(6) % 3
    for function in (mixture_nll, narrow_nll):
        loss = function(
            leaves["latents"], leaves["log_prior"], leaves["weight"], case.target, bias=bias, ignore_index=3
        ).loss
        assert loss.isfinite()


# interpolation with another distribution

TOKENS = 20


def draw_shares(num_tokens=TOKENS):
    """Scores of g and what the other distribution gives the targets, to every second one nothing, (N) each."""
    other = torch.rand(num_tokens).double().masked_fill(torch.arange(num_tokens) % 2 == 0, 0)
    return torch.randn(num_tokens).double().requires_grad_(), other


def interpolated(score, other):
    log_other = torch.nn.functional.logsigmoid(score) + other.log()
    return Interpolation(torch.nn.functional.logsigmoid(-score), log_other)


def interpolated_formula(case, leaves, score, other, *, label_smoothing, epsilon=0.0):
    """The logarithm of (1 - g) P_mixture + g P_other; label smoothing is the mixture's own."""
    gate = LogitGate(*(leaves[f"gate_{part}"] for part in LogitGate._fields)) if "gate_weight" in leaves else None
    prior = leaves["log_prior"].exp()
    args = (leaves["latents"], prior, leaves["weight"], leaves["bias"], case.target)
    nll_of_mixture = mixture_loss(*args, 0.0, gate, epsilon)[1]
    smoothed = mixture_loss(*args, label_smoothing, gate, epsilon)[0] - (1 - label_smoothing) * nll_of_mixture
    share = torch.sigmoid(score)
    nll = -torch.log((1 - share) * torch.exp(-nll_of_mixture) + share * other)
    return (((1 - label_smoothing) * nll + smoothed) * case.token_weights).sum(), nll


@gated_or_not
@smoothed_or_not
@pytest.mark.parametrize("epsilon", [0.0, 0.3])
@pytest.mark.parametrize("chunk_size", [3, 50])
@pytest.mark.parametrize("num_experts", [1, 3])
def test_loss_and_all_gradients_are_those_of_the_formula(num_experts, chunk_size, epsilon, smoothing, gate_width):
    case = draw(num_experts, 11, TOKENS, 5, scale=3, gate_width=gate_width)
    leaves, (score, other) = case.leaves(torch.float64), draw_shares()
    learned = [*leaves.values(), score]
    expected, expected_nll = interpolated_formula(
        case, leaves, score, other, label_smoothing=smoothing, epsilon=epsilon
    )
    options = dict(label_smoothing=smoothing, adversarial_epsilon=epsilon)
    options.update(chunk_size=chunk_size, interpolation=interpolated(score, other))
    loss, nll = call(mixture_nll, case, leaves, **options)
    torch.testing.assert_close(loss, expected, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(nll, expected_nll.masked_fill(case.token_weights == 0, 0), rtol=1e-10, atol=1e-12)
    gradients = [torch.autograd.grad(value, learned) for value in (loss, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


def test_without_weight_for_the_other_it_is_the_mixture_bit_for_bit():
    case = draw(3, 11, TOKENS, 5)
    nothing = Interpolation(torch.zeros(TOKENS), torch.full((TOKENS,), float("-inf")))
    results = []
    for options in ({}, {"interpolation": nothing}):
        leaves = case.leaves(torch.float32)
        loss, nll = call(mixture_nll, case, leaves, **options)
        results.append([loss.detach(), nll, *torch.autograd.grad(loss, list(leaves.values()))])
    assert all(torch.equal(*pair) for pair in zip(*results))


def test_only_the_interpolation_may_learn():
    case, (score, other) = draw(3, 11, TOKENS, 5), draw_shares()
    leaves = {name: leaf.detach() for name, leaf in case.leaves(torch.float64).items()}
    expected = interpolated_formula(case, leaves, score, other, label_smoothing=0.0)[0]
    loss = call(mixture_nll, case, leaves, interpolation=interpolated(score, other)).loss
    torch.testing.assert_close(*[torch.autograd.grad(x, score) for x in (loss, expected)], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("epsilon", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_in_16_bits_are_those_of_the_formula_up_to_rounding(dtype, epsilon):
    case, (score, other) = draw(3, 11, TOKENS, 8, dtype=dtype), draw_shares()
    leaves = case.leaves(dtype)
    exact = {name: getattr(case, name).requires_grad_() for name in case.learned}
    exact_loss = interpolated_formula(case, exact, score, other, label_smoothing=0.0, epsilon=epsilon)[0]
    expected = torch.autograd.grad(exact_loss, [*exact.values(), score])
    narrow = Interpolation(*(part.float() for part in interpolated(score, other)))
    options = dict(interpolation=narrow, token_weights=case.token_weights.float(), adversarial_epsilon=epsilon)
    ours = torch.autograd.grad(call(mixture_nll, case, leaves, **options).loss, [*leaves.values(), score])
    for mine, theirs in zip(ours, expected):
        torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=0.02 * float(theirs.abs().max()))


@smoothed_or_not
@pytest.mark.parametrize("epsilon", [0.0, 0.05])
@pytest.mark.parametrize("num_experts", [1, 3])
def test_a_chunk_in_bfloat16_errs_as_little_as_without_interpolation(num_experts, epsilon, smoothing):
    case = draw(num_experts, 1000, 2000, 64, scale=3)
    case.token_weights.fill_(1)
    leaves, exact, (score, other) = case.leaves(torch.float32), case.leaves(torch.float64), draw_shares(2000)
    expected = interpolated_formula(case, exact, score, other, label_smoothing=smoothing, epsilon=epsilon)[0]
    narrow = Interpolation(*(part.float() for part in interpolated(score, other)))
    options = dict(label_smoothing=smoothing, adversarial_epsilon=epsilon)
    of_the_mixture = call(formula, case, exact, **options).loss
    options.update(interpolation=narrow, token_weights=case.token_weights.float(), chunk_dtype=torch.bfloat16)
    loss = call(mixture_nll, case, leaves, **options).loss
    assert abs(loss.double() - expected) < MAX_LOSS_BIAS * of_the_mixture
    ours = torch.autograd.grad(loss, [*leaves.values(), score])
    for mine, theirs in zip(ours, torch.autograd.grad(expected, [*exact.values(), score])):
        assert (mine.double() - theirs).norm() < MAX_GRADIENT_ERROR * theirs.norm()


def test_with_interpolation_without_reduction_each_token_has_its_loss():
    case, (score, other) = draw(3, 11, TOKENS, 5), draw_shares()
    leaves = {name: leaf.detach() for name, leaf in case.leaves(torch.float64).items()}
    with torch.no_grad():
        given = interpolated(score, other)
        losses = call(mixture_nll, case, leaves, interpolation=given, reduction="none").loss
        expected = interpolated_formula(case, leaves, score, other, label_smoothing=0.0)[1] * case.token_weights
    torch.testing.assert_close(losses, expected, rtol=1e-10, atol=1e-12)


def test_with_interpolation_without_reduction_a_gradient_is_refused():
    case, (score, other) = draw(3, 11, TOKENS, 5), draw_shares()
    leaves = {name: leaf.detach() for name, leaf in case.leaves(torch.float64).items()}
    with pytest.raises(ValueError, match='reduction="none" gives no gradient for log_weight, log_other: score under'):
        call(mixture_nll, case, leaves, interpolation=interpolated(score, other), reduction="none")


# precision

PRECISION_SHAPES = [  # experts, vocabulary, tokens, width
    (1, 507, 123, 20),
    (3, 252, 60, 7),
    (20, 123, 50, 12),
]
AWKWARD = [(3, 1, 10, 4), (4, 30, 1, 5)]

sixteen_bits = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


# float32


@gated_or_not
@smoothed_or_not
@pytest.mark.parametrize("scale", [1, 10, 30])
@pytest.mark.parametrize("shape", PRECISION_SHAPES + AWKWARD)
def test_float32_error_is_no_larger_than_that_of_autograd(shape, scale, smoothing, gate_width):
    options = dict(scale=scale, label_smoothing=smoothing, gate_width=gate_width)
    ours, theirs = [rms_errors(function, shape, torch.float32, **options) for function in (mixture_nll, plain)]
    for name, error in ours.items():
        # the sums run in another order; one rounding of 1 is added because autograd is exact where V = 1
        assert error <= 1.25 * theirs[name] + EPS, name


@gated_or_not
@smoothed_or_not
@pytest.mark.parametrize("chunk_size", [1, 7])
def test_small_chunks_lose_no_precision(chunk_size, smoothing, gate_width):
    shape = (3, 252, 60, 7)
    options = dict(label_smoothing=smoothing, gate_width=gate_width)
    ours = rms_errors(mixture_nll, shape, torch.float32, chunk_size=chunk_size, **options)
    theirs = rms_errors(plain, shape, torch.float32, **options)
    # the products of the chunks are added one by one, each with a rounding
    assert all(error <= 1.5 * theirs[name] + EPS for name, error in ours.items())


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


@smoothed_or_not
@pytest.mark.parametrize("scale", [1, 80, 200])
@pytest.mark.parametrize("num_experts, vocab_size", [(1, 123), (3, 252), (20, 50)])
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


@smoothed_or_not
def test_experts_that_disagree_by_400_nats(smoothing):
    logits = torch.full((2, 2, 7), -200.0)
    logits[:, 0, 0] = logits[:, 1, 1] = 200.0
    log_prior = torch.tensor([[0.25, 0.75]]).log().repeat(2, 1).requires_grad_()
    logits.requires_grad_()
    loss, nll = mixture_nll(logits, log_prior, torch.eye(7), torch.tensor([0, 1]), label_smoothing=smoothing)
    torch.testing.assert_close(nll, -torch.tensor([0.25, 0.75]).log(), rtol=1e-6, atol=0)
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, [logits, log_prior]))


@smoothed_or_not
@pytest.mark.parametrize("scale", [1, 30, 300])
def test_ruled_out_experts_and_words_stay_finite(scale, smoothing):
    case = draw(4, 57, 30, 6, scale=scale)
    leaves, scores = case.leaves(torch.float32), torch.randn(30, 4)
    scores[:, 2] = scores[::2, 0] = -torch.inf
    scores.requires_grad_()
    loss, nll = mixture_nll(
        leaves["latents"],
        torch.log_softmax(scores, -1),
        leaves["weight"],
        case.target,
        bias=leaves["bias"],
        label_smoothing=smoothing,
    )
    gradients = torch.autograd.grad(loss, [leaves["latents"], leaves["weight"], leaves["bias"], scores])
    assert loss.isfinite() and nll.isfinite().all()
    assert all(g.isfinite().all() for g in gradients) and not gradients[0][:, 2].any()


# 16 bits


@pytest.mark.slow
@gated_or_not
@sixteen_bits
@smoothed_or_not
@pytest.mark.parametrize("scale, with_bias", [(1, False), (1, True), (10, False)])
@pytest.mark.parametrize("shape", PRECISION_SHAPES)
def test_sixteen_bit_error_is_no_larger_than_that_of_autograd(shape, scale, with_bias, smoothing, dtype, gate_width):
    options = dict(scale=scale, with_bias=with_bias, label_smoothing=smoothing, gate_width=gate_width)
    ours, theirs = [rms_errors(function, shape, dtype, **options) for function in (mixture_nll, plain)]
    for name, error in ours.items():
        # both paths take the same logits and products in 16 bits, and differ in how they round sums in float32;
        # the careful path rounds a gate's bias with its product, so that by chance its gate may be nearer
        assert error <= (1.05 if gate_width is None else 1.2) * theirs[name] + EPS, name


@pytest.mark.slow
@gated_or_not
@sixteen_bits
@smoothed_or_not
@pytest.mark.parametrize("shape", PRECISION_SHAPES)
def test_many_small_chunks_add_one_rounding_in_sixteen_bits(shape, smoothing, dtype, gate_width):
    options = dict(label_smoothing=smoothing, gate_width=gate_width)
    ours = rms_errors(mixture_nll, shape, dtype, chunk_size=7, **options)
    theirs = rms_errors(plain, shape, dtype, **options)
    for name, error in ours.items():
        # the product of each chunk is rounded and together they weigh as much as their sum's: sqrt(2) at most
        rounding = 1.42 if name in ("weight", "gate_weight") else 1.05 if gate_width is None else 1.2
        assert error <= rounding * theirs[name] + EPS, name


@gated_or_not
@sixteen_bits
def test_sixteen_bit_inputs_have_losses_in_float32_and_gradients_of_their_own_type(dtype, gate_width):
    case = draw(*PRECISION_SHAPES[0], dtype=dtype, gate_width=gate_width)
    ours = outcome(mixture_nll, case, dtype)
    wide = {"loss", "nll", "log_prior"}
    assert {name: value.dtype for name, value in ours.items()} == {
        name: torch.float32 if name in wide else dtype for name in ("loss", "nll", *case.learned)
    }


@sixteen_bits
@pytest.mark.parametrize("num_tokens", [1000, 4000])
def test_contributions_of_many_small_chunks_add_up(num_tokens, dtype):
    """Each token adds 1/2; sums in 16 bits would stop to grow at 128 in bfloat16 and at 1,024 in float16."""
    weight, bias = torch.zeros(2, 1, dtype=dtype, requires_grad=True), torch.zeros(2, dtype=dtype, requires_grad=True)
    latents, target = torch.ones(num_tokens, 1, 1, dtype=dtype), torch.zeros(num_tokens, dtype=torch.long)
    loss = mixture_nll(latents, torch.zeros(num_tokens, 1), weight, target, bias=bias, chunk_size=1).loss
    expected = torch.tensor([-num_tokens / 2, num_tokens / 2])
    for gradient in torch.autograd.grad(loss, [weight, bias]):
        torch.testing.assert_close(gradient.flatten().float(), expected, rtol=torch.finfo(dtype).eps, atol=0)


@pytest.mark.slow
@gated_or_not
@sixteen_bits
@smoothed_or_not
@pytest.mark.parametrize("loss_scale", [1.0, 2.0**16])
@pytest.mark.parametrize("shape", PRECISION_SHAPES)
def test_under_autocast_parameters_in_float32_have_gradients_in_float32(
    shape, loss_scale, smoothing, dtype, gate_width
):
    options = dict(loss_scale=loss_scale, label_smoothing=smoothing, gate_width=gate_width)
    ours, theirs = [
        rms_errors(under_autocast(dtype, function), shape, torch.float32, **options)
        for function in (mixture_nll, plain)
    ]
    for name, error in ours.items():
        # both round the operands of the same products to 16 bits; here the bias of the careful path is rounded too
        assert error <= 1.05 * theirs[name] + EPS, name
    case = draw(*shape, gate_width=gate_width)
    types = outcome(under_autocast(dtype, mixture_nll), case, torch.float32, label_smoothing=smoothing)
    assert {value.dtype for value in types.values()} == {torch.float32}


@sixteen_bits
def test_autocast_takes_its_products_in_sixteen_bits(dtype):
    case = draw(*PRECISION_SHAPES[2])
    args = (case.latents.float(), case.log_prior.float(), case.weight.float(), case.target)
    rounded = mixture_nll(args[0].to(dtype), args[1], args[2].to(dtype), case.target).nll
    with torch.autocast("cpu", dtype):
        assert torch.equal(mixture_nll(*args).nll, rounded)
    assert not torch.equal(mixture_nll(*args).nll, rounded)


@gated_or_not
@sixteen_bits
def test_autocast_leaves_float64_alone(dtype, gate_width):
    case = draw(*PRECISION_SHAPES[0], gate_width=gate_width)
    with torch.autocast("cpu", dtype):
        ours = outcome(mixture_nll, case)
    assert all(
        torch.equal(value, expected) for value, expected in zip(ours.values(), outcome(mixture_nll, case).values())
    )


@sixteen_bits
def test_autocast_takes_latents_of_its_type_with_a_matrix_in_float32(dtype):
    case = draw(*PRECISION_SHAPES[0], dtype=dtype)
    leaves = case.leaves(torch.float32)
    latents = case.latents.to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype):
        loss = mixture_nll(latents, leaves["log_prior"], leaves["weight"], case.target, bias=leaves["bias"]).loss
    d_latents, d_weight = torch.autograd.grad(loss, [latents, leaves["weight"]])
    assert loss.dtype == d_weight.dtype == torch.float32 and d_latents.dtype == dtype


# float16


@pytest.mark.parametrize("token_weight, latent, weight", [(1, 1, 0), (16, 1, 0), (1, 16, 0), (1, 1, 16)])
@pytest.mark.parametrize("chunk_size", [None, 1, 100])
@pytest.mark.parametrize("num_tokens", [300, 4000])
def test_float16_gradients_of_a_frequent_word_are_finite(num_tokens, chunk_size, token_weight, latent, weight):
    """float16 ends at 65,504. These gradients stay below it, so what is formed on the way must stay below it, too."""
    case = draw(1, 50, num_tokens, 1)
    case.latents.fill_(latent)
    case.bias.zero_()
    case.weight[:25], case.weight[25:] = -weight, weight
    case.target.fill_(7)
    case.token_weights.fill_(token_weight)
    exact = outcome(formula, case)
    ours = outcome(mixture_nll, case, torch.float16, chunk_size=chunk_size)
    for name in BASE:
        assert exact[name].abs().max() < torch.finfo(torch.float16).max and ours[name].isfinite().all(), name
        # a rounding each of p - 1, of the product and of the result
        rounding = 3 * torch.finfo(torch.float16).eps * exact[name].abs().max()
        torch.testing.assert_close(ours[name].double(), exact[name], rtol=0, atol=rounding.item() + EPS)


@pytest.mark.parametrize("chunk_size", [None, 1, 100])
@pytest.mark.parametrize("num_experts", [1, 3])
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
    ours = outcome(mixture_nll, case, torch.float16, chunk_size=chunk_size)
    for name in GATE:
        assert exact[name].abs().max() < torch.finfo(torch.float16).max and ours[name].isfinite().all(), name
        rounding = 3 * torch.finfo(torch.float16).eps * exact[name].abs().max()
        torch.testing.assert_close(ours[name].double(), exact[name], rtol=0, atol=rounding.item() + EPS)


@pytest.mark.parametrize("factor", [1e-6, 1.0, 100.0])
@pytest.mark.parametrize("row, weight", [(0.01, 0.1), (3.0, 0.1), (0.01, 300.0)])
def test_the_scale_is_a_power_of_two_that_uses_the_range_and_stays_in_it(row, weight, factor):
    rows, matrix = row * torch.randn(40, 3, 5), weight * torch.randn(7, 5)
    scale = float16_scale(rows, matrix, torch.full((40,), factor), chunk_size=10).item()
    assert torch.tensor(scale).log2().frac() == 0
    largest = factor * max(1.0, 10 * rows.abs().max().item(), 2 * matrix.abs().max().item())
    assert scale * largest <= 2**15
    assert scale * largest > 2**14 or scale == 2**25  # where all factors are tiny


@pytest.mark.parametrize("with_bias", [True, False])
def test_no_logit_exceeds_its_bound(with_bias):
    latents, weight, bias = torch.randn(9, 3, 5), torch.randn(7, 5), torch.randn(7) if with_bias else None
    logits = torch.nn.functional.linear(latents, weight, bias)
    assert logits.abs().max() <= logit_bound(latents, weight, bias) < 10 * logits.abs().max()
    aligned = torch.nn.functional.linear(weight[:1], weight[:1])
    torch.testing.assert_close(logit_bound(weight[:1], weight[:1], None), aligned.squeeze(), rtol=1e-5, atol=0)


@pytest.mark.slow
@gated_or_not
@smoothed_or_not
@pytest.mark.parametrize("loss_scale, token_weight", [(2.0**7, 1.0), (2.0**16, 2.0**-9)])
@pytest.mark.parametrize("shape", [(1, 3000, 300, 8), (3, 600, 200, 8)])
def test_a_loss_scale_saves_small_gradients_in_float16(shape, loss_scale, token_weight, smoothing, gate_width):
    options = dict(
        scale=0.3, loss_scale=loss_scale, token_weight=token_weight, label_smoothing=smoothing, gate_width=gate_width
    )
    ours, theirs = [rms_errors(function, shape, torch.float16, **options) for function in (mixture_nll, plain)]
    for name, error in ours.items():
        assert error <= 1.05 * theirs[name] + EPS * token_weight, name


# sizes of chunks


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_experts", [1, 20, 1000])
@pytest.mark.parametrize("vocab_size", [1, 10_000, 10**7])
def test_the_default_chunk_is_the_most_tokens_that_fit_the_share_or_the_fewest_rows(vocab_size, num_experts, dtype):
    chunk_size = default_chunk_size(num_experts, vocab_size, dtype=dtype, device=torch.device("cpu"))
    num_rows = max(MIN_CHUNK_ROWS, CPU_CHUNK_BYTES // (vocab_size * dtype.itemsize))
    assert 1 <= chunk_size
    assert chunk_size * num_experts <= max(num_rows, num_experts)
    assert (chunk_size + 1) * num_experts > num_rows


@pytest.mark.parametrize("num_tokens", [0, 1, 5, 12, 13, 700])
@pytest.mark.parametrize("chunk_size", [1, 5, 12, 1000])
def test_even_chunks_are_as_many_and_differ_by_little(num_tokens, chunk_size):
    size = even_chunk_size(num_tokens, chunk_size)
    num_chunks = -(-num_tokens // chunk_size)
    assert 1 <= size <= chunk_size and -(-num_tokens // size) <= num_chunks
    assert num_tokens == 0 or size - 1 < num_tokens / num_chunks <= size


@pytest.mark.parametrize("drop_ignored", [False, True])
@pytest.mark.parametrize("zeros", [[], [0, 4, 5], list(range(9))])
def test_each_token_that_counts_is_in_one_chunk(zeros, drop_ignored):
    weights = torch.ones(9).index_fill(0, torch.tensor(zeros, dtype=torch.long), 0)
    chunks = [torch.arange(9)[chosen] for chosen in iter_chunks(weights, 4, drop_ignored=drop_ignored)]
    expected = [token for token in range(9) if not (drop_ignored and token in zeros)]
    assert [token for chunk in chunks for token in chunk.tolist()] == expected
    assert all(0 < len(chunk) <= 4 for chunk in chunks)


# arguments


def arguments(**changes):
    """Two rows of three tokens, four experts, width five, seven words."""
    given = dict(
        latents=torch.zeros(2, 3, 4, 5),
        log_prior=torch.zeros(2, 3, 4),
        weight=torch.zeros(7, 5),
        target=torch.zeros(2, 3, dtype=torch.long),
        bias=torch.zeros(7),
        token_weights=torch.ones(2, 3),
    )
    return {**given, **changes}


def half(**changes):
    return (
        arguments(latents=torch.zeros(2, 3, 4, 5).bfloat16(), weight=torch.zeros(7, 5).bfloat16(), bias=None) | changes
    )


def test_the_arguments_that_are_changed_below_are_taken():
    assert mixture_nll(**arguments()).loss.isfinite()
    assert mixture_nll(**half()).loss.isfinite()


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(latents=torch.zeros(5)), r"latents is \(5,\): it must be \(\*, experts, width\)"),
        (dict(latents=torch.zeros(2, 3, 0, 5)), "latents is"),
        (dict(latents=torch.zeros(2, 3, 4, 0), weight=torch.zeros(7, 0)), "latents is"),
        (dict(latents=torch.zeros(2, 3, 4, 6)), r"weight is \(7, 5\): it must be \(vocabulary, 6\)"),
        (dict(weight=torch.zeros(5, 7)), r"weight is \(5, 7\): it must be \(vocabulary, 5\)"),
        (dict(weight=torch.zeros(5)), "weight is"),
        (dict(weight=torch.zeros(1, 7, 5)), "weight is"),
        (dict(weight=torch.zeros(0, 5), bias=None), "weight is"),
        (dict(log_prior=torch.zeros(2, 3, 5)), r"log_prior is \(2, 3, 5\): it must be \(2, 3, 4\)"),
        (dict(log_prior=torch.zeros(6, 4)), "log_prior is"),
        (dict(log_prior=torch.zeros(4)), "log_prior is"),
        (dict(target=torch.zeros(3, 2, dtype=torch.long)), r"target is \(3, 2\): it must be \(2, 3\)"),
        (dict(target=torch.zeros(6, dtype=torch.long)), "target is"),
        (dict(target=torch.zeros(2, 3, 4, dtype=torch.long)), "target is"),
        (dict(bias=torch.zeros(5)), r"bias is \(5,\): it must be \(7,\)"),
        (dict(bias=torch.zeros(1, 7)), "bias is"),
        (dict(bias=torch.zeros(())), "bias is"),
        (dict(token_weights=torch.ones(6)), r"token_weights is \(6,\): it must be \(2, 3\)"),
        (dict(token_weights=torch.ones(2, 1)), "token_weights is"),
        (dict(token_weights=torch.ones(())), "token_weights is"),
        (
            dict(interpolation=Interpolation(torch.ones(6), torch.ones(2, 3))),
            r"log_weight is \(6,\): it must be \(2, 3\)",
        ),
        (dict(interpolation=Interpolation(torch.ones(2, 3), torch.ones(3))), "log_other is"),
    ],
)
def test_shapes_that_do_not_fit(changes, message):
    with pytest.raises(ValueError, match=f"mixture_nll: {message}"):
        mixture_nll(**arguments(**changes))


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(latents=torch.zeros(2, 3, 4, 5, dtype=torch.long)), "latents is torch.int64"),
        (dict(target=torch.zeros(2, 3, dtype=torch.int32)), "target is torch.int32: it must be torch.int64"),
        (dict(target=torch.zeros(2, 3)), "target is torch.float32"),
        (dict(weight=torch.zeros(7, 5).double()), "weight is torch.float64, latents torch.float32"),
        (dict(weight=torch.zeros(7, 5).bfloat16()), "weight is torch.bfloat16"),
        (dict(bias=torch.zeros(7).double()), "bias is torch.float64, latents torch.float32"),
        (dict(bias=torch.zeros(7).half()), "bias is torch.float16"),
        (dict(log_prior=torch.zeros(2, 3, 4).double()), "log_prior is torch.float64: it must be torch.float32"),
        (dict(log_prior=torch.zeros(2, 3, 4).bfloat16()), "log_prior is torch.bfloat16: it must be torch.float32"),
        (
            dict(interpolation=Interpolation(torch.ones(2, 3), torch.ones(2, 3).double())),
            "log_other is torch.float64: it must be torch.float32",
        ),
        (half(log_prior=torch.zeros(2, 3, 4).bfloat16()), "log_prior is torch.bfloat16: it must be torch.float32"),
        (half(weight=torch.zeros(7, 5)), "weight is torch.float32, latents torch.bfloat16"),
        (half(bias=torch.zeros(7)), "bias is torch.float32, latents torch.bfloat16"),
    ],
)
def test_types_that_do_not_fit(changes, message):
    with pytest.raises(ValueError, match=f"mixture_nll: {message}"):
        mixture_nll(**arguments(**changes))


@pytest.mark.parametrize("name", ["log_prior", "weight", "target", "bias", "token_weights"])
def test_an_argument_on_another_device(name):
    moved = {name: arguments()[name].to("meta")}
    with pytest.raises(ValueError, match=f"mixture_nll: {name} is on meta, latents on cpu"):
        mixture_nll(**arguments(**moved))


@pytest.mark.parametrize("value", [-1, -100, 7, 10**12])
def test_a_target_that_is_no_word(value):
    target = torch.tensor([[0, 6, 3], [1, value, 2]])
    for changes in (dict(target=target), dict(target=target, token_weights=None), dict(target=target, ignore_index=0)):
        with pytest.raises(ValueError, match=rf"mixture_nll: target .*0 \.\. 6.*{value}"):
            mixture_nll(**arguments(**changes))


@pytest.mark.parametrize("value", [-1, -100, 7, 10**12])
def test_what_is_no_word_may_stand_where_it_is_ignored(value):
    target = torch.tensor([[0, 6, 3], [1, value, 2]])
    for changes in (dict(ignore_index=value), dict(token_weights=target.ne(value))):
        loss, nll = mixture_nll(**arguments(target=target, **changes))
        assert loss.isfinite() and nll[1, 1] == 0 and nll.count_nonzero() == 5


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(label_smoothing=-0.1), "label_smoothing is -0.1"),
        (dict(label_smoothing=1.0), "label_smoothing is 1.0"),
        (dict(label_smoothing=1.5), "label_smoothing is 1.5"),
        (dict(label_smoothing=float("nan")), "label_smoothing is nan"),
        (dict(chunk_size=0), "chunk_size is 0: it must be a whole number of at least 1"),
        (dict(chunk_size=-3), "chunk_size is -3"),
        (dict(reduction="mean"), 'reduction is "mean": choose "sum" or "none"'),
        (dict(reduction=""), 'reduction is ""'),
    ],
)
def test_values_that_cannot_be(changes, message):
    with pytest.raises(ValueError, match=f"mixture_nll: {message}"):
        mixture_nll(**arguments(**changes))


def test_options_are_named():
    given = arguments()
    with pytest.raises(TypeError, match="positional"):
        mixture_nll(*(given[name] for name in ("latents", "log_prior", "weight", "target", "bias")))


def test_token_weights_that_learn_are_refused():
    given = arguments()
    weights = torch.ones_like(given["target"], dtype=torch.float32).requires_grad_()
    with pytest.raises(ValueError, match="mixture_nll: token_weights requires a gradient"):
        mixture_nll(**{**given, "token_weights": weights})
    with torch.no_grad():
        mixture_nll(**{**given, "token_weights": weights})


def test_a_word_that_is_not_in_the_vocabulary_is_told_with_the_remedy():
    given = arguments()
    with pytest.raises(ValueError, match=r"words outside 0 .. \d+: \[-100.*\]; mark padding by ignore_index"):
        mixture_nll(**{**given, "target": given["target"].index_fill(0, torch.tensor([0]), -100)})
