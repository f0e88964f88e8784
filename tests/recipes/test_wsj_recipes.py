"""Recipes of parse reranking: the papers' networks with the vocabulary of trees, and small ones for the sample."""

import pytest
import torch
from built_systems import build_system

from fairseq_plugins.models.presets import ARCHITECTURES
from fairseq_plugins.recipes import find_recipe
from fairseq_plugins.recipes.recipe import COMMON, FULL_SIZE

SYSTEMS = ["awd", "mos", "doc"]
PUBLISHED_VOCABULARY, SAMPLE_VOCABULARY = 6_922, 1_109


def num_parameters(recipe, system, *, vocab_size):
    with torch.device("meta"):
        return sum(one.numel() for one in build_system(find_recipe(recipe), system, vocab_size=vocab_size).parameters())


def test_doc_with_the_published_vocabulary_has_the_published_size():
    assert num_parameters("wsj", "doc", vocab_size=PUBLISHED_VOCABULARY) == 21_984_202


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_settings_are_those_for_penn_treebank(system):
    preset = ARCHITECTURES[f"lstm_lm_{system}_ptb"]
    expected = {**COMMON, **preset.training, **FULL_SIZE, "arch": f"lstm_lm_{system}_ptb"}
    assert find_recipe("wsj").flags(system) == expected


@pytest.mark.parametrize("system", SYSTEMS)
def test_networks_of_the_sample_have_four_million_parameters(system):
    assert num_parameters("wsj_sample", system, vocab_size=SAMPLE_VOCABULARY) == pytest.approx(4.0e6, rel=0.01)


def test_systems_of_the_sample_differ_in_the_network_and_not_in_the_training():
    recipe = find_recipe("wsj_sample")
    network = {"arch", "embed-dim", "hidden-sizes", "experts-per-layer", "latent-dropout", "balance"}
    awd, mos, doc = (
        {name: value for name, value in recipe.flags(system).items() if name not in network} for system in SYSTEMS
    )
    assert (
        awd == mos == doc and awd["patience"] > awd["nonmonotone-interval"] and recipe.flags("doc")["balance"] == 0.001
    )
