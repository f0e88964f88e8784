"""Speed and memory are read of fairseq-train's processes; a stub stands in for them."""

import resource

import pytest

from fairseq_plugins.benchmarks.language_models import SUITES
from fairseq_plugins.benchmarks.training_speed import (
    TrainingSpeed,
    as_markdown,
    measure_trainings,
    products_as_markdown,
)
from fairseq_plugins.benchmarks.translation import SUITES as TRANSLATION_SUITES
from fairseq_plugins.benchmarks.translation import decoding_as_markdown
from fairseq_plugins.flags.command import ProgramFailed
from fairseq_plugins.recipes import Recipe, System
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
def test_the_host_is_the_reference_of_translation(name, suite):
    recipe = TRANSLATION_SUITES[name].recipe
    assert recipe.label(TRANSLATION_SUITES[name].system_names[0]) == suite
