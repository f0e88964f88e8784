"""Comparison of language models by word frequency, against loops written out."""

import math

import pytest
import torch
from plain_formulas import softmax

from fairseq_plugins.evaluation.analyses import frequency_bands
from fairseq_plugins.evaluation.analyses.frequency_bands import compare_bands, losses_by_type
from fairseq_plugins.evaluation.perplexity import evaluate_perplexity

V = 23


def test_losses_by_type_add_up_to_the_loss_and_are_those_of_each_word(build_tiny_lm):
    model, tokens = build_tiny_lm("tied").double(), torch.randint(V, (301,))
    losses = losses_by_type([model], tokens, vocab_size=V, window=17)
    assert losses.sum().item() == pytest.approx(evaluate_perplexity([model], tokens, unknown=3).nll * 300, rel=1e-12)
    log_probs, _ = model.eval()(tokens[None, :-1])
    nll = -softmax(log_probs[0]).log()
    expected = [sum(nll[i, word].item() for i in range(300) if tokens[i + 1] == word) for word in range(V)]
    assert losses.tolist() == pytest.approx(expected, rel=1e-10)


def test_bands_by_hand():
    train_counts = torch.tensor([900, 0, 1, 49, 50, 60, 5000])
    counts = torch.tensor([10, 1, 2, 1, 3, 0, 4])
    baseline = torch.tensor([1.0, 1.0, 6.0, 3.0, 9.0, 0.0, 2.0])
    other = torch.tensor([9.0, 9.0, 4.0, 4.0, 10.0, 0.0, 2.0])
    low, middle, high = compare_bands(baseline, other, train_counts=train_counts, counts=counts, excluded=[0])
    assert (low.lowest, low.below, low.num_types, low.num_tokens) == (1, 50, 2, 3)
    assert low.mean_of_types == pytest.approx(100 * (2 / 4 - 1 / 4) / 2)
    assert low.of_the_loss == pytest.approx(100 * (9 - 8) / 9)
    assert (middle.lowest, middle.num_types, middle.mean_of_types) == (50, 1, pytest.approx(-10))
    assert (high.lowest, high.below, high.num_tokens, high.of_the_loss) == (5000, None, 4, 0)


def test_a_model_against_itself_gains_nothing(build_tiny_lm, monkeypatch):
    monkeypatch.setattr(frequency_bands, "LOWER_BOUNDS", (1, 15, 20))
    model, tokens = build_tiny_lm("doc", experts_per_layer="1 0 2"), torch.randint(V, (400,))
    losses = losses_by_type([model], tokens, vocab_size=V)
    counts = tokens[1:].bincount(minlength=V)
    bands = compare_bands(losses, losses, train_counts=counts, counts=counts, excluded=[])
    assert sum(band.num_tokens for band in bands) == 400 - 1
    assert all(band.mean_of_types == band.of_the_loss == 0 and math.isfinite(band.of_the_loss) for band in bands)
