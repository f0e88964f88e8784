"""Margins of adversarial training."""

import pytest
import torch

from fairseq_plugins.ops.target_margins import TargetMargins, adversarial_margins


@pytest.mark.parametrize("num_experts", [1, 4])
def test_margins_are_the_worst_that_a_small_change_of_the_label_can_do(num_experts):
    """min over |d| <= eps |w_y| of (w_y + d) . k is w_y . k - eps |w_y| |k|, at d against k."""
    latents, weight = torch.randn(30, num_experts, 6).double(), torch.randn(9, 6).double()
    target = torch.randint(9, (30,))
    margins = adversarial_margins(latents, weight, target, epsilon=0.2)
    labels = weight[target].unsqueeze(1)
    change = -0.2 * labels.norm(dim=-1, keepdim=True) * latents / latents.norm(dim=-1, keepdim=True)
    before, after = (labels * latents).sum(-1), ((labels + change) * latents).sum(-1)
    expected = torch.where(before > 0, before - after, 0.0)
    assert expected.any() and not expected.all()
    torch.testing.assert_close(margins.values, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("num_experts", [1, 4])
def test_margins_have_a_gradient_by_latents(num_experts):
    """The change of the label is a constant, what it is multiplied by is not: d (eps |w_y| |k|) / dk."""
    latents = torch.randn(30, num_experts, 6, dtype=torch.float64, requires_grad=True)
    weight, target = torch.randn(9, 6).double(), torch.randint(9, (30,))
    d_logits = torch.randn(30, num_experts).double()
    margins = adversarial_margins(latents.detach(), weight, target, epsilon=0.2)
    labels = weight[target].unsqueeze(1)
    lowered = -0.2 * labels.norm(dim=-1) * latents.norm(dim=-1) * ((labels * latents).sum(-1) > 0)
    (expected,) = torch.autograd.grad((d_logits * lowered).sum(), latents)
    found = margins.latent_gradient(d_logits, latents.detach())
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def test_latents_too_short_to_measure_have_no_margin():
    latents, weight = torch.full((1, 1, 4), 1e-30), torch.full((2, 4), 1e20)
    margins = adversarial_margins(latents, weight, torch.tensor([1]), epsilon=0.1)
    assert margins.values.item() == margins.slopes.item() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_targets_are_lowered(dtype):
    logits, target = torch.randn(12, 7).to(dtype), torch.tensor([6, 0, 3, 3])
    margins = TargetMargins(target, torch.rand(4, 3), torch.rand(4, 3))
    lowered = logits.clone()
    margins.subtract(lowered)
    expected = logits.clone().view(4, 3, 7)
    for n, word in enumerate(target):
        expected[n, :, word] = (expected[n, :, word].float() - margins.values[n]).to(dtype)
    assert torch.equal(lowered, expected.flatten(0, 1))


def test_margins_of_a_chunk():
    margins = TargetMargins(torch.arange(5), torch.rand(5, 2), torch.rand(5, 2))
    for chosen in (slice(1, 4), torch.tensor([0, 4])):
        part = margins.of_tokens(chosen)
        assert all(torch.equal(mine, theirs[chosen]) for mine, theirs in zip(part, margins))


def test_margins_of_narrow_latents_are_wide():
    latents, weight = 300 * torch.ones(2, 3, 4, dtype=torch.float16), 300 * torch.ones(5, 4, dtype=torch.float16)
    margins = adversarial_margins(latents, weight, torch.tensor([0, 4]), epsilon=0.1)
    torch.testing.assert_close(margins.values, torch.full((2, 3), 36_000.0))
