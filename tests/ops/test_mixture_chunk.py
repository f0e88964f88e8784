"""The loss of one chunk and its gradient by the logits, in place or beside them, in float64 and in 16 bits."""

import pytest
import torch
from mixture_cases import CHUNK_SIZES, CHUNK_TOKENS, draw_chunk
from plain_formulas import mixture, mixture_nll_gradients

from fairseq_plugins.ops.mixture_chunk import MixtureChunk


@pytest.mark.parametrize("num_experts, vocab_size", CHUNK_SIZES)
def test_nll_and_gradients_are_those_of_the_papers(num_experts, vocab_size):
    logits, log_prior, target = draw_chunk(num_experts, vocab_size)
    weights = torch.rand(CHUNK_TOKENS).double()
    expected = mixture_nll_gradients(logits, log_prior.exp(), target)
    nll = -mixture(logits, log_prior.exp()).gather(-1, target.unsqueeze(-1)).squeeze(-1).log()
    chunk = MixtureChunk(
        logits=logits.flatten(0, 1), log_prior=log_prior, target=target, keep_logits=True, logits_of=logits_of(logits)
    )
    gradient, _, d_log_prior = chunk.backward(weights)
    d_logits = gradient.multiplied()
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
            logits=given, log_prior=log_prior, target=target, keep_logits=keep, logits_of=logits_of(logits)
        )
        gradient, _, d_log_prior = chunk.backward(torch.ones(CHUNK_TOKENS).double())
        results.append((chunk.loss, *gradient, d_log_prior))
        assert torch.equal(given, logits.flatten(0, 1)) == keep
        assert (gradient.rows.data_ptr() == given.data_ptr()) != keep
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("num_experts, vocab_size", CHUNK_SIZES)
def test_the_largest_logits_give_the_same_as_a_second_look_at_improbable_words(num_experts, vocab_size):
    logits, log_prior, target = draw_chunk(num_experts, vocab_size)
    logits[:4].scatter_(2, target[:4].view(4, 1, 1).expand(4, num_experts, 1), -2000.0)
    results = []
    for again in (logits_of(logits), None):
        chunk = MixtureChunk(
            logits=logits.flatten(0, 1).clone(), log_prior=log_prior, target=target, keep_logits=False, logits_of=again
        )
        gradient, _, d_log_prior = chunk.backward(torch.ones(CHUNK_TOKENS).double())
        results.append((chunk.nll, gradient.multiplied(), d_log_prior))
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
        logits=logits.flatten(0, 1).clone(), log_prior=log_prior, target=target, keep_logits=False, logits_of=again
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
        logits_of=logits_of(logits.float()),
    )
    gradient, _, _ = chunk.backward(torch.ones(1))
    rows = (gradient.rows.double() * gradient.factors.double()).view_as(logits)
    torch.testing.assert_close(rows, expected, rtol=0.01, atol=1e-30)
    assert chunk.nll.dtype == torch.float32


def logits_of(logits):
    return lambda tokens: logits[tokens]
