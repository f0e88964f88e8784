"""The loss of one chunk and its gradient by the logits, in place or beside them, in float64 and in 16 bits."""

import pytest
import torch
from mixture_cases import (
    BASE,
    CHUNK_SIZES,
    CHUNK_TOKENS,
    GATE,
    assert_same,
    draw,
    draw_chunk,
    formula,
    gated_or_not,
    outcome,
    plain,
    smoothed_or_not,
)
from plain_formulas import expert_mean, mixture, mixture_nll_gradients
from rounding_errors import EPS, rms_errors

from fairseq_plugins.ops.logit_gate import Interpolation
from fairseq_plugins.ops.mixture_chunk import (
    CPU_CHUNK_BYTES,
    MIN_CHUNK_ROWS,
    LabelSmoothing,
    MixtureChunk,
    cut,
    default_chunk_size,
    even_chunk_size,
    float16_scale,
    logit_bound,
)
from fairseq_plugins.ops.mixture_loss import mixture_nll


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
def test_label_smoothing_logits_are_kept_or_overwritten_with_the_same_result(num_experts, vocab_size):
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


@pytest.mark.parametrize("token_weight, latent, weight", [(1, 1, 0), (16, 1, 0), (1, 16, 0), (1, 1, 16)])
@pytest.mark.parametrize("chunk_size", [None, 1, 100])
@pytest.mark.parametrize("num_tokens", [300, 4000])
def test_float16_gradients_of_a_frequent_word_are_finite(num_tokens, chunk_size, token_weight, latent, weight):
    """float16 ends at 65,504. These gradients stay below it, so what is formed on the way must stay below it, too."""
    case = draw(1, 50, num_tokens, 1)
    case.latents.fill_(latent)
    case.bias.zero_()
    case.weight[:25], case.weight[25:] = -weight, weight
    case.target.fill_(7)
    case.token_weights.fill_(token_weight)
    exact = outcome(formula, case)
    ours = outcome(mixture_nll, case, torch.float16, chunk_size=chunk_size)
    for name in BASE:
        assert exact[name].abs().max() < torch.finfo(torch.float16).max and ours[name].isfinite().all(), name
        # a rounding each of p - 1, of the product and of the result
        rounding = 3 * torch.finfo(torch.float16).eps * exact[name].abs().max()
        torch.testing.assert_close(ours[name].double(), exact[name], rtol=0, atol=rounding.item() + EPS)


@pytest.mark.parametrize("chunk_size", [None, 1, 100])
@pytest.mark.parametrize("num_experts", [1, 3])
@pytest.mark.parametrize("feature, logit", [(1, 256), (16, 32), (1 / 16, 2048)])
def test_float16_gradients_of_a_gate_on_large_logits_are_finite(feature, logit, num_experts, chunk_size):
    """A gate's sigmoid is a half here, so its slope is a quarter.

    The gradient by a score is a quarter of the logit times the gradient by the logit. Some of the latter are one.
    """
    case = draw(num_experts, 50, 60, 1, gate_width=1)
    for x in (case.weight, case.gate_weight, case.gate_bias):
        x.zero_()
    case.bias[:25], case.bias[25:] = -logit, logit
    case.gate_features.fill_(feature)
    case.target.fill_(7)
    case.token_weights.fill_(1)
    exact = outcome(plain, case)  # in float64, where the probability of a word may underflow: e^-2048
    ours = outcome(mixture_nll, case, torch.float16, chunk_size=chunk_size)
    for name in GATE:
        assert exact[name].abs().max() < torch.finfo(torch.float16).max and ours[name].isfinite().all(), name
        rounding = 3 * torch.finfo(torch.float16).eps * exact[name].abs().max()
        torch.testing.assert_close(ours[name].double(), exact[name], rtol=0, atol=rounding.item() + EPS)


