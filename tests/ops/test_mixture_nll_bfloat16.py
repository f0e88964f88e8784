"""A chunk in bfloat16 while the tensors stay in float32: its loss has no bias, its gradients err by less than 1 %."""

from functools import partial

import pytest
import torch
from mixture_cases import call, draw, formula, outcome
from nearness import assert_near
from tensor_sizes import TensorSizes

from fairseq_plugins.ops.mixture_log_probs import mixture_log_probs_from_latents
from fairseq_plugins.ops.mixture_nll import mixture_nll

MAX_GRADIENT_ERROR = 0.01
MAX_LOSS_BIAS = 1e-4
NUM_TOKENS = 2000

narrow_nll = partial(mixture_nll, chunk_dtype=torch.bfloat16)


def assert_safe(case, **options):
    ours = outcome(narrow_nll, case, torch.float32, **options)
    exact = outcome(formula, case, **options)
    assert abs(ours["loss"].double() / exact["loss"] - 1) < MAX_LOSS_BIAS
    for name in case.learned:
        error = (ours[name].double() - exact[name]).norm() / exact[name].norm()
        assert error < MAX_GRADIENT_ERROR, name
        assert ours[name].dtype == torch.float32


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("gate_width", [None, 6], ids=["no gate", "gated"])
@pytest.mark.parametrize("num_experts", [1, 3])
@pytest.mark.parametrize("scale", [1, 3])
def test_random_weights(scale, num_experts, gate_width, smoothing):
    case = draw(num_experts, 1000, NUM_TOKENS, 64, scale=scale, gate_width=gate_width)
    case.token_weights.fill_(1)
    assert_safe(case, label_smoothing=smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("gate_width", [None, 6], ids=["no gate", "gated"])
@pytest.mark.parametrize("num_experts", [1, 3])
@pytest.mark.parametrize("epsilon", [0.005, 0.1])
def test_adversarial_margins(epsilon, num_experts, gate_width, smoothing):
    case = draw(num_experts, 1000, NUM_TOKENS, 64, scale=3, gate_width=gate_width)
    case.token_weights.fill_(1)
    assert_safe(case, label_smoothing=smoothing, adversarial_epsilon=epsilon)


@pytest.mark.parametrize("num_experts", [1, 3])
def test_trained_weights(num_experts):
    """Trained on one text, on another of the same language."""
    truth = draw(num_experts, 1000, 2 * NUM_TOKENS, 64, scale=3)
    probs = (torch.softmax(truth.latents @ truth.weight.T, -1) * truth.log_prior.exp().unsqueeze(-1)).sum(-2)
    target = torch.multinomial(probs, 1).squeeze(1)
    weights = [torch.zeros_like(x, dtype=torch.float32).requires_grad_() for x in (truth.weight, truth.bias)]
    optimiser = torch.optim.Adam(weights, lr=0.02)
    losses = []
    for _ in range(50):
        seen = truth.latents[:NUM_TOKENS].float(), truth.log_prior[:NUM_TOKENS].float()
        loss = mixture_nll(*seen, weights[0], target[:NUM_TOKENS], bias=weights[1]).loss / NUM_TOKENS
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    case = draw(num_experts, 1000, NUM_TOKENS, 64)
    case.latents, case.log_prior, case.target = (
        truth.latents[NUM_TOKENS:],
        truth.log_prior[NUM_TOKENS:],
        target[NUM_TOKENS:],
    )
    case.weight, case.bias = (weight.detach().double() for weight in weights)
    case.token_weights.fill_(1)
    assert_safe(case)


@pytest.mark.parametrize("num_experts", [1, 3])
@pytest.mark.parametrize("scale", [80.0, 300.0, 3e38])
def test_logits_beyond_the_exponential_are_scored_all_the_same(scale, num_experts):
    """e^z would be infinite, or zero for all words of a row."""
    latents, weight = torch.zeros(6, num_experts, 2), torch.zeros(11, 2)
    log_prior, target = torch.full((6, num_experts), 1 / num_experts).log(), torch.arange(6)
    for sign in (1, -1):
        bias = torch.full((11,), sign * scale).requires_grad_()
        loss, nll = narrow_nll(latents, log_prior, weight, target, bias=bias)
        torch.testing.assert_close(nll, torch.full((6,), 11.0).log(), rtol=0.01, atol=0)
        assert torch.autograd.grad(loss, bias)[0].isfinite().all()


@pytest.mark.parametrize("size, num_looks", [(1.0, 0), (-60.0, 0), (-200.0, 1)])
def test_exponentials_beyond_the_numbers_are_seen(size, num_looks, monkeypatch):
    """Centred on the targets' row, the third word's logit is -2 ``size``."""
    looks = []
    softmax = torch.softmax
    monkeypatch.setattr(torch, "softmax", lambda *args, **kwargs: looks.append(args) or softmax(*args, **kwargs))
    weight = torch.tensor([[1.0], [1.0], [-1.0]])
    narrow_nll(torch.full((2, 1, 1), size / 2), torch.zeros(2, 1), weight, torch.tensor([0, 1]))
    assert len(looks) == num_looks


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_tensors_of_any_type_have_gradients_of_their_own(dtype):
    case = draw(3, 50, 20, 8, dtype=torch.float16)
    ours, exact = outcome(narrow_nll, case, dtype), outcome(formula, case)
    for name in case.learned:
        assert ours[name].dtype == (torch.promote_types(dtype, torch.float32) if name == "log_prior" else dtype)
        assert_near(ours[name], exact[name])


def test_a_chunk_takes_half_the_memory():
    case = draw(3, 5000, 60, 4)
    leaves = case.leaves(torch.float32)
    largest = []
    for function in (mixture_nll, narrow_nll):
        with TensorSizes() as sizes:
            call(function, case, leaves, chunk_size=20)
        largest.append(sizes.largest_bytes)
    assert largest == [20 * 3 * 5000 * 4, 20 * 3 * 5000 * 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_no_other_type_is_taken(dtype):
    case = draw(3, 11, 10, 5)
    with pytest.raises(ValueError, match="chunk_dtype is torch.*choose torch.bfloat16 or None"):
        call(mixture_nll, case, case.leaves(torch.float32), chunk_dtype=dtype)


@pytest.mark.parametrize("num_experts", [1, 4])
def test_log_probs_in_bfloat16_are_near_and_in_float32(num_experts):
    latents, weight, bias = torch.randn(30, num_experts, 16), torch.randn(200, 16) / 4, torch.randn(200)
    log_prior = torch.log_softmax(torch.randn(30, num_experts), -1)
    exact = mixture_log_probs_from_latents(latents, log_prior, weight, bias)
    near = mixture_log_probs_from_latents(latents, log_prior, weight, bias, chunk_dtype=torch.bfloat16)
    assert near.dtype == torch.float32 and not torch.equal(near, exact)
    torch.testing.assert_close(near, exact, rtol=0, atol=0.08)
    torch.testing.assert_close(near.exp().sum(-1), torch.ones(30), rtol=0, atol=0.01)


@pytest.mark.parametrize("scale", [1.0, 30.0, 300.0])
def test_log_probs_in_bfloat16_of_logits_beyond_the_exponential(scale):
    latents, weight = torch.randn(40, 4, 2), torch.randn(50, 2) * scale
    log_prior = torch.log_softmax(torch.randn(40, 4), -1)
    exact = mixture_log_probs_from_latents(latents, log_prior, weight)
    near = mixture_log_probs_from_latents(latents, log_prior, weight, chunk_dtype=torch.bfloat16)
    assert near.isfinite().all()
    largest_logit = (latents.abs().flatten(0, 1) @ weight.abs().T).max()
    torch.testing.assert_close(near, exact, rtol=0, atol=0.03 + 4 * 2**-9 * largest_logit.item())


@pytest.mark.parametrize("logits", [(86.0, 87.0), (-80.0, -93.0), (-86.0, -91.0)])
def test_log_probs_in_bfloat16_of_an_expert_at_the_end_of_the_numbers(logits):
    """The other expert is near zero, so that their sum alone looks well."""
    latents, weight = torch.eye(2).unsqueeze(0), torch.zeros(8, 2)
    weight[:, 0], weight[3, 0] = logits
    log_prior = torch.full((1, 2), 0.5).log()
    exact = mixture_log_probs_from_latents(latents, log_prior, weight)
    near = mixture_log_probs_from_latents(latents, log_prior, weight, chunk_dtype=torch.bfloat16)
    torch.testing.assert_close(near, exact, rtol=0, atol=0.5)


def test_a_word_that_is_forbidden_and_ignored_does_no_harm():
    case = draw(2, 11, 10, 5)
    leaves = case.leaves(torch.float32)
    bias = leaves["bias"].detach().clone()
    bias[3] = -torch.inf
    case.target[:4] = 3
    case.target[4:] = torch.arange(6) % 3
    for function in (mixture_nll, narrow_nll):
        loss = function(
            leaves["latents"], leaves["log_prior"], leaves["weight"], case.target, bias=bias, ignore_index=3
        ).loss
        assert loss.isfinite()
