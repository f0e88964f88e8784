"""Systems of a suite are measured in several precisions of their output layers, where they have any."""

import pytest
from fairseq import options

from fairseq_plugins.benchmarks.language_models import SUITES
from fairseq_plugins.benchmarks.suite import in_output_precisions
from fairseq_plugins.benchmarks.translation import SUITES as TRANSLATION_SUITES
from fairseq_plugins.recipes import Recipe, System, training_arguments

BOTH = ["float32", "bfloat16"]
RECIPE = Recipe(
    name="three",
    title="Three systems",
    corpus="none",
    systems={
        "host": System({"arch": "lstm_lm"}, label="fairseq lstm_lm"),
        "doc": System({"arch": "lstm_lm_doc"}, label="DOC"),
        "plain": System({"arch": "lstm_lm_doc", "output-loss": "plain"}),
    },
)


def test_every_system_with_a_precision_stands_once_in_each():
    found = in_output_precisions(RECIPE, ["host", "doc", "plain"], BOTH)
    assert list(found.systems) == ["host", "doc-float32", "doc-bfloat16", "plain"]
    assert found.system("doc-bfloat16").flags == {"arch": "lstm_lm_doc", "output-precision": "bfloat16"}
    assert [found.label(name) for name in list(found.systems)[:3]] == [
        "fairseq lstm_lm",
        "DOC, output in float32",
        "DOC, output in bfloat16",
    ]
    assert found.system("host") == RECIPE.system("host") and found.system("plain") == RECIPE.system("plain")


def test_without_precisions_the_chosen_systems_stay_as_they_are():
    found = in_output_precisions(RECIPE, ["plain", "doc"], [])
    assert list(found.systems.items()) == [(name, RECIPE.system(name)) for name in ("plain", "doc")]
    with pytest.raises(ValueError, match="recipe three has no system mos"):
        in_output_precisions(RECIPE, ["mos"], BOTH)


@pytest.mark.parametrize(
    "suite", [SUITES["ptb"], SUITES["host"], *TRANSLATION_SUITES.values()], ids=lambda suite: suite.recipe_name
)
def test_every_system_of_a_suite_takes_its_flags(suite):
    recipe = in_output_precisions(suite.recipe, suite.system_names, BOTH)
    precisions = []
    for system in recipe.systems:
        typed = training_arguments(recipe, system, data="data", save_dir="checkpoints")
        parsed = options.parse_args_and_arch(options.get_training_parser(), input_args=typed)
        precisions.append(str(getattr(parsed, "output_precision", "none")))
    assert precisions.count("bfloat16") == sum(name.endswith("-bfloat16") for name in recipe.systems) > 0
    labels = [recipe.label(system) for system in recipe.systems]
    assert len(set(labels)) == len(labels)
