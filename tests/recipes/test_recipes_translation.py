"""Recipes of small encoder-decoders and Transformers on pairs with one dictionary."""

import pytest
import torch
from built_systems import build_system

from fairseq_plugins.recipes import translation
from fairseq_plugins.recipes.recipe import COMMON

RECIPES = (translation.MULTI30K_JOINED, translation.IWSLT14_PARTIAL, translation.TATOEBA)
SYSTEMS = sorted(translation.MULTI30K_JOINED.systems)
VOCABULARY = 7_960
"""Vocabulary of Multi30k after 8,000 merges."""


@pytest.fixture(scope="module")
def sizes():
    """Parameters by system."""
    found = {}
    for name in SYSTEMS:
        with torch.device("meta"):
            model = build_system(translation.MULTI30K_JOINED, name, vocab_size=VOCABULARY)
        found[name] = sum(parameter.numel() for parameter in model.parameters())
    return found


@pytest.mark.parametrize("name", SYSTEMS)
def test_systems_have_as_many_parameters(name, sizes):
    base = "encdec+untied" if name.endswith("+untied") else "encdec"
    assert sizes[name] == pytest.approx(sizes[base], rel=0.003)


@pytest.mark.parametrize("name", translation.MULTI30K_JOINED_TRANSFORMER.systems)
def test_transformers_have_as_many_and_one_embedding(name, sizes):
    with torch.device("meta"):
        model = build_system(translation.MULTI30K_JOINED_TRANSFORMER, name, vocab_size=VOCABULARY)
    parameters = list(model.parameters())
    assert sum(parameter.numel() for parameter in parameters) == pytest.approx(sizes["encdec"], rel=0.003)
    assert sum(len(parameter) == VOCABULARY and parameter.dim() == 2 for parameter in parameters) == 1


@pytest.mark.parametrize("recipe", (*RECIPES, translation.MULTI30K_JOINED_TRANSFORMER), ids=lambda recipe: recipe.name)
def test_the_training_is_the_same_for_all(recipe):
    shared = [
        {flag: value for flag, value in recipe.flags(name).items() if flag in {**COMMON, **recipe.training}}
        for name in recipe.systems
    ]
    embeddings = [flags.pop("share-embeddings", None) for flags in shared]
    assert all(flags == shared[0] for flags in shared)
    assert [name for name, value in zip(recipe.systems, embeddings) if value == "none"] == [
        name for name in recipe.systems if name.endswith("+untied")
    ]
    assert "--joined-dictionary" in recipe.corpus and recipe.compared_by == "bleu"
