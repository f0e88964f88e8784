"""The loss of one chunk with label smoothing and its gradient by the logits, in place or beside them."""

import pytest
import torch
from mixture_cases import CHUNK_SIZES, CHUNK_TOKENS, draw_chunk
from plain_formulas import mixture

from fairseq_plugins.ops.mixture_nll import mixture_nll
from fairseq_plugins.ops.smoothed_chunk import SmoothedChunk
from fairseq_plugins.ops.smoothed_mixture_chunk import SmoothedMixtureChunk

by_logarithms_or_not = pytest.mark.parametrize("chunk_class", [SmoothedChunk, SmoothedMixtureChunk])


@by_logarithms_or_not
@pytest.mark.parametrize("smoothing", [0.1, 0.7])
@pytest.mark.parametrize("num_experts, vocab_size", CHUNK_SIZES)
def test_loss_and_gradients_are_those_of_the_formula(num_experts, vocab_size, smoothing, chunk_class):
    logits, log_prior, target = draw_chunk(num_experts, vocab_size)
    weights = torch.rand(CHUNK_TOKENS).double()
    leaves = logits.clone().requires_grad_(), log_prior.clone().requires_grad_()
    log_p = mixture(leaves[0], leaves[1].exp()).log()
    nll = -log_p.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    loss = (1 - smoothing) * nll - smoothing * log_p.mean(dim=-1)
    expected = torch.autograd.grad((weights * loss).sum(), leaves)
    chunk = chunk_class(
        logits=logits.flatten(0, 1),
        log_prior=log_prior,
        target=target,
        label_smoothing=smoothing,
        keep_logits=True,
    )
    gradient, d_log_prior = chunk.backward(weights)
    torch.testing.assert_close((chunk.nll, chunk.loss), (nll.detach(), loss.detach()), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(gradient.multiplied().view_as(logits), expected[0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(d_log_prior, expected[1], rtol=1e-9, atol=1e-12)


@by_logarithms_or_not
@pytest.mark.parametrize("num_experts, vocab_size", CHUNK_SIZES)
def test_smoothed_logits_are_kept_or_overwritten_with_the_same_result(num_experts, vocab_size, chunk_class):
    logits, log_prior, target = draw_chunk(num_experts, vocab_size)
    results = []
    for keep in (True, False):
        given = logits.flatten(0, 1).clone()
        chunk = chunk_class(logits=given, log_prior=log_prior, target=target, label_smoothing=0.1, keep_logits=keep)
        gradient, d_log_prior = chunk.backward(torch.ones(CHUNK_TOKENS).double())
        d_logits = gradient.multiplied()
        results.append((chunk.loss, d_logits, d_log_prior))
        assert torch.equal(given, logits.flatten(0, 1)) == keep
        assert (d_logits.data_ptr() == given.data_ptr()) != keep
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("lowest", [-40.0, -2000.0])
def test_an_improbable_word_makes_the_chunk_inexact(lowest, keep):
    """Whatever word it is, for the logarithms of all are summed."""
    logits, log_prior, target = (x.float() if x.is_floating_point() else x for x in draw_chunk(3, 50))
    logits[5, :, (target[5] + 1) % 50] = lowest
    chunk = SmoothedMixtureChunk(
        logits=logits.flatten(0, 1), log_prior=log_prior, target=target, label_smoothing=0.1, keep_logits=keep
    )
    assert chunk.is_exact == (lowest == -40.0)


@pytest.mark.parametrize("scale, expected", [(1.0, SmoothedMixtureChunk), (1000.0, SmoothedChunk)])
def test_a_chunk_that_is_not_exact_is_computed_by_logarithms(scale, expected, monkeypatch):
    taken = []
    for chunk_class in (SmoothedChunk, SmoothedMixtureChunk):
        backward = chunk_class.backward
        monkeypatch.setattr(
            chunk_class,
            "backward",
            lambda self, *args, backward=backward: taken.append(type(self)) or backward(self, *args),
        )
    latents = (scale * torch.randn(6, 3, 4)).requires_grad_()
    log_prior, weight, target = torch.randn(6, 3).log_softmax(-1), torch.randn(9, 4), torch.randint(9, (6,))
    mixture_nll(latents, log_prior, weight, target, label_smoothing=0.1)
    assert taken == [expected]