@pytest.mark.parametrize("factor", [1e-6, 1.0, 100.0])
@pytest.mark.parametrize("row, weight", [(0.01, 0.1), (3.0, 0.1), (0.01, 300.0)])
def test_the_scale_is_a_power_of_two_that_uses_the_range_and_stays_in_it(row, weight, factor):
    rows, matrix = row * torch.randn(40, 3, 5), weight * torch.randn(7, 5)
    scale = float16_scale(rows, matrix, torch.full((40,), factor), chunk_size=10).item()
    assert torch.tensor(scale).log2().frac() == 0
    largest = factor * max(1.0, 10 * rows.abs().max().item(), 2 * matrix.abs().max().item())
    assert scale * largest <= 2**15
    assert scale * largest > 2**14 or scale == 2**25  # where all factors are tiny


@pytest.mark.parametrize("with_bias", [True, False])
def test_no_logit_exceeds_its_bound(with_bias):
    latents, weight, bias = torch.randn(9, 3, 5), torch.randn(7, 5), torch.randn(7) if with_bias else None
    logits = torch.nn.functional.linear(latents, weight, bias)
    assert logits.abs().max() <= logit_bound(latents, weight, bias) < 10 * logits.abs().max()
    aligned = torch.nn.functional.linear(weight[:1], weight[:1])
    torch.testing.assert_close(logit_bound(weight[:1], weight[:1], None), aligned.squeeze(), rtol=1e-5, atol=0)


@pytest.mark.slow
@gated_or_not
@smoothed_or_not
@pytest.mark.parametrize("loss_scale, token_weight", [(2.0**7, 1.0), (2.0**16, 2.0**-9)])
@pytest.mark.parametrize("shape", [(1, 3000, 300, 8), (3, 600, 200, 8)])
def test_a_loss_scale_saves_small_gradients_in_float16(shape, loss_scale, token_weight, smoothing, gate_width):
    options = dict(
        scale=0.3, loss_scale=loss_scale, token_weight=token_weight, label_smoothing=smoothing, gate_width=gate_width
    )
    ours, theirs = [rms_errors(function, shape, torch.float16, **options) for function in (mixture_nll, plain)]
    for name, error in ours.items():
        assert error <= 1.05 * theirs[name] + EPS * token_weight, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_experts", [1, 20, 1000])
