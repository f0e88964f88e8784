"""The size of a chunk, its gradient in place or beside the logits, and its precision.

test_mixture_loss.py has its formula.
"""

import pytest
import torch
from plain_formulas import expert_mean, mixture

from fairseq_plugins.ops.mixture_chunk import (
    CPU_CHUNK_BYTES,
    MIN_CHUNK_ROWS,
    MixtureChunk,
    default_chunk_size,
    even_chunk_size,
    float16_scale,
)

NUM_TOKENS = 9

every_size = pytest.mark.parametrize("num_experts, vocab_size", [(1, 123), (20, 57)])


def draw_chunk(num_experts, vocab_size):
    """Logits (n, J, V), log pi (n, J) and targets (n) of a chunk, in float64."""
    logits = 3 * torch.randn(NUM_TOKENS, num_experts, vocab_size).double()
    log_prior = torch.log_softmax(torch.randn(NUM_TOKENS, num_experts).double(), dim=-1)
    return logits, log_prior, torch.randint(vocab_size, (NUM_TOKENS,))


def make_chunk(logits, log_prior, target, *, rate=0.1, dtype=torch.float64, keep=False, by_maxima=False):
    """A chunk of logits (n, J, V) in float64, computed in ``dtype``."""
    narrow, wide = logits.to(dtype), torch.promote_types(dtype, torch.float32)
    given = narrow.flatten(0, 1).clone()
    chunk = MixtureChunk(
        logits=given,
        log_prior=log_prior.to(wide),
        target=target,
        keep_logits=keep,
        recompute_logits=None if by_maxima else lambda tokens: narrow[tokens],
        label_smoothing=rate,
        mean_logits=logits.mean(-1).to(wide) if rate else None,
    )
    chunk.given = given
    return chunk


def all_gradients(chunk, weights):
    """By the logits, (n, J, V), and by log pi."""
    gradient, d_log_prior = chunk.backward(weights)
    # not by materialize(), which would round to the 16 bits of the rows
    rows = gradient.rows.to(weights.dtype) * gradient.factors
    if gradient.uniform is not None:
        rows = rows - gradient.uniform.view(-1, 1) / rows.size(1)
    return rows.view(*d_log_prior.shape, -1), d_log_prior


def by_formula(logits, log_prior, target, weights, rate):
    """Loss, NLL, and gradients of the weighted loss by logits and log pi."""
    leaves = logits.clone().requires_grad_(), log_prior.clone().requires_grad_()
    nll = -mixture(leaves[0], leaves[1].exp()).log().gather(-1, target.unsqueeze(-1)).squeeze(-1)
    loss = (1 - rate) * nll - rate * expert_mean(leaves[0], leaves[1].exp())
    return loss.detach(), nll.detach(), torch.autograd.grad((weights * loss).sum(), leaves)


@pytest.mark.parametrize("rate", [0.0, 0.1])
@every_size
def test_logits_are_kept_or_overwritten_with_the_same_result(num_experts, vocab_size, rate):
    case = draw_chunk(num_experts, vocab_size)
    results = []
    for keep in (True, False):
        chunk, given = make_chunk(*case, rate=rate, keep=keep), case[0].flatten(0, 1).clone()
        gradient, d_log_prior = chunk.backward(torch.ones(NUM_TOKENS).double())
        results.append((chunk.loss, gradient.rows, gradient.factors, d_log_prior))
        assert torch.equal(chunk.given, given) == keep
        assert (gradient.rows.data_ptr() == chunk.given.data_ptr()) != keep
    assert all(map(torch.equal, *results))


@every_size
def test_the_largest_logits_give_the_same_as_a_second_look_at_improbable_words(num_experts, vocab_size):
    logits, log_prior, target = draw_chunk(num_experts, vocab_size)
    logits[:4].scatter_(2, target[:4].view(4, 1, 1).expand(4, num_experts, 1), -2000.0)
    results = []
    for by_maxima in (False, True):
        chunk = make_chunk(logits, log_prior, target, rate=0.0, by_maxima=by_maxima)
        results.append((chunk.nll, *all_gradients(chunk, torch.ones(NUM_TOKENS).double())))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)
    assert (results[0][0][:4] > 1900).all()


def test_only_improbable_words_are_looked_at_again():
    logits, log_prior, target = draw_chunk(3, 50)
    logits[5].fill_(0)
    logits[5, :, target[5]] = -1000.0
    seen = []
    MixtureChunk(
        logits=logits.flatten(0, 1).clone(),
        log_prior=log_prior,
        target=target,
        keep_logits=False,
        recompute_logits=lambda tokens: seen.extend(tokens.tolist()) or logits[tokens],
    )
    assert seen == [5]


