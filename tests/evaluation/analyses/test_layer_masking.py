"""Perplexity with masked layers against the equations with the masks written in."""

import math

import plain_formulas
import pytest
import torch

from fairseq_plugins.evaluation.analyses.layer_masking import (
    LAYER_MASKS,
    LayerMask,
    masked_perplexity,
    masking_curves,
)
from fairseq_plugins.evaluation.analyses.layer_outputs import changed_layer_outputs
from fairseq_plugins.evaluation.perplexity import evaluate_perplexity
from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS

V, UNKNOWN, NUM_TOKENS = 23, 3, 121
every_mask = pytest.mark.parametrize("kind", LAYER_MASKS)


@pytest.fixture
def tokens():
    return torch.randint(V, (NUM_TOKENS,))


@pytest.fixture
def model(build_tiny_lm):
    return build_tiny_lm("tied", dropout_output=0.5, dropout_hidden=0.5).double()


def perplexity(model, tokens, layers, probability, kind="element", seed=1, **options):
    mask = LayerMask(layers, probability, kind)
    return masked_perplexity(model, tokens, mask, seed=seed, unknown=UNKNOWN, **options)


@every_mask
@pytest.mark.parametrize("cell", sorted(RECURRENT_CELLS))
@pytest.mark.parametrize("layers", [[1], [2], [1, 2]])
def test_it_is_that_of_the_equations_with_the_masks(layers, cell, kind, build_tiny_lm, tokens):
    model = build_tiny_lm("tied", rnn_cell=cell).double()
    seed = 5
    generator, e = torch.Generator().manual_seed(seed), model.decoder.embedding.weight[tokens[None, :-1]]
    x = e
    for n, layer in enumerate(model.decoder.stack.layers, start=1):
        x, _ = plain_formulas.recurrent(layer, x, layer.initial_state(x), e)
        if n in layers:
            num_steps = x.size(1) if kind == "element" else 1
            x = x * torch.empty(1, num_steps, x.size(2)).bernoulli_(0.7, generator=generator)
    probs = plain_formulas.output_probs(model.decoder.output, [e, x, x]).gather(-1, tokens[None, 1:, None])
    found = perplexity(model, tokens, layers, 0.3, kind, seed)
    assert found == pytest.approx(math.exp(-probs.log().mean().item()), rel=1e-10)


@every_mask
def test_nothing_masked_is_the_plain_perplexity(kind, model, tokens):
    expected = evaluate_perplexity([model], tokens, unknown=UNKNOWN).perplexity
    assert perplexity(model, tokens, [1, 2], 0.0, kind) == expected


def test_without_a_mask_there_is_one_run(build_tiny_lm, tokens):
    models = {"LM": build_tiny_lm("tied", hidden_sizes="8")}
    curves = masking_curves(models, tokens, probabilities=[0, 0.5], kind="element", num_runs=3, unknown=UNKNOWN)
    assert [len(runs.perplexities) for runs in curves] == [1, 3]


@every_mask
def test_with_all_masked_the_bias_alone_predicts(kind, model, tokens):
    probs = plain_formulas.softmax(model.decoder.output.projection.bias)[tokens[1:]]
    expected = math.exp(-probs.log().mean().item())
    assert perplexity(model, tokens, [2], 1.0, kind) == pytest.approx(expected, rel=1e-10)


@every_mask
def test_a_seed_gives_the_same_masks_and_another_others(kind, model, tokens):
    found = [perplexity(model, tokens, [1, 2], 0.3, kind, seed, num_rows=4) for seed in (1, 2, 1)]
    assert found[0] == found[2] != found[1]


def test_a_locked_mask_stays_from_window_to_window(model, tokens):
    whole, windows = (perplexity(model, tokens, [1, 2], 0.3, "locked", window=window) for window in (1000, 7))
    assert windows == pytest.approx(whole, rel=1e-10)


def test_afterwards_the_model_is_as_it_was_even_after_an_error(model, tokens):
    expected = evaluate_perplexity([model], tokens, unknown=UNKNOWN).perplexity
    perplexity(model, tokens, [1, 2], 0.3)
    with pytest.raises(RuntimeError, match="stop"), changed_layer_outputs(model, lambda n, output: output * 0):
        raise RuntimeError("stop")
    assert evaluate_perplexity([model], tokens, unknown=UNKNOWN).perplexity == expected
