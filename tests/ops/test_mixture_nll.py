"""The loss of a mixture: its values and gradients, the tokens that it ignores, and scoring token by token."""

import pytest
import torch
from mixture_cases import BASE, GATE, assert_same, call, draw, formula, gated_or_not, outcome, smoothed_or_not
from plain_formulas import mixture, mixture_loss, mixture_nll_gradients

from fairseq_plugins.ops.logit_gate import LogitGate
from fairseq_plugins.ops.mixture_nll import mixture_nll

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
    told = name.replace("gate_", "gate.")
    with pytest.raises(ValueError, match=f'reduction="none" gives no gradient for {told}: '):
        call(mixture_nll, case, leaves, reduction="none")
    with torch.no_grad():
        assert call(mixture_nll, case, leaves, reduction="none").loss.shape == (10,)
