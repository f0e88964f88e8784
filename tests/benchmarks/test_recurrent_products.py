"""Products of recurrent highway networks are timed at the shapes, and in the numbers, that a window has."""

from collections import Counter

import pytest
from half_a_second import HalfASecond

from fairseq_plugins.benchmarks import recurrent_products
from fairseq_plugins.benchmarks.language_models import SUITES
from fairseq_plugins.benchmarks.recurrent_products import HighwayProducts, speed_of_highway_products
from fairseq_plugins.recipes import find_recipe


def test_a_window_has_a_product_a_micro_layer_and_step_both_ways_and_one_gradient_a_matrix(monkeypatch):
    products, found = HighwayProducts(num_rows=2, num_steps=5, width=3, depth=4), Counter()
    monkeypatch.setattr(recurrent_products, "matmul", lambda a, b: found.update([(*a.shape, *b.shape)]))
    products.run(products.operands("cpu"))
    assert found == {(2, 3, 3, 6): 20, (2, 6, 6, 3): 20, (6, 10, 10, 3): 4}


def test_speed_is_that_of_the_words_of_a_window(monkeypatch):
    run = []
    monkeypatch.setattr(recurrent_products, "Timer", HalfASecond)
    monkeypatch.setattr(HighwayProducts, "run", lambda self, operands: run.append(operands))
    assert HighwayProducts(num_rows=2, num_steps=3, width=4, depth=2).words_per_second("cpu") == 12
    assert run and all(len(operands["matrices"]) == 2 for operands in run)


def test_systems_are_measured_with_the_sizes_of_their_presets(monkeypatch):
    asked = []
    monkeypatch.setattr(HighwayProducts, "words_per_second", lambda self, device: asked.append(self) or 7.0)
    suite = SUITES["rhn"]
    found = speed_of_highway_products(suite.recipe, suite.system_names, device="cpu")
    assert found == {"rhn_lm_ptb": 7.0, "rhn_lm_tied_ptb": 7.0}
    assert asked == [HighwayProducts(num_rows=20, num_steps=35, width=890, depth=8)] * 2


@pytest.mark.parametrize("name", ["ptb", "host"])
def test_other_models_have_no_such_products(name):
    recipe = find_recipe(f"speed_{name}")
    assert speed_of_highway_products(recipe, list(recipe.systems), device="cpu") == {}
