"""The loss of one chunk and its gradient by the logits, in place or beside them, in float64 and in 16 bits."""

import pytest
import torch
from mixture_cases import CHUNK_SIZES, CHUNK_TOKENS, draw_chunk
from plain_formulas import expert_mean, mixture, mixture_nll_gradients

from fairseq_plugins.ops.mixture_chunk import MixtureChunk


@pytest.mark.parametrize("num_experts, vocab_size", CHUNK_SIZES)
def test_nll_and_gradients_are_those_of_the_papers(num_experts, vocab_size):
    logits, log_prior, target = draw_chunk(num_experts, vocab_size)
    weights = torch.rand(CHUNK_TOKENS).double()
    expected = mixture_nll_gradients(logits, log_prior.exp(), target)
    nll = -mixture(logits, log_prior.exp()).gather(-1, target.unsqueeze(-1)).squeeze(-1).log()
    chunk = MixtureChunk(
        logits=logits.flatten(0, 1),
        log_prior=log_prior,
        target=target,
        keep_logits=True,
        recompute_logits=lookup(logits),
    )
    gradient, d_log_prior = chunk.backward(weights)
    d_logits = gradient.materialize().rows
    torch.testing.assert_close(chunk.nll, nll, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(d_logits.view_as(logits), weights[:, None, None] * expected[0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(d_log_prior, weights[:, None] * expected[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("num_experts, vocab_size", CHUNK_SIZES)
def test_logits_are_kept_or_overwritten_with_the_same_result(num_experts, vocab_size):
    logits, log_prior, target = draw_chunk(num_experts, vocab_size)
    results = []
    for keep in (True, False):
        given = logits.flatten(0, 1).clone()
        chunk = MixtureChunk(
            logits=given, log_prior=log_prior, target=target, keep_logits=keep, recompute_logits=lookup(logits)
        )
        gradient, d_log_prior = chunk.backward(torch.ones(CHUNK_TOKENS).double())
        results.append((chunk.loss, gradient.rows, gradient.factors, d_log_prior))
        assert torch.equal(given, logits.flatten(0, 1)) == keep
        assert (gradient.rows.data_ptr() == given.data_ptr()) != keep
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("num_experts, vocab_size", CHUNK_SIZES)
def test_the_largest_logits_give_the_same_as_a_second_look_at_improbable_words(num_experts, vocab_size):
    logits, log_prior, target = draw_chunk(num_experts, vocab_size)
    logits[:4].scatter_(2, target[:4].view(4, 1, 1).expand(4, num_experts, 1), -2000.0)
    results = []
    for again in (lookup(logits), None):
        chunk = MixtureChunk(
            logits=logits.flatten(0, 1).clone(),
            log_prior=log_prior,
            target=target,
            keep_logits=False,
            recompute_logits=again,
        )
        gradient, d_log_prior = chunk.backward(torch.ones(CHUNK_TOKENS).double())
        results.append((chunk.nll, gradient.materialize().rows, d_log_prior))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)
    assert (results[0][0][:4] > 1900).all()


def test_only_improbable_words_are_looked_at_again():
    logits, log_prior, target = draw_chunk(3, 50)
    logits[5].fill_(0)
    logits[5, :, target[5]] = -1000.0
    seen = []

    def again(tokens):
        seen.extend(tokens.tolist())
        return logits[tokens]

    MixtureChunk(
        logits=logits.flatten(0, 1).clone(),
        log_prior=log_prior,
        target=target,
        keep_logits=False,
        recompute_logits=again,
    )
    assert seen == [5]


@pytest.mark.parametrize("logit", [-30.0, 0.0, 5.0, 30.0])
def test_a_softmax_in_16_bits_keeps_the_gradient_of_a_confident_prediction(logit):
    """1 - P(target) is e^-30 at the end, which 16 bits cannot tell from P = 1."""
    logits = torch.zeros(1, 1, 100).double()
    logits[..., 7] = logit
    target = torch.tensor([7])
    expected = mixture_nll_gradients(logits, torch.ones(1, 1).double(), target)[0]
    chunk = MixtureChunk(
        logits=logits.flatten(0, 1).bfloat16(),
        log_prior=torch.zeros(1, 1),
        target=target,
        keep_logits=False,
        recompute_logits=lookup(logits.float()),
    )
    gradient, _ = chunk.backward(torch.ones(1))
    rows = (gradient.rows.double() * gradient.factors.double()).view_as(logits)
    torch.testing.assert_close(rows, expected, rtol=0.01, atol=1e-30)
    assert chunk.nll.dtype == torch.float32


def lookup(logits):
    return lambda tokens: logits[tokens]


by_maxima_or_not = pytest.mark.parametrize("by_maxima", [True, False])


def make_chunk(logits, log_prior, target, *, rate=0.1, dtype=torch.float64, keep=False, by_maxima=False):
    """A chunk of logits (n, J, V) in float64, computed in ``dtype``."""
    narrow = logits.to(dtype)
    return MixtureChunk(
        logits=narrow.flatten(0, 1).clone(),
        log_prior=log_prior if dtype == torch.float64 else log_prior.float(),
        target=target,
        keep_logits=keep,
        recompute_logits=None if by_maxima else lambda tokens: narrow[tokens],
        label_smoothing=rate,
        mean_logits=logits.mean(-1).to(torch.float64 if dtype == torch.float64 else torch.float32),
    )


def all_gradients(chunk, weights):
    """By the logits, (n, J, V), and by log pi."""
    gradient, d_log_prior = chunk.backward(weights)
    # not by materialize(), which would round to the 16 bits of the rows
    rows = gradient.rows.to(weights.dtype) * gradient.factors - gradient.uniform.view(-1, 1) / gradient.rows.size(1)
    return rows.view(*d_log_prior.shape, -1), d_log_prior


def by_formula(logits, log_prior, target, weights, rate):
    """Loss, NLL, and gradients of the weighted loss by logits and log pi."""
    leaves = logits.clone().requires_grad_(), log_prior.clone().requires_grad_()
    nll = -mixture(leaves[0], leaves[1].exp()).log().gather(-1, target.unsqueeze(-1)).squeeze(-1)
    loss = (1 - rate) * nll - rate * expert_mean(leaves[0], leaves[1].exp())
    return loss.detach(), nll.detach(), torch.autograd.grad((weights * loss).sum(), leaves)


@by_maxima_or_not
@pytest.mark.parametrize("rate", [0.1, 0.7])
@pytest.mark.parametrize("num_experts, vocab_size", CHUNK_SIZES)
def test_loss_and_gradients_are_those_of_the_formula(num_experts, vocab_size, rate, by_maxima):
    case, weights = draw_chunk(num_experts, vocab_size), torch.rand(CHUNK_TOKENS).double()
    loss, nll, expected = by_formula(*case, weights, rate)
    chunk = make_chunk(*case, rate=rate, by_maxima=by_maxima)
    torch.testing.assert_close((chunk.loss, chunk.nll), (loss, nll), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(all_gradients(chunk, weights), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 20.0])
@pytest.mark.parametrize("num_experts, vocab_size", CHUNK_SIZES)
def test_a_chunk_in_16_bits_errs_by_their_rounding(num_experts, vocab_size, scale):
    """The larger scale has logits above 88, whose exponentials are infinite."""
    logits, log_prior, target = draw_chunk(num_experts, vocab_size)
    case = (scale * logits).bfloat16().double(), log_prior, target
    weights = torch.rand(CHUNK_TOKENS).double()
    loss, nll, expected = by_formula(*case, weights, 0.1)
    chunk = make_chunk(*case, dtype=torch.bfloat16)
    assert chunk.loss.dtype == chunk.nll.dtype == torch.float32
    torch.testing.assert_close((chunk.loss.double(), chunk.nll.double()), (loss, nll), rtol=0.01, atol=0.02)
    d_logits, d_log_prior = all_gradients(chunk, weights.float())
    torch.testing.assert_close(d_logits.double(), expected[0], rtol=0.03, atol=1e-5)
    torch.testing.assert_close(d_log_prior.double(), expected[1], rtol=0.03, atol=0.005)


@pytest.mark.parametrize("logit", [-30.0, 0.0, 5.0, 30.0])
def test_16_bits_keep_what_is_left_of_a_confident_prediction(logit):
    logits = torch.zeros(1, 1, 100).double()
    logits[..., 7] = logit
    target, prior, weights = torch.tensor([7]), torch.zeros(1, 1).double(), torch.ones(1).double()
    expected = by_formula(logits, prior, target, weights, 0.1)[2][0]
    d_logits, _ = all_gradients(make_chunk(logits, prior, target, dtype=torch.bfloat16), weights.float())
    torch.testing.assert_close(d_logits.double(), expected, rtol=0.01, atol=1e-6)


@pytest.mark.parametrize("num_experts, vocab_size", CHUNK_SIZES)
def test_with_label_smoothing_logits_are_kept_or_overwritten_with_the_same_result(num_experts, vocab_size):
    case, weights = draw_chunk(num_experts, vocab_size), torch.ones(CHUNK_TOKENS).double()
    chunks = [make_chunk(*case, keep=keep) for keep in (True, False)]
    results = [(chunk.loss, *all_gradients(chunk, weights)) for chunk in chunks]
    assert all(map(torch.equal, *results))


def test_an_expert_without_prior_has_no_gradient():
    logits, log_prior, target = draw_chunk(3, 50)
    log_prior[:, 1] = float("-inf")
    log_prior = log_prior.log_softmax(-1)
    d_logits, d_log_prior = all_gradients(make_chunk(logits, log_prior, target), torch.ones(CHUNK_TOKENS).double())
    assert d_logits.isfinite().all() and (d_logits[:, 1] == 0).all() and (d_log_prior[:, 1] == 0).all()
    assert (d_logits[:, 0] != 0).all()


@by_maxima_or_not
@pytest.mark.parametrize("num_experts, vocab_size", CHUNK_SIZES)
def test_a_gradient_is_the_same_in_parts_and_in_its_rows(num_experts, vocab_size, by_maxima):
    case, weights = draw_chunk(num_experts, vocab_size), torch.rand(CHUNK_TOKENS).double()
    chunks = [make_chunk(*case, by_maxima=by_maxima) for _ in range(2)]
    rows, factors, uniform = chunks[0].backward(weights)[0].materialize()
    assert factors is None and uniform is None
    torch.testing.assert_close(rows.view(*case[0].shape), all_gradients(chunks[1], weights)[0], rtol=1e-12, atol=1e-15)
