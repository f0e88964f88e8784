"""Recipes of FPNN, rectifier and skipping networks: the sizes of Pachitariu & Sahani 2013."""

import pytest
import torch
from built_systems import as_the_host_reads, build_system

from fairseq_plugins.recipes import find_recipe

WORDS, CHARACTERS = 67_428, 27
"""Published vocabularies of text8."""


def num_parameters(recipe, system, *, vocab_size):
    with torch.device("meta"):
        model = build_system(find_recipe(recipe), system, vocab_size=vocab_size, word="_")
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("system, recurrent", [("fpnn", 512), ("rectifier", 512 * 512)])
@pytest.mark.parametrize("training", ["", "+nce"])
def test_networks_of_words_have_two_word_matrices_and_a_recurrence(system, recurrent, training):
    found = num_parameters("fpnn_text8", system + training, vocab_size=WORDS)
    assert found == 2 * 512 * WORDS + recurrent


@pytest.mark.parametrize(
    "system, inside",
    [
        ("fpnn+hidden", 2048 + 2048 * 2048 + 2048),
        ("smooth-rectifier", 2048 * 2048),
        ("skipping", 2 * 2048 * 2048),
    ],
)
@pytest.mark.parametrize("training", ["", "+damped"])
def test_networks_of_characters(system, inside, training):
    found = num_parameters("fpnn_text8_chars", system + training, vocab_size=CHARACTERS)
    assert found == 2 * 2048 * CHARACTERS + inside


def test_noise_and_maximum_likelihood_differ_in_the_criterion_alone():
    recipe = find_recipe("fpnn_text8")
    for name in ("fpnn", "rectifier", "rectifier+damped"):
        by_noise, exact = (recipe.flags(system) for system in (f"{name}+nce", name))
        of_noise = {"criterion": "noise_contrastive", "noise-samples": 25, "accidental-hits": "counted"}
        assert by_noise == {**exact, **of_noise}


FREE = {"dropout_output": 0, "column_norm": 0, "l1_regularization": 0}
REGULARISED = {"dropout_output": 0.5, "column_norm": 15, "l1_regularization": 0}
ADAGRAD = {"optimizer": "adagrad", "lr": [0.05], "force_anneal": 7, "max_epoch": 8}
DAMPED = {"optimizer": "damped_adagrad", "initial_accumulator": 1e-5, "lr": [0.1], "force_anneal": 12, "max_epoch": 14}
LINEAR = {"rnn_cell": "diagonal"}
RECTIFIER = {"rnn_cell": "rectifier", "recurrent_scale": 0.01}
DAMPED_RECTIFIER = {**RECTIFIER, **DAMPED, "initial_accumulator": 1e-7, "recurrent_scale": 0.1}


@pytest.mark.parametrize(
    "system, settings",
    [
        ("fpnn", {**LINEAR, **FREE, **ADAGRAD}),
        ("fpnn+l1", {**LINEAR, **FREE, **ADAGRAD, "l1_regularization": 1e-6}),
        ("fpnn+dropout+norm", {**LINEAR, **REGULARISED, **ADAGRAD}),
        ("fpnn+dropout+norm+damped", {**LINEAR, **REGULARISED, **DAMPED}),
        ("rectifier", {**RECTIFIER, **FREE, **ADAGRAD}),
        ("rectifier+damped", {**DAMPED_RECTIFIER, **FREE, "force_anneal": 3, "max_epoch": 5}),
        ("rectifier+dropout+norm", {**RECTIFIER, **REGULARISED, **ADAGRAD}),
        ("rectifier+dropout+norm+damped", {**DAMPED_RECTIFIER, **REGULARISED}),
    ],
)
def test_rows_of_penn_treebank_are_regularised_and_trained_as_they_say(system, settings):
    found = vars(as_the_host_reads(find_recipe("fpnn_ptb"), system))
    assert {name: found[name] for name in settings} == settings
    assert (found["embed_dim"], found["hidden_sizes"], found["output_layer"]) == (512, "512", "full")


@pytest.mark.parametrize("system, rate", [("fpnn+hidden", 0.015), ("smooth-rectifier", 0.03), ("skipping", 0.03)])
def test_damped_networks_of_characters_differ_in_optimiser_and_scale(system, rate):
    recipe = find_recipe("fpnn_text8_chars")
    exact, damped = (as_the_host_reads(recipe, name) for name in (system, f"{system}+damped"))
    expected = {"optimizer": "damped_adagrad", "initial_accumulator": 1e-7, "lr": [rate], "recurrent_scale": 0.2}
    if system == "fpnn+hidden":  # no recurrent matrix
        del expected["recurrent_scale"]
    found = {name: value for name, value in vars(damped).items() if getattr(exact, name, None) != value}
    assert found == expected
