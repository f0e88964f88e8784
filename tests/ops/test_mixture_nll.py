"""The chunked loss of a mixture: what it returns, what it differentiates and what it holds in memory."""

import pytest
import torch
from mixture_cases import LEARNED, draw, formula, outcome, plain
from plain_formulas import mixture, mixture_loss, mixture_nll_gradients
from tensor_sizes import TensorSizes

from fairseq_plugins.ops import mixture_chunk
from fairseq_plugins.ops.chunks import CPU_CHUNK_BYTES, MIN_CHUNK_ROWS, default_chunk_size
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

smoothed_or_not = pytest.mark.parametrize("smoothing", [0.0, 0.1])


def assert_same(ours, expected, rtol=1e-10, atol=1e-12):
    for name, value in expected.items():
        torch.testing.assert_close(
            ours[name], value, rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}"
        )


def call(case, leaves, **options):
    """The loss of a case with all its arguments."""
    options = {"bias": leaves["bias"], "token_weights": case.token_weights, **options}
    return mixture_nll(leaves["latents"], leaves["log_prior"], leaves["weight"], case.target, **options)


# values and gradients


@smoothed_or_not
@pytest.mark.parametrize("scale", [1, 10])
@pytest.mark.parametrize("shape", SHAPES)
def test_loss_and_gradients_are_those_of_the_formula(shape, scale, smoothing):
    case = draw(*shape, scale=scale)
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
    names = LEARNED if with_bias else LEARNED[:-1]
    args = [leaves[name] for name in LEARNED[:-1]]
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
def test_gradcheck(smoothing):
    case = draw(3, 7, 5, 4)
    case.target[0] = -1

    def loss(latents, scores, weight, bias):
        return mixture_nll(
            latents,
            torch.log_softmax(scores, -1),
            weight,
            case.target,
            bias=bias,
            token_weights=case.token_weights,
            ignore_index=-1,
            label_smoothing=smoothing,
            chunk_size=2,
        ).loss

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


@smoothed_or_not
@pytest.mark.parametrize("chunk_size", [1, 2, 3, 7, 20, 50])
def test_the_chunk_is_no_part_of_the_result(chunk_size, smoothing):
    case = draw(3, 11, 20, 5)
    expected = outcome(formula, case, label_smoothing=smoothing)
    assert_same(outcome(mixture_nll, case, label_smoothing=smoothing, chunk_size=chunk_size), expected)


@pytest.mark.parametrize("leading", [(), (4,), (2, 3), (2, 3, 2)])
def test_any_number_of_leading_dimensions(leading):
    latents, log_prior = torch.randn(*leading, 3, 5), torch.log_softmax(torch.randn(*leading, 3), -1)
    weight, target = torch.randn(7, 5), torch.randint(7, leading)
    latents.requires_grad_()
    loss, nll = mixture_nll(latents, log_prior, weight, target)
    expected = mixture_loss(latents, log_prior.exp(), weight, torch.zeros(7), target)[1]
    assert loss.shape == () and nll.shape == leading
    torch.testing.assert_close(nll, expected, rtol=1e-5, atol=1e-5)
    assert torch.autograd.grad(loss, latents)[0].shape == latents.shape


@smoothed_or_not
def test_experts_that_are_ruled_out_take_no_part(smoothing):
    case = draw(4, 11, 6, 5)
    case.token_weights.fill_(1)
    scores = torch.randn(6, 4, dtype=torch.float64)
    scores[:, 1] = scores[3, 0] = scores[4, 2:] = -torch.inf
    results = []
    for function in (mixture_nll, formula):
        leaves, leaf = case.leaves(torch.float64), scores.clone().requires_grad_()
        leaves["log_prior"] = torch.log_softmax(leaf, dim=-1)
        loss, nll = function(
            *(leaves[name] for name in LEARNED[:-1]),
            case.target,
            bias=leaves["bias"],
            token_weights=case.token_weights,
            label_smoothing=smoothing,
        )
        learned = [leaves["latents"], leaves["weight"], leaves["bias"], leaf]
        results.append([loss.detach(), nll, *torch.autograd.grad(loss, learned)])
    assert all(value.isfinite().all() for value in results[0])
    assert not results[0][2][:, 1].any() and not results[0][-1][:, 1].any()
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


