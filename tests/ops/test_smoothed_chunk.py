"""The loss of one chunk with label smoothing and its gradient by the logits, in place or beside them."""

import pytest
import torch
from mixture_cases import CHUNK_SIZES, CHUNK_TOKENS, draw_chunk
from plain_formulas import expert_mean, mixture

from fairseq_plugins.ops.smoothed_chunk import SmoothedChunk


@pytest.mark.parametrize("smoothing", [0.1, 0.7])
@pytest.mark.parametrize("num_experts, vocab_size", CHUNK_SIZES)
def test_loss_and_gradients_are_those_of_the_formula(num_experts, vocab_size, smoothing):
    logits, log_prior, target = draw_chunk(num_experts, vocab_size)
    weights = torch.rand(CHUNK_TOKENS).double()
    leaves = logits.clone().requires_grad_(), log_prior.clone().requires_grad_()
    log_p = mixture(leaves[0], leaves[1].exp()).log()
    nll = -log_p.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    loss = (1 - smoothing) * nll - smoothing * expert_mean(leaves[0], leaves[1].exp())
    expected = torch.autograd.grad((weights * loss).sum(), leaves)
    chunk = SmoothedChunk(
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


@pytest.mark.parametrize("num_experts, vocab_size", CHUNK_SIZES)
def test_smoothed_logits_are_kept_or_overwritten_with_the_same_result(num_experts, vocab_size):
    logits, log_prior, target = draw_chunk(num_experts, vocab_size)
    results = []
    for keep in (True, False):
        given = logits.flatten(0, 1).clone()
        chunk = SmoothedChunk(logits=given, log_prior=log_prior, target=target, label_smoothing=0.1, keep_logits=keep)
        gradient, d_log_prior = chunk.backward(torch.ones(CHUNK_TOKENS).double())
        d_logits = gradient.multiplied()
        results.append((chunk.loss, d_logits, d_log_prior))
        assert torch.equal(given, logits.flatten(0, 1)) == keep
        assert (d_logits.data_ptr() == given.data_ptr()) != keep
    assert all(map(torch.equal, *results))
