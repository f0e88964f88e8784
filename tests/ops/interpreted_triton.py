"""Triton's kernels in its interpreter, against formulas in float64. ``test_triton_mixture.py`` runs this file in a
process of its own, because the kernels are made for the interpreter or for a GPU when they are imported."""

import plain_formulas
import pytest
import torch
from mixture_cases import draw, formula, outcome
from operations import count_launches, waits

from fairseq_plugins.ops import kernel_choice, kernels, triton_mixture
from fairseq_plugins.ops.mixture_distribution import mixture_log_probs_from_latents
from fairseq_plugins.ops.mixture_loss import mixture_nll

TRITON = kernel_choice.choose_kernels(torch.device("cpu"), "triton")  # is refused where the trial fails


def errors(ours, expected):
    return {name: (ours[name].double() - value).abs().max().item() for name, value in expected.items()}


@pytest.mark.parametrize(
    "num_experts, vocab_size, num_tokens, shape, options",
    [
        (1, 97, 9, {}, {}),
        (3, 97, 9, {}, {"label_smoothing": 0.1, "chunk_size": 4}),
        (20, 112, 3, {}, {"label_smoothing": 0.1}),
        (3, 301, 4, {"interpolated": True}, {"label_smoothing": 0.1, "chunk_size": 3}),
        (2, 33, 7, {"interpolated": True}, {"adversarial_epsilon": 0.1, "chunk_size": 6}),
        (3, 97, 5, {"gate_width": 6}, {"label_smoothing": 0.1, "chunk_size": 2}),
        (1, 5000, 3, {}, {}),
    ],
)
def test_losses_and_gradients(num_experts, vocab_size, num_tokens, shape, options):
    case = draw(num_experts, vocab_size, num_tokens, 7, **shape)
    expected = outcome(formula, case, **{name: x for name, x in options.items() if name != "chunk_size"})
    ours = outcome(mixture_nll, case, torch.float32, kernels=TRITON, **options)
    assert max(errors(ours, expected).values()) < 3e-6


def test_losses_and_gradients_are_the_same_bit_for_bit_whenever_they_are_computed():
    case = draw(3, 97, 5, 7, interpolated=True)
    ours, again = (
        outcome(mixture_nll, case, torch.float32, kernels=TRITON, label_smoothing=0.1, chunk_size=3) for _ in range(2)
    )
    assert all(torch.equal(ours[name], again[name]) for name in ours)


@pytest.mark.parametrize("dtype, given", [(torch.bfloat16, {}), (torch.float32, {"chunk_dtype": torch.bfloat16})])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_chunks_of_sixteen_bits_err_little_more_than_plain_torch(dtype, given, smoothing):
    case = draw(3, 97, 9, 16, dtype=torch.bfloat16)
    expected = outcome(formula, case, label_smoothing=smoothing)
    ours, plain = (
        errors(outcome(mixture_nll, case, dtype, kernels=one, label_smoothing=smoothing, **given), expected)
        for one in (TRITON, kernels.PLAIN)
    )
    # the interpreter truncates to 16 bits where a GPU rounds
    assert all(ours[name] <= 4 * plain[name] + 1e-6 for name in expected), (ours, plain)


@pytest.mark.parametrize("scale", [30.0, 3000.0])
def test_extreme_logits(scale):
    case = draw(3, 97, 9, 7, scale=scale)
    expected = outcome(formula, case)
    if scale > 1000:  # in probability space the formula underflows: the largest logits alone remain
        assert expected["nll"].isinf().any()
        expected = outcome(mixture_nll, case, torch.float64, kernels=kernels.CPU)
    ours = outcome(mixture_nll, case, torch.float32, kernels=TRITON)
    for name, value in expected.items():
        torch.testing.assert_close(ours[name].double(), value, rtol=1e-4, atol=1e-4 * value.abs().max().item())


