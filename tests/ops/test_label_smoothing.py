"""The loss of one chunk with label smoothing and its gradients, in place or beside the logits, wide and in 16 bits."""

import pytest
import torch
from mixture_cases import CHUNK_SIZES, CHUNK_TOKENS, assert_same, draw, draw_chunk, formula, outcome
from plain_formulas import expert_mean, mixture

from fairseq_plugins.ops.label_smoothing import LabelSmoothing
from fairseq_plugins.ops.mixture_chunk import MixtureChunk
from fairseq_plugins.ops.mixture_nll import mixture_nll

by_maxima_or_not = pytest.mark.parametrize("by_maxima", [True, False])


def make_chunk(logits, log_prior, target, *, rate=0.1, dtype=torch.float64, keep=False, by_maxima=False):
    """A chunk of logits (n, J, V) in float64, computed in ``dtype``."""
    narrow = logits.to(dtype)
    return MixtureChunk(
        logits=narrow.flatten(0, 1).clone(),
        log_prior=log_prior if dtype == torch.float64 else log_prior.float(),
        target=target,
        keep_logits=keep,
        logits_of=None if by_maxima else lambda tokens: narrow[tokens],
        smoothing=LabelSmoothing(rate, logits.mean(-1).to(torch.float64 if dtype == torch.float64 else torch.float32)),
    )


def all_gradients(chunk, weights):
    """By the logits, (n, J, V), and by log pi."""
    gradient, uniform, d_log_prior = chunk.backward(weights)
    rows = gradient.rows.to(weights.dtype) * gradient.factors - uniform.view(-1, 1) / gradient.rows.size(1)
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
def test_logits_are_kept_or_overwritten_with_the_same_result(num_experts, vocab_size):
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