@pytest.mark.parametrize("scale", [1.0, 20.0])
@every_size
def test_a_chunk_in_16_bits_errs_by_their_rounding(num_experts, vocab_size, scale):
    """The larger scale has logits above 88, whose exponentials are infinite."""
    logits, log_prior, target = draw_chunk(num_experts, vocab_size)
    case = (scale * logits).bfloat16().double(), log_prior, target
    weights = torch.rand(NUM_TOKENS).double()
    loss, nll, expected = by_formula(*case, weights, 0.1)
    chunk = make_chunk(*case, dtype=torch.bfloat16)
    assert chunk.loss.dtype == chunk.nll.dtype == torch.float32
    torch.testing.assert_close((chunk.loss.double(), chunk.nll.double()), (loss, nll), rtol=0.01, atol=0.02)
    d_logits, d_log_prior = all_gradients(chunk, weights.float())
    torch.testing.assert_close(d_logits.double(), expected[0], rtol=0.03, atol=1e-5)
    torch.testing.assert_close(d_log_prior.double(), expected[1], rtol=0.03, atol=0.005)


@pytest.mark.parametrize("rate, atol", [(0.0, 1e-30), (0.1, 1e-6)])
@pytest.mark.parametrize("logit", [-30.0, 0.0, 5.0, 30.0])
def test_16_bits_keep_what_is_left_of_a_confident_prediction(logit, rate, atol):
    """1 - P(target) is e^-30 at the end, which 16 bits cannot tell from P = 1."""
    logits = torch.zeros(1, 1, 100).double()
    logits[..., 7] = logit
    target, prior, weights = torch.tensor([7]), torch.zeros(1, 1).double(), torch.ones(1).double()
    expected = by_formula(logits, prior, target, weights, rate)[2][0]
    chunk = make_chunk(logits, prior, target, rate=rate, dtype=torch.bfloat16)
    d_logits = all_gradients(chunk, weights if rate == 0 else weights.float())[0]
    torch.testing.assert_close(d_logits.double(), expected, rtol=0.01, atol=atol)


# sizes of chunks


@pytest.mark.parametrize(
    "vocab_size, num_experts, dtype",
    [(1, 20, torch.float32), (10_000, 1, torch.float64), (10_000, 1000, torch.float32), (10**7, 20, torch.float64)],
)
def test_the_default_chunk_is_the_most_tokens_that_fit_the_share_or_the_fewest_rows(vocab_size, num_experts, dtype):
    chunk_size = default_chunk_size(num_experts, vocab_size, dtype=dtype, device=torch.device("cpu"))
    num_rows = max(MIN_CHUNK_ROWS, CPU_CHUNK_BYTES // (vocab_size * dtype.itemsize))
    assert 1 <= chunk_size
    assert chunk_size * num_experts <= max(num_rows, num_experts)
    assert (chunk_size + 1) * num_experts > num_rows


@pytest.mark.parametrize("num_tokens, chunk_size", [(0, 12), (1, 1), (12, 12), (13, 12), (700, 12), (700, 1000)])
def test_even_chunks_are_as_many_and_differ_by_little(num_tokens, chunk_size):
    size = even_chunk_size(num_tokens, chunk_size)
    num_chunks = -(-num_tokens // chunk_size)
    assert 1 <= size <= chunk_size and -(-num_tokens // size) <= num_chunks
    assert num_tokens == 0 or size - 1 < num_tokens / num_chunks <= size


@pytest.mark.parametrize("factor", [1e-6, 1.0, 100.0])
@pytest.mark.parametrize("row, weight", [(0.01, 0.1), (3.0, 0.1), (0.01, 300.0)])
def test_the_scale_is_a_power_of_two_that_uses_the_range_and_stays_in_it(row, weight, factor):
    rows, matrix = row * torch.randn(40, 3, 5), weight * torch.randn(7, 5)
    scale = float16_scale(rows, matrix, torch.full((40,), factor), chunk_size=10).item()
    assert torch.tensor(scale).log2().frac() == 0
    largest = factor * max(1.0, 10 * rows.abs().max().item(), 2 * matrix.abs().max().item())
    assert scale * largest <= 2**15
    assert scale * largest > 2**14 or scale == 2**25  # where all factors are tiny
