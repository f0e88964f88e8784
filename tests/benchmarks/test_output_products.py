"""Products of a softmax are timed for the networks that have no others, with the sizes of their trainings."""

import pytest
from half_a_second import HalfASecond

from fairseq_plugins.benchmarks import output_products
from fairseq_plugins.benchmarks.output_layer_inputs import Case
from fairseq_plugins.benchmarks.output_products import speed_of_output_products, words_per_second
from fairseq_plugins.recipes import find_recipe


@pytest.fixture
def data(tmp_path):
    (tmp_path / "dict.txt").write_text("".join(f"w{number} 1\n" for number in range(7)))
    return tmp_path


def test_speed_is_that_of_the_words_of_an_update(monkeypatch):
    run = []
    monkeypatch.setattr(output_products, "floor", run.append)
    monkeypatch.setattr(output_products, "Timer", HalfASecond)
    assert words_per_second(Case(vocab_size=9, num_experts=1, width=4, num_tokens=6), "cpu") == 12
    assert run and all(x.target.numel() == 6 for x in run)


def test_only_linear_networks_that_learn_by_maximum_likelihood_have_no_other_products(data, monkeypatch):
    asked = []
    monkeypatch.setattr(output_products, "words_per_second", lambda case, device: asked.append(case) or 7.0)
    recipe = find_recipe("speed_fpnn")
    assert speed_of_output_products(recipe, list(recipe.systems), data=data, device="cpu") == {"FPNN": 7.0}
    assert asked == [Case(vocab_size=7 + 4, num_experts=1, width=512, num_tokens=64 * 20)]
    for name in ("speed_ptb", "speed_host"):
        other = find_recipe(name)
        assert speed_of_output_products(other, list(other.systems), data=data, device="cpu") == {}
