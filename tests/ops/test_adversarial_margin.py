"""Margins by themselves; their loss and gradients are tested in ``test_mixture_loss.py``."""

import torch

from fairseq_plugins.ops.adversarial_margin import adversarial_margins


def test_latents_too_short_to_measure_have_no_margin():
    latents, weight = torch.full((1, 1, 4), 1e-30), torch.full((2, 4), 1e20)
    margins = adversarial_margins(latents, weight, torch.tensor([1]), epsilon=0.1)
    assert margins.values.item() == margins.slopes.item() == 0


def test_margins_of_narrow_latents_are_wide():
    latents, weight = 300 * torch.ones(2, 3, 4, dtype=torch.float16), 300 * torch.ones(5, 4, dtype=torch.float16)
    margins = adversarial_margins(latents, weight, torch.tensor([0, 4]), epsilon=0.1)
    torch.testing.assert_close(margins.values, torch.full((2, 3), 36_000.0))