def test_the_nll_has_neither_smoothing_nor_weight_nor_gradient():
    case = draw(*SMALL)
    leaves = case.leaves(torch.float64)
    nll = call(case, leaves, label_smoothing=0.3, token_weights=7 * torch.ones(10)).nll
    expected = mixture_loss(case.latents, case.log_prior.exp(), case.weight, case.bias, case.target)[1]
    torch.testing.assert_close(nll, expected, rtol=1e-11, atol=1e-11)
    assert not nll.requires_grad


# ignored tokens


@pytest.mark.parametrize("how", ["token_weights", "ignore_index", "both"])
@smoothed_or_not
def test_without_a_token_that_counts_everything_is_zero(how, smoothing):
    case = draw(*SMALL)
    leaves = case.leaves(torch.float32)
    if how != "token_weights":
        case.target.fill_(-100)
    case.token_weights = torch.zeros(10) if how != "ignore_index" else torch.ones(10)
    ignore_index = -100 if how != "token_weights" else None
    loss, nll = call(case, leaves, label_smoothing=smoothing, ignore_index=ignore_index)
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    assert loss.item() == 0.0 and not nll.any()
    assert all(torch.equal(g, torch.zeros_like(leaf)) for g, leaf in zip(gradients, leaves.values()))


@smoothed_or_not
@pytest.mark.parametrize("leading", [(0,), (0, 5), (3, 0)])
def test_without_a_token_everything_is_zero(leading, smoothing):
    weight = torch.randn(7, 5, requires_grad=True)
    latents, log_prior = torch.randn(*leading, 2, 5, requires_grad=True), torch.zeros(*leading, 2)
    target = torch.zeros(leading, dtype=torch.long)
    loss, nll = mixture_nll(latents, log_prior, weight, target, label_smoothing=smoothing)
    d_latents, d_weight = torch.autograd.grad(loss, [latents, weight])
    assert loss.item() == 0.0 and nll.shape == leading
    assert d_latents.shape == latents.shape and not d_weight.any()


@pytest.mark.parametrize("ignored", [-100, 3, 10**6])
def test_a_token_with_the_ignored_index_is_one_of_weight_zero(ignored):
    case = draw(*SMALL)
    case.target[[0, 3, 8]] = 3
    weightless = case.token_weights.masked_fill(case.target.eq(3), 0)
    results = []
    for target, options in (
        (case.target, {"token_weights": weightless}),
        (case.target.masked_fill(case.target.eq(3), ignored), {"ignore_index": ignored}),
    ):
        leaves, case.target = case.leaves(torch.float64), target
        loss, nll = call(case, leaves, label_smoothing=0.1, **options)
        results.append([loss.detach(), nll, *torch.autograd.grad(loss, list(leaves.values()))])
    assert results[0][1][case.target.eq(ignored)].eq(0).all() and results[0][0] > 0
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-14)


@smoothed_or_not
def test_nothing_is_read_of_a_token_that_is_ignored(smoothing):
    case = draw(*SMALL)
    expected = outcome(mixture_nll, case, label_smoothing=smoothing)
    ignored = case.token_weights == 0
    case.latents[ignored], case.log_prior[ignored] = torch.nan, torch.inf
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


# autograd


@smoothed_or_not
@pytest.mark.parametrize("learned", [LEARNED[:1], LEARNED[1:2], LEARNED[2:3], LEARNED[3:], LEARNED[1:3], LEARNED[::3]])
def test_only_what_learns_gets_a_gradient(learned, smoothing):
    case = draw(*SMALL)
    leaves, expected = case.leaves(torch.float64), outcome(formula, case, label_smoothing=smoothing)
    for name in set(LEARNED) - set(learned):
        leaves[name].requires_grad_(False)
    call(case, leaves, label_smoothing=smoothing).loss.backward()
    assert {name for name, leaf in leaves.items() if leaf.grad is not None} == set(learned)
    assert_same({name: leaves[name].grad for name in learned}, {name: expected[name] for name in learned})


