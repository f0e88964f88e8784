"""Products of a softmax are timed for the networks that have no others, with the sizes of their trainings."""

import pytest

from fairseq_plugins.benchmarks import output_products
from fairseq_plugins.benchmarks.output_products import OutputProducts, speed_of_output_products
from fairseq_plugins.recipes import find_recipe


@pytest.fixture
def data(tmp_path):
    (tmp_path / "dict.txt").write_text("".join(f"w{number} 1\n" for number in range(7)))
    return tmp_path


def test_speed_is_that_of_the_words_of_an_update(monkeypatch):
    monkeypatch.setattr(output_products, "MIN_SECONDS", 0.01)
    assert OutputProducts(num_tokens=6, width=4, vocab_size=9).words_per_second("cpu") > 0


def test_only_linear_networks_that_learn_by_maximum_likelihood_have_no_other_products(data, monkeypatch):
    asked = []
    monkeypatch.setattr(OutputProducts, "words_per_second", lambda self, device: asked.append(self) or 7.0)
    recipe = find_recipe("speed_fpnn")
    assert speed_of_output_products(recipe, list(recipe.systems), data=data, device="cpu") == {"FPNN": 7.0}
    assert asked == [OutputProducts(num_tokens=64 * 20, width=512, vocab_size=7 + 4)]
    for name in ("speed_ptb", "speed_host"):
        other = find_recipe(name)
        assert speed_of_output_products(other, list(other.systems), data=data, device="cpu") == {}