def test_rows_that_begin_with_minus_infinity():
    logits = torch.randn(5000)
    logits[:4500] = -torch.inf
    latents, log_prior, weight = torch.zeros(1, 1, 1), torch.zeros(1, 1), torch.zeros(5000, 1)
    nll = mixture_nll(latents, log_prior, weight, torch.tensor([4600]), bias=logits, kernels=TRITON).nll
    torch.testing.assert_close(nll[0].double(), -torch.log_softmax(logits.double(), dim=0)[4600], rtol=1e-6, atol=1e-6)


def test_ignored_tokens_may_hold_anything():
    case = draw(3, 33, 4, 7)
    case.token_weights[0] = 0
    expected = outcome(mixture_nll, case, torch.float32, kernels=TRITON)
    case.latents[0], case.log_prior[0], case.target[0] = torch.nan, torch.nan, -100
    ours = outcome(mixture_nll, case, torch.float32, kernels=TRITON)
    assert all(torch.equal(ours[name], expected[name]) for name in expected)


def test_float64_and_an_empty_batch_take_plain_torch():
    case = draw(3, 33, 4, 7)
    expected = outcome(formula, case)
    assert max(errors(outcome(mixture_nll, case, torch.float64, kernels=TRITON), expected).values()) < 1e-10
    empty = mixture_nll(
        torch.zeros(0, 2, 3), torch.zeros(0, 2), torch.zeros(33, 3), torch.zeros(0, dtype=torch.int64), kernels=TRITON
    )
    assert empty.loss == 0 and empty.nll.shape == (0,)


@pytest.mark.parametrize("num_experts, vocab_size", [(2, 97), (20, 1100)])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_distributions_are_mixed_in_log_space(num_experts, vocab_size, scale):
    case = draw(num_experts, vocab_size, 3, 7, scale=scale)
    args = [getattr(case, name) for name in ("latents", "log_prior", "weight", "bias")]
    found = mixture_log_probs_from_latents(*(x.float() for x in args), kernels=TRITON)
    logits = args[0] @ args[2].t() + args[3]
    if scale == 1:
        expected = plain_formulas.mixture(logits, args[1].exp()).log()
    else:  # the formula underflows
        expected = torch.logsumexp(torch.log_softmax(logits, dim=-1) + args[1].unsqueeze(-1), dim=-2)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_launches_beside_the_kernels():
    def run(chunk_size):
        case = draw(3, 112, 8, 7)
        return count_launches(lambda: outcome(mixture_nll, case, torch.float32, kernels=TRITON, chunk_size=chunk_size))

    run(8)  # the first call finds out which products torch has
    one, two = run(8), run(4)
    more = two - one
    for of_interpreter in ("set_", "copy_"):
        del more[of_interpreter]
    assert not waits(one) and more.total() <= 7, more


@pytest.mark.parametrize("wrong", ["nll", "smoothed loss", "bfloat16", "interpolated", "distribution"])
def test_the_trial_finds_what_differs_in_one_of_the_variants(wrong, monkeypatch):
    chunk_class = triton_mixture.TritonChunk
    prepare, differentiate, mix = chunk_class.__init__, chunk_class.backward, triton_mixture.TritonKernels.log_mixture

    def init(self, **given):
        prepare(self, **given)
        self.nll += 0.01 * (wrong == "nll")
        self.loss += 0.01 * (wrong == "smoothed loss" and given["label_smoothing"] > 0)

    def backward(self, weights, posterior=None):
        gradient, d_log_prior = differentiate(self, weights, posterior)
        is_wrong = gradient.rows.dtype == torch.bfloat16 if wrong == "bfloat16" else posterior is not None
        gradient.rows[0, 5] += 0.1 * (wrong in ("bfloat16", "interpolated") and is_wrong)
        return gradient, d_log_prior

    def log_mixture(self, logits, log_prior, *, out):
        is_written = mix(self, logits, log_prior, out=out)
        out += 0.01 * (wrong == "distribution")
        return is_written

    monkeypatch.setattr(chunk_class, "__init__", init)
    monkeypatch.setattr(chunk_class, "backward", backward)
    monkeypatch.setattr(triton_mixture.TritonKernels, "log_mixture", log_mixture)
    assert not kernel_choice.equals_plain(triton_mixture.TRITON, torch.device("cpu"))
