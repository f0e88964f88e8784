"""The chunked loss in autograd: what it differentiates, how often, and what it holds in memory."""

from collections import Counter

import pytest
import torch
from mixture_cases import BASE, GATE, assert_same, call, draw, formula, gated_or_not, outcome, plain, smoothed_or_not
from tensor_sizes import TensorSizes

from fairseq_plugins.ops import chunked_mixture_nll, logit_gate, mixture_chunk
from fairseq_plugins.ops.mixture_nll import mixture_nll

SMALL = (3, 11, 10, 5)  # experts, vocabulary, tokens, width


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
        count(chunked_mixture_nll, name, "product")
    count(logit_gate, "project", "product")
    for module in (chunked_mixture_nll, logit_gate):
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
    leaves = {name: spread(getattr(case, name)).requires_grad_() for name in case.learned}
    case.target, case.token_weights = spread(case.target), spread(case.token_weights)
    assert not any(x.is_contiguous() for x in [*leaves.values(), case.target, case.token_weights])
    loss, nll = call(mixture_nll, case, leaves, chunk_size=5)
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    assert_same({"loss": loss.detach(), "nll": nll, **dict(zip(leaves, gradients))}, expected)


def spread(x):
    """x with its first dimension last in memory; a vector with every second element of a longer one."""
    return torch.stack([x, x], dim=1)[:, 0] if x.dim() == 1 else x.transpose(0, -1).contiguous().transpose(0, -1)


@gated_or_not
def test_inputs_may_be_expanded(gate_width):
    case = draw(*SMALL, gate_width=gate_width)
    of_tokens = [name for name in ("latents", "log_prior", "gate_features") if name in case.learned]
    for name in of_tokens:
        setattr(case, name, getattr(case, name)[:1])
    results = []
    for function in (mixture_nll, formula):
        leaves = case.leaves(torch.float64)
        inputs = {**leaves, "bias": leaves["bias"][:1].expand(11)}
        inputs.update({name: leaves[name].expand(10, *leaves[name].shape[1:]) for name in of_tokens})
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