def test_where_nothing_learns_there_is_no_graph():
    case = draw(*SMALL)
    leaves = case.leaves(torch.float64)
    with torch.no_grad():
        scored = call(case, leaves)
    frozen = call(case, {name: leaf.detach() for name, leaf in leaves.items()})
    assert not scored.loss.requires_grad and not frozen.loss.requires_grad
    assert torch.equal(scored.loss, call(case, leaves).loss) and torch.equal(scored.nll, frozen.nll)


def test_a_graph_that_is_kept_gives_the_same_gradients_again():
    case = draw(*SMALL)
    leaves, expected = case.leaves(torch.float64), outcome(mixture_nll, case)
    loss, params = call(case, leaves).loss, list(leaves.values())
    first = [g.clone() for g in torch.autograd.grad(loss, params, retain_graph=True)]
    torch.autograd.grad(3 * loss, params, retain_graph=True)
    second = torch.autograd.grad(loss, params)
    for gradients in (first, second):
        assert all(torch.equal(g, expected[name]) for g, name in zip(gradients, LEARNED))


def test_a_graph_that_is_not_kept_can_be_used_once():
    case = draw(*SMALL)
    loss = call(case, case.leaves(torch.float64)).loss
    loss.backward()
    with pytest.raises(RuntimeError, match="retain_graph"):
        loss.backward()


@pytest.mark.parametrize("factor", [0.0, 1.0, -0.5, 3.0, 2.0**16])
def test_the_incoming_gradient_scales_all_gradients(factor):
    case = draw(*SMALL)
    leaves, expected = case.leaves(torch.float64), outcome(formula, case)
    gradients = torch.autograd.grad(factor * call(case, leaves).loss, list(leaves.values()))
    assert_same(dict(zip(LEARNED, gradients)), {name: factor * expected[name] for name in LEARNED}, atol=1e-10)


def test_gradients_add_up_over_calls():
    case = draw(*SMALL)
    leaves, expected = case.leaves(torch.float64), outcome(formula, case)
    for _ in range(2):
        call(case, leaves).loss.backward()
    (call(case, leaves).loss + call(case, leaves).loss).backward()
    assert_same({name: leaf.grad for name, leaf in leaves.items()}, {name: 4 * expected[name] for name in LEARNED})


def test_inputs_need_not_be_contiguous():
    case = draw(4, 11, 12, 4)
    expected = outcome(formula, case)
    leaves = {
        "latents": case.latents.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_(),
        "log_prior": case.log_prior.t().contiguous().t().requires_grad_(),
        "weight": case.weight.t().contiguous().t().requires_grad_(),
        "bias": torch.stack([case.bias, case.bias], dim=1)[:, 0].requires_grad_(),
    }
    case.target = torch.stack([case.target, case.target], dim=1)[:, 0]
    case.token_weights = torch.stack([case.token_weights, case.token_weights], dim=1)[:, 0]
    assert not any(x.is_contiguous() for x in [*leaves.values(), case.target, case.token_weights])
    loss, nll = call(case, leaves, chunk_size=5)
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    assert_same({"loss": loss.detach(), "nll": nll, **dict(zip(LEARNED, gradients))}, expected)


def test_inputs_may_be_expanded():
    case = draw(*SMALL)
    case.latents, case.log_prior = case.latents[:1], case.log_prior[:1]
    results = []
    for function in (mixture_nll, formula):
        leaves = case.leaves(torch.float64)
        loss, _ = function(
            leaves["latents"].expand(10, -1, -1),
            leaves["log_prior"].expand(10, -1),
            leaves["weight"],
            case.target,
            bias=leaves["bias"][:1].expand(11),
            token_weights=torch.ones(()).expand(10),
        )
        results.append(torch.autograd.grad(loss, list(leaves.values())))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


def test_the_inputs_are_left_as_they_are():
    case = draw(*SMALL)
    leaves = case.leaves(torch.float32)
    call(case, leaves, label_smoothing=0.1, chunk_size=4).loss.backward()
    assert all(torch.equal(leaf.double(), getattr(case, name)) for name, leaf in leaves.items())


def test_a_second_derivative_is_refused():
    case = draw(*SMALL)
    leaves = case.leaves(torch.float64)
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad(call(case, leaves).loss, leaves["latents"], create_graph=True)


