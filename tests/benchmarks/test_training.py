"""Speed and memory are read of fairseq-train's processes; a stub stands in for them."""

import resource
from collections import Counter

import pytest
from fairseq import options
from half_a_second import HalfASecond

from fairseq_plugins.benchmarks import training
from fairseq_plugins.benchmarks.training import (
    SUITES,
    TRANSLATION_SUITES,
    HighwayProducts,
    TrainingSpeed,
    as_markdown,
    decoding_as_markdown,
    in_output_precisions,
    measure_trainings,
    products_as_markdown,
    speed_of_highway_products,
)
from fairseq_plugins.command_line import ProgramFailed
from fairseq_plugins.recipes import Recipe, System, find_recipe, training_arguments
from tests.tables import rows_of

RECIPE = Recipe(
    name="two",
    title="Two systems",
    corpus="none",
    systems={
        "slow": System({"arch": "lstm_lm_doc"}, label="a slow one"),
        "fast": System({"arch": "lstm_lm_awd"}),
        "broken": System({"arch": "lstm"}),
    },
)
STUB = """
import os, pathlib, sys
with pathlib.Path(os.environ["CALLS"]).open("a") as calls:
    print(*sys.argv[1:], file=calls)
if "--arch=lstm" in sys.argv:
    sys.exit("out of memory")
sys.stdout.buffer.write(b"no text: \\xff\\n")
speed = 100 if "--arch=lstm_lm_doc" in sys.argv else 400
print("| INFO | train_inner | epoch 001: loss=9, wps=1, ups=1")
for shift in (-1, 0, 1):
    print(f"| INFO | train_inner | epoch 001: loss=9, wps={speed + shift}, ups=1")
"""


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """``calls()``: arguments of the trainings so far, by the stub of fairseq_cli.train."""
    package = tmp_path / "stub/fairseq_cli"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "train.py").write_text(STUB)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return lambda: [line.split() for line in (tmp_path / "calls").read_text().splitlines()]


def test_systems_train_by_turns_in_both_orders(calls):
    found = measure_trainings(
        RECIPE, ["slow", "fast"], data="data", num_updates=20, num_rounds=2, flags=["--fp16", "--max-update", "7"]
    )
    assert {name: speed.words_per_second for name, speed in found.items()} == {"a slow one": 100, "fast": 400}
    held_here = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # Linux counts it for a child, too
    assert all(1 < speed.peak_mib < 1000 + held_here for speed in found.values())
    archs = [next(flag for flag in call if flag.startswith("--arch")) for call in calls()]
    assert archs == [f"--arch={arch}" for arch in ("lstm_lm_doc", "lstm_lm_awd", "lstm_lm_awd", "lstm_lm_doc")]
    for call in calls():
        assert call[0] == "data" and "--seed=1" in call and call[-3:] == ["--fp16", "--max-update", "7"]
        assert call[call.index("--log-interval") + 1] == "4" and {"--no-save", "--disable-validation"} <= set(call)


def test_a_training_that_fails_is_told_with_the_end_of_its_log(calls):
    with pytest.raises(ProgramFailed, match="(?s)fairseq-train data .*--arch=lstm .*failed:.*out of memory"):
        measure_trainings(RECIPE, ["broken"], data="data", num_updates=10, num_rounds=1)


def test_ratios_are_those_to_the_first():
    found = {"one": TrainingSpeed(1000.0, 1024.0), "two": TrainingSpeed(2500.0, 1536.0)}
    _, _, one, two = rows_of(as_markdown(found))
    assert one == ["one", "1,000", "1.00", "1.00", "1.0 GiB", "1.0"]
    assert two == ["two", "2,500", "2.50", "0.40", "1.5 GiB", "1.5"]
    *_, share = rows_of(products_as_markdown({"two": 10000.0}, found))
    assert share == ["two", "10,000", "0.25"]
    *_, decoded = rows_of(decoding_as_markdown({"one": 50.0, "two": 75.0}))
    assert decoded == ["two", "75.0", "1.50"]


@pytest.mark.parametrize("suite", [*SUITES.values(), *TRANSLATION_SUITES.values()], ids=lambda suite: suite.recipe_name)
def test_a_suite_has_systems_of_a_recipe(suite):
    assert len(suite.system_names) > 1
    labels = [suite.recipe.label(system) for system in suite.system_names]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("name, suite", [("lstm", "fairseq lstm"), ("transformer", "fairseq transformer, tied")])
def test_fairseq_is_the_reference_of_translation(name, suite):
    recipe = TRANSLATION_SUITES[name].recipe
    assert recipe.label(TRANSLATION_SUITES[name].system_names[0]) == suite


def test_a_window_has_a_product_a_micro_layer_and_step_both_ways_and_one_gradient_a_matrix(monkeypatch):
    products, found = HighwayProducts(num_rows=2, num_steps=5, width=3, depth=4), Counter()
    monkeypatch.setattr(training, "matmul", lambda a, b: found.update([(*a.shape, *b.shape)]))
    products.run(products.operands("cpu"))
    assert found == {(2, 3, 3, 6): 20, (2, 6, 6, 3): 20, (6, 10, 10, 3): 4}


def test_speed_is_that_of_the_words_of_a_window(monkeypatch):
    run = []
    monkeypatch.setattr(training, "Timer", HalfASecond)
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


BOTH = ["float32", "bfloat16"]
THREE_SYSTEMS = Recipe(
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
    found = in_output_precisions(THREE_SYSTEMS, ["host", "doc", "plain"], BOTH)
    assert list(found.systems) == ["host", "doc-float32", "doc-bfloat16", "plain"]
    assert found.system("doc-bfloat16").flags == {"arch": "lstm_lm_doc", "output-precision": "bfloat16"}
    assert [found.label(name) for name in list(found.systems)[:3]] == [
        "fairseq lstm_lm",
        "DOC, output in float32",
        "DOC, output in bfloat16",
    ]
    assert all(found.system(name) == THREE_SYSTEMS.system(name) for name in ("host", "plain"))


def test_without_precisions_the_chosen_systems_stay_as_they_are():
    found = in_output_precisions(THREE_SYSTEMS, ["plain", "doc"], [])
    assert list(found.systems.items()) == [(name, THREE_SYSTEMS.system(name)) for name in ("plain", "doc")]
    with pytest.raises(ValueError, match="recipe three has no system mos"):
        in_output_precisions(THREE_SYSTEMS, ["mos"], BOTH)


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
