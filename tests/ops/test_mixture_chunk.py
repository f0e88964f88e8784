"""The loss of one chunk and its gradient by the logits, in place or beside them."""

import pytest
import torch
from mixture_cases import smoothed_or_not
from plain_formulas import mixture, mixture_nll_gradients

from fairseq_plugins.ops.mixture_chunk import MixtureChunk

SIZES = [(1, 123), (3, 252), (20, 507)]
NUM_TOKENS = 9


def draw(num_experts, vocab_size):
    logits = 3 * torch.randn(NUM_TOKENS, num_experts, vocab_size).double()
    log_prior = torch.log_softmax(torch.randn(NUM_TOKENS, num_experts).double(), dim=-1)
    return logits, log_prior, torch.randint(vocab_size, (NUM_TOKENS,))


@pytest.mark.parametrize("num_experts, vocab_size", SIZES)
def test_nll_and_gradients_are_those_of_the_papers(num_experts, vocab_size):
    logits, log_prior, target = draw(num_experts, vocab_size)
    weights = torch.rand(NUM_TOKENS).double()
    expected = mixture_nll_gradients(logits, log_prior.exp(), target)
    nll = -mixture(logits, log_prior.exp()).gather(-1, target.unsqueeze(-1)).squeeze(-1).log()
    chunk = MixtureChunk(
        logits=logits.flatten(0, 1), log_prior=log_prior, target=target, label_smoothing=0.0, keep_logits=True
    )
    d_logits, d_log_prior = chunk.backward(weights)
    torch.testing.assert_close(chunk.nll, nll, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(d_logits.view_as(logits), weights[:, None, None] * expected[0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(d_log_prior, weights[:, None] * expected[1], rtol=1e-9, atol=1e-12)


@smoothed_or_not
@pytest.mark.parametrize("num_experts, vocab_size", SIZES)
def test_logits_are_kept_or_overwritten_with_the_same_result(num_experts, vocab_size, smoothing):
    logits, log_prior, target = draw(num_experts, vocab_size)
    results = []
    for keep in (True, False):
        given = logits.flatten(0, 1).clone()
        chunk = MixtureChunk(
            logits=given, log_prior=log_prior, target=target, label_smoothing=smoothing, keep_logits=keep
        )
        d_logits, d_log_prior = chunk.backward(torch.ones(NUM_TOKENS).double())
        results.append((chunk.loss, d_logits, d_log_prior))
        assert torch.equal(given, logits.flatten(0, 1)) == keep
        assert (d_logits.data_ptr() == given.data_ptr()) != keep
    assert all(map(torch.equal, *results))