# scoring without reduction


@smoothed_or_not
def test_without_reduction_each_token_has_its_weighted_loss(smoothing):
    case = draw(*SMALL)
    args = [getattr(case, name) for name in LEARNED[:-1]]
    options = dict(bias=case.bias, token_weights=case.token_weights, label_smoothing=smoothing, chunk_size=4)
    loss, nll = mixture_nll(*args, case.target, reduction="none", **options)
    prior = case.log_prior.exp()
    expected, expected_nll = mixture_loss(case.latents, prior, case.weight, case.bias, case.target, smoothing)
    torch.testing.assert_close(loss, expected * case.token_weights, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(nll, expected_nll.masked_fill(case.token_weights == 0, 0), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(loss.sum(), mixture_nll(*args, case.target, **options).loss, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", LEARNED)
def test_without_reduction_a_gradient_is_refused(name):
    case = draw(*SMALL)
    leaves = {key: leaf.requires_grad_(key == name) for key, leaf in case.leaves(torch.float64).items()}
    with pytest.raises(ValueError, match=f'reduction="none" gives no gradient for {name}'):
        call(case, leaves, reduction="none")
    with torch.no_grad():
        assert call(case, leaves, reduction="none").loss.shape == (10,)


# memory


def sizes_of(function, num_tokens, dtype, **options):
    case = draw(3, 997, num_tokens, 8)
    with TensorSizes() as sizes:
        outcome(function, case, dtype, **options)
    return sizes


@smoothed_or_not
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_tokens", [20, 60, 240])
def test_no_tensor_is_larger_than_a_chunk_of_logits(num_tokens, dtype, smoothing):
    chunk_logits, weight, latents = 4 * 3 * 997, 997 * 8, num_tokens * 3 * 8
    fused = sizes_of(mixture_nll, num_tokens, dtype, label_smoothing=smoothing, chunk_size=4)
    assert fused.largest <= max(chunk_logits, weight, latents) < num_tokens * 997
    assert sizes_of(plain, num_tokens, dtype, label_smoothing=smoothing).largest >= num_tokens * 3 * 997


@smoothed_or_not
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_does_not_grow_with_tokens_times_vocabulary(dtype, smoothing):
    few, many = [sizes_of(mixture_nll, n, dtype, label_smoothing=smoothing, chunk_size=4).peak for n in (60, 240)]
    assert (many - few) / 180 < 5 * 3 * 8  # a few copies of the latents, where one word each would be 997
    few, many = [sizes_of(plain, n, dtype, label_smoothing=smoothing).peak for n in (60, 240)]
    assert (many - few) / 180 > 3 * 997


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_scoring_forms_no_gradient(reduction, monkeypatch):
    formed = []
    backward = mixture_chunk.MixtureChunk.backward
    monkeypatch.setattr(mixture_chunk.MixtureChunk, "backward", lambda *args: formed.append(args) or backward(*args))
    case = draw(*SMALL)
    leaves = case.leaves(torch.float32)
    with torch.no_grad():
        call(case, leaves, reduction=reduction)
    assert not formed
    call(case, leaves)
    assert formed


def test_smoothing_the_labels_of_one_softmax_needs_no_second_chunk():
    case = draw(1, 5000, 32, 2)
    with TensorSizes() as sizes:
        outcome(mixture_nll, case, torch.float32, label_smoothing=0.1, chunk_size=16)
    assert 16 * 5000 <= sizes.peak < 1.6 * 16 * 5000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_experts", [1, 20, 1000])
@pytest.mark.parametrize("vocab_size", [1, 10_000, 10**7])
def test_the_default_chunk_is_at_least_a_token_and_no_more_than_the_share(vocab_size, num_experts, dtype):
    chunk_size = default_chunk_size(num_experts, vocab_size, dtype=dtype, device=torch.device("cpu"))
    row_bytes = vocab_size * dtype.itemsize
    assert 1 <= chunk_size
    assert chunk_size * num_experts * row_bytes <= max(CPU_CHUNK_BYTES, max(MIN_CHUNK_ROWS, num_experts) * row_bytes)