@pytest.mark.parametrize("vocab_size", [1, 10_000, 10**7])
def test_the_default_chunk_is_the_most_tokens_that_fit_the_share_or_the_fewest_rows(vocab_size, num_experts, dtype):
    chunk_size = default_chunk_size(num_experts, vocab_size, dtype=dtype, device=torch.device("cpu"))
    num_rows = max(MIN_CHUNK_ROWS, CPU_CHUNK_BYTES // (vocab_size * dtype.itemsize))
    assert 1 <= chunk_size
    assert chunk_size * num_experts <= max(num_rows, num_experts)
    assert (chunk_size + 1) * num_experts > num_rows


@pytest.mark.parametrize("num_tokens", [0, 1, 5, 12, 13, 700])
@pytest.mark.parametrize("chunk_size", [1, 5, 12, 1000])
def test_even_chunks_are_as_many_and_differ_by_little(num_tokens, chunk_size):
    size = even_chunk_size(num_tokens, chunk_size)
    num_chunks = -(-num_tokens // chunk_size)
    assert 1 <= size <= chunk_size and -(-num_tokens // size) <= num_chunks
    assert num_tokens == 0 or size - 1 < num_tokens / num_chunks <= size


@pytest.mark.parametrize("may_skip", [False, True])
@pytest.mark.parametrize("zeros", [[], [0, 4, 5], list(range(9))])
def test_each_token_that_counts_is_in_one_chunk(zeros, may_skip):
    weights = torch.ones(9).index_fill(0, torch.tensor(zeros, dtype=torch.long), 0)
    chunks = [torch.arange(9)[chosen] for chosen in cut(weights, 4, may_skip=may_skip)]
    expected = [token for token in range(9) if not (may_skip and token in zeros)]
    assert [token for chunk in chunks for token in chunk.tolist()] == expected
    assert all(0 < len(chunk) <= 4 for chunk in chunks)


def arguments(**changes):
    """Two rows of three tokens, four experts, width five, seven words."""
    given = dict(
        latents=torch.zeros(2, 3, 4, 5),
        log_prior=torch.zeros(2, 3, 4),
        weight=torch.zeros(7, 5),
        target=torch.zeros(2, 3, dtype=torch.long),
        bias=torch.zeros(7),
        token_weights=torch.ones(2, 3),
    )
    return {**given, **changes}


def half(**changes):
    return (
        arguments(latents=torch.zeros(2, 3, 4, 5).bfloat16(), weight=torch.zeros(7, 5).bfloat16(), bias=None) | changes
    )


def test_the_arguments_that_are_changed_below_are_taken():
    assert mixture_nll(**arguments()).loss.isfinite()
    assert mixture_nll(**half()).loss.isfinite()


@pytest.mark.parametrize(
    "changes, told",
    [
        (dict(latents=torch.zeros(5)), r"latents is \(5,\): it must be \(\*, experts, width\)"),
        (dict(latents=torch.zeros(2, 3, 0, 5)), "latents is"),
        (dict(latents=torch.zeros(2, 3, 4, 0), weight=torch.zeros(7, 0)), "latents is"),
        (dict(latents=torch.zeros(2, 3, 4, 6)), r"weight is \(7, 5\): it must be \(vocabulary, 6\)"),
        (dict(weight=torch.zeros(5, 7)), r"weight is \(5, 7\): it must be \(vocabulary, 5\)"),
        (dict(weight=torch.zeros(5)), "weight is"),
        (dict(weight=torch.zeros(1, 7, 5)), "weight is"),
        (dict(weight=torch.zeros(0, 5), bias=None), "weight is"),
        (dict(log_prior=torch.zeros(2, 3, 5)), r"log_prior is \(2, 3, 5\): it must be \(2, 3, 4\)"),
        (dict(log_prior=torch.zeros(6, 4)), "log_prior is"),
        (dict(log_prior=torch.zeros(4)), "log_prior is"),
        (dict(target=torch.zeros(3, 2, dtype=torch.long)), r"target is \(3, 2\): it must be \(2, 3\)"),
        (dict(target=torch.zeros(6, dtype=torch.long)), "target is"),
        (dict(target=torch.zeros(2, 3, 4, dtype=torch.long)), "target is"),
        (dict(bias=torch.zeros(5)), r"bias is \(5,\): it must be \(7,\)"),
        (dict(bias=torch.zeros(1, 7)), "bias is"),
        (dict(bias=torch.zeros(())), "bias is"),
        (dict(token_weights=torch.ones(6)), r"token_weights is \(6,\): it must be \(2, 3\)"),
        (dict(token_weights=torch.ones(2, 1)), "token_weights is"),
        (dict(token_weights=torch.ones(())), "token_weights is"),
        (
            dict(interpolation=Interpolation(torch.ones(6), torch.ones(2, 3))),
            r"log_weight is \(6,\): it must be \(2, 3\)",
        ),
        (dict(interpolation=Interpolation(torch.ones(2, 3), torch.ones(3))), "log_other is"),
    ],
)
def test_shapes_that_do_not_fit(changes, told):
    with pytest.raises(ValueError, match=f"mixture_nll: {told}"):
        mixture_nll(**arguments(**changes))


@pytest.mark.parametrize(
    "changes, told",
    [
        (dict(latents=torch.zeros(2, 3, 4, 5, dtype=torch.long)), "latents is torch.int64"),
        (dict(target=torch.zeros(2, 3, dtype=torch.int32)), "target is torch.int32: it must be torch.int64"),
        (dict(target=torch.zeros(2, 3)), "target is torch.float32"),
        (dict(weight=torch.zeros(7, 5).double()), "weight is torch.float64, latents torch.float32"),
        (dict(weight=torch.zeros(7, 5).bfloat16()), "weight is torch.bfloat16"),
        (dict(bias=torch.zeros(7).double()), "bias is torch.float64, latents torch.float32"),
        (dict(bias=torch.zeros(7).half()), "bias is torch.float16"),
        (dict(log_prior=torch.zeros(2, 3, 4).double()), "log_prior is torch.float64: it must be torch.float32"),
        (dict(log_prior=torch.zeros(2, 3, 4).bfloat16()), "log_prior is torch.bfloat16: it must be torch.float32"),
        (
            dict(interpolation=Interpolation(torch.ones(2, 3), torch.ones(2, 3).double())),
            "log_other is torch.float64: it must be torch.float32",
        ),
        (half(log_prior=torch.zeros(2, 3, 4).bfloat16()), "log_prior is torch.bfloat16: it must be torch.float32"),
        (half(weight=torch.zeros(7, 5)), "weight is torch.float32, latents torch.bfloat16"),
        (half(bias=torch.zeros(7)), "bias is torch.float32, latents torch.bfloat16"),
    ],
)
def test_types_that_do_not_fit(changes, told):
    with pytest.raises(ValueError, match=f"mixture_nll: {told}"):
        mixture_nll(**arguments(**changes))


@pytest.mark.parametrize("name", ["log_prior", "weight", "target", "bias", "token_weights"])
def test_an_argument_on_another_device(name):
    moved = {name: arguments()[name].to("meta")}
    with pytest.raises(ValueError, match=f"mixture_nll: {name} is on meta, latents on cpu"):
        mixture_nll(**arguments(**moved))


@pytest.mark.parametrize("value", [-1, -100, 7, 10**12])
def test_a_target_that_is_no_word(value):
    target = torch.tensor([[0, 6, 3], [1, value, 2]])
    for changes in (dict(target=target), dict(target=target, token_weights=None), dict(target=target, ignore_index=0)):
        with pytest.raises(ValueError, match=rf"mixture_nll: target .*0 \.\. 6.*{value}"):
            mixture_nll(**arguments(**changes))


@pytest.mark.parametrize("value", [-1, -100, 7, 10**12])
def test_what_is_no_word_may_stand_where_it_is_ignored(value):
    target = torch.tensor([[0, 6, 3], [1, value, 2]])
    for changes in (dict(ignore_index=value), dict(token_weights=target.ne(value))):
        loss, nll = mixture_nll(**arguments(target=target, **changes))
        assert loss.isfinite() and nll[1, 1] == 0 and nll.count_nonzero() == 5


@pytest.mark.parametrize(
    "changes, told",
    [
        (dict(label_smoothing=-0.1), "label_smoothing is -0.1"),
        (dict(label_smoothing=1.0), "label_smoothing is 1.0"),
        (dict(label_smoothing=1.5), "label_smoothing is 1.5"),
        (dict(label_smoothing=float("nan")), "label_smoothing is nan"),
        (dict(chunk_size=0), "chunk_size is 0: it must be a whole number of at least 1"),
        (dict(chunk_size=-3), "chunk_size is -3"),
        (dict(reduction="mean"), 'reduction is "mean": choose "sum" or "none"'),
        (dict(reduction=""), 'reduction is ""'),
    ],
)
def test_values_that_cannot_be(changes, told):
    with pytest.raises(ValueError, match=f"mixture_nll: {told}"):
        mixture_nll(**arguments(**changes))


def test_options_are_named():
    given = arguments()
    with pytest.raises(TypeError, match="positional"):
        mixture_nll(*(given[name] for name in ("latents", "log_prior", "weight", "target", "bias")))


def test_token_weights_that_learn_are_refused():
    given = arguments()
    weights = torch.ones_like(given["target"], dtype=torch.float32).requires_grad_()
    with pytest.raises(ValueError, match="mixture_nll: token_weights requires a gradient"):
        mixture_nll(**{**given, "token_weights": weights})
    with torch.no_grad():
        mixture_nll(**{**given, "token_weights": weights})


def test_a_word_that_is_not_in_the_vocabulary_is_told_with_the_remedy():
    given = arguments()
    with pytest.raises(ValueError, match=r"words outside 0 .. \d+: \[-100.*\]; mark padding by ignore_index"):
        mixture_nll(**{**given, "target": given["target"].index_fill(0, torch.tensor([0]), -100)})
