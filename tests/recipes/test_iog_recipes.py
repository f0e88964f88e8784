"""Recipes of the Input-to-Output Gate: the paper's settings, and a gate's base model, which the user gives."""

import pytest
import torch
from built_systems import build_system

from fairseq_plugins.recipes import find_recipe, training_arguments
from fairseq_plugins.recipes.fine_tuning import fine_tuning_flags
from fairseq_plugins.recipes.system import Base

SYSTEMS = [(name, system) for name in ("iog_ptb", "iog_wt2") for system in find_recipe(name).systems]
GATES = [(name, system) for name, system in SYSTEMS if "+" in system]
BASES = [(name, system) for name, system in SYSTEMS if "+" not in system and system != "awd-fin"]
ON_AWD = {"clip-norm": 0.1, "gate-init-range": 0.01}


def test_all_rows_of_the_tables_without_a_cache_are_systems():
    sizes = [f"{family}-{size}" for family in ("zaremba", "variational") for size in ("medium", "large")]
    bases = [*sizes, "rhn", "rhn-tied", "awd"]
    gates = [f"{name}+iog" for name in (*bases, "rhn5", "rhn10")] + ["rhn+iog-hidden", "rhn+iog-lstm"]
    assert set(find_recipe("iog_ptb").systems) == {*bases, "awd-fin", *gates}
    bases = ["zaremba-medium", "variational-medium", "rhn-tied", "awd"]
    assert set(find_recipe("iog_wt2").systems) == {*bases, "awd-fin", *(f"{name}+iog" for name in bases)}


@pytest.mark.parametrize("name, system", SYSTEMS)
def test_a_model_takes_the_flags_of_its_training(name, system):
    with torch.device("meta"):
        build_system(find_recipe(name), system, vocab_size=50)


@pytest.mark.parametrize("name, system", BASES)
def test_a_base_model_is_trained_by_its_preset_on_the_recipes_corpus(name, system):
    corpus, recipe = name.split("_")[1], find_recipe(name)
    flags = recipe.flags(system)
    assert flags["arch"].endswith(f"_{corpus}") and recipe.system(system).flags == {"arch": flags["arch"]}
    assert flags["max-epoch"] in {39, 55, 200, 500, 750}
    assert ("base" in recipe.system(system).published) == (system != "awd")
    assert recipe.system(system).result == ("best" if system == "awd" else "last")


@pytest.mark.parametrize("name", ["iog_ptb", "iog_wt2"])
def test_the_base_of_awd_lstm_is_fine_tuned_as_in_its_paper(name):
    recipe = find_recipe(name)
    flags = recipe.flags("awd-fin")
    assert {**flags, **fine_tuning_flags(flags["arch"])} == flags and flags["averaging"] == "immediate"
    assert recipe.system("awd-fin").base == Base(system="awd", flag="finetune-from-model")


@pytest.mark.parametrize("name, system", GATES)
def test_a_gate_is_trained_as_in_the_paper(name, system):
    """FACTS of the paper: five epochs of Adam at 0.001 / sqrt(epoch), of windows of 35; AWD-LSTM is an exception."""
    recipe = find_recipe(name)
    flags, own = recipe.flags(system), dict(recipe.system(system).flags)
    assert own.pop("arch") == f"gated_lm_{name.split('_')[1]}"
    assert own.pop("output-gate", None) == {"rhn+iog-hidden": "iog-hidden", "rhn+iog-lstm": "iog-lstm"}.get(system)
    assert own == (ON_AWD if system == "awd+iog" else {})
    assert {"max-epoch": 5, "tokens-per-sample": 35, "batch-size": 20, "weight-decay": 1e-6}.items() <= flags.items()
    rates = [float(rate) for rate in str(flags["lr"]).split(",")]
    assert rates == pytest.approx([0.001 / epoch**0.5 for epoch in range(1, 6)])
    num = {"rhn5+iog": 5, "rhn10+iog": 10}.get(system, 1)
    trained = {"rhn5": "rhn", "rhn10": "rhn", "awd": "awd-fin"}
    base = system.partition("+")[0]
    assert recipe.system(system).base == Base(system=trained.get(base, base), flag="base-model", num=num)
    if num == 1 and system.endswith("+iog"):
        assert recipe.system(system).published["base"] == recipe.system(trained.get(base, base)).published["base"]


@pytest.mark.parametrize("name, system", [*GATES, ("reduced_base_models", "doc+iog"), ("presets", "gated_lm")])
def test_a_gate_without_a_base_model_is_refused(name, system):
    recipe = find_recipe(name)
    for more in ([], ["--base-models", "a.pt"], ["a.pt"]):
        with pytest.raises(ValueError, match=r"is a gate on a trained [\w -]+: give .* --base-model CKPT"):
            training_arguments(recipe, system, data="data", save_dir="save", more=more)
    base = recipe.system(system).base
    base_models = ":".join(f"{n}.pt" for n in range(3 if base is None else base.num))
    for more in (["--base-model", base_models], [f"--base-model={base_models}"]):
        assert training_arguments(recipe, system, data="data", save_dir="save", more=more)[-len(more) :] == more


@pytest.mark.parametrize("name, system", GATES)
def test_another_number_of_base_models_than_that_of_the_published_figures_is_refused(name, system):
    recipe, expected = find_recipe(name), {"rhn5+iog": 5, "rhn10+iog": 10}.get(system, 1)
    for number in {1, 2, 5, 10} - {expected}:
        with pytest.raises(ValueError) as error:
            more = ["--base-model", ":".join(f"{n}.pt" for n in range(number))]
            training_arguments(recipe, system, data="data", save_dir="save", more=more)
        assert str(error.value) == (
            f"--base-model names {number}: {system} of recipe {name} is a gate on {expected}; name that many "
            "checkpoints, joined by colons"
        )


def test_gates_of_no_base_are_put_on_any_number():
    for more in (["--base-model", "a.pt"], ["--base-model=a.pt:b.pt"]):
        arguments = training_arguments(find_recipe("presets"), "gated_lm_ptb", data="data", save_dir="save", more=more)
        assert arguments[-len(more) :] == more


def test_a_gate_is_resumed_without_its_base_model(tmp_path):
    (tmp_path / "checkpoint_last.pt").touch()
    arguments = training_arguments(find_recipe("iog_ptb"), "rhn5+iog", data="data", save_dir=str(tmp_path))
    assert not any(word.startswith("--base-model") for word in arguments)


def test_a_base_model_is_asked_for_by_gates_alone():
    for name, system in (*BASES, ("reduced_base_models", "awd"), ("presets", "lstm_lm_doc")):
        training_arguments(find_recipe(name), system, data="data", save_dir="save")
