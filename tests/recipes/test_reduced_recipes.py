"""Recipes at a CPU budget: as many parameters for all, the same windows and updates."""

import pytest
import torch
from built_systems import build_system

from fairseq_plugins.recipes import find_recipe
from fairseq_plugins.recipes.system import Base

VOCABULARY = 10_002
"""Penn Treebank's in the host."""
BASE_MODELS = ["zaremba", "variational", "rhn", "rhn-tied", "mogrifier", "awd"]
MODELS_WITH_TRICKS = ["awd", "mos", "doc", "mogrifier-doc"]
CASES = [("reduced_base_models", name) for name in BASE_MODELS]
CASES += [("reduced_tricks", name) for name in MODELS_WITH_TRICKS]
MAJOR_MINOR = ["9:1", "mmlstm-mos"]
CASES += [("reduced", f"{name}{end}") for name in MAJOR_MINOR for end in ("", "-without3", "-previous")]
SHARED = ("optimizer", "tokens-per-sample", "window-lengths", "batch-size", "max-epoch", "clip-norm", "criterion")


@pytest.mark.parametrize("recipe, system", CASES)
def test_networks_have_four_million_parameters(recipe, system):
    with torch.device("meta"):
        model = build_system(find_recipe(recipe), system, vocab_size=VOCABULARY)
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(4.0e6, rel=0.01)


@pytest.mark.parametrize("system", ["tied", "drill4", "mos", "doc"])
def test_networks_of_wikitext2_have_seven_and_a_half_million_parameters(system):
    with torch.device("meta"):
        model = build_system(find_recipe("reduced_wt2"), system, vocab_size=33_280)
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(7.52e6, rel=0.003)


@pytest.mark.parametrize("system", ["tied", "drill4", "mos", "doc"])
def test_trainings_of_wikitext2_are_those_of_penn_treebank_but_for_widths_and_epochs(system):
    own, reduced = (find_recipe(name).flags(system) for name in ("reduced_wt2", "reduced"))
    changed = {"max-epoch": 2, "hidden-sizes": own["hidden-sizes"]}
    assert own == {**reduced, **changed} and reduced["max-epoch"] == 6


@pytest.mark.parametrize("name", MAJOR_MINOR)
def test_variants_of_major_minor_networks_are_as_large(name):
    sizes, flags = {}, {}
    for end in ("", "-without3", "-previous"):
        flags[end] = find_recipe("reduced").flags(f"{name}{end}")
        with torch.device("meta"):
            model = build_system(find_recipe("reduced"), f"{name}{end}", vocab_size=VOCABULARY)
        sizes[end] = sum(parameter.numel() for parameter in model.parameters())
    assert max(sizes.values()) / min(sizes.values()) < 1.002
    assert flags["-without3"] == {
        **flags[""],
        "major-proportions": "0.9 0.9 1",
        "hidden-sizes": flags["-without3"]["hidden-sizes"],
    }
    changed = {"minor-input": "previous", "hidden-sizes": flags["-previous"]["hidden-sizes"]}
    assert flags["-previous"] == {**flags[""], **changed}


@pytest.mark.parametrize("name", ["reduced_base_models", "reduced_tricks"])
def test_models_of_all_systems_take_the_flags_of_their_trainings(name):
    recipe = find_recipe(name)
    for system in recipe.systems:
        with torch.device("meta"):
            build_system(recipe, system, vocab_size=50)


@pytest.mark.parametrize("recipe, system", CASES)
def test_systems_differ_in_the_network_and_not_in_the_updates(recipe, system):
    flags, reduced = find_recipe(recipe).flags(system), find_recipe("reduced").flags("tied")
    assert {name: flags[name] for name in SHARED} == {name: reduced[name] for name in SHARED}
    assert flags["lr"] == (7 if system.startswith("rhn") else 20)


def test_systems_that_reduced_has_too_are_the_same():
    reduced = find_recipe("reduced")
    assert find_recipe("reduced_base_models").flags("awd") == reduced.flags("tied")
    for name, same in (("awd", "tied"), ("mos", "mos"), ("doc", "doc")):
        assert find_recipe("reduced_tricks").flags(name) == reduced.flags(same)


@pytest.mark.parametrize("system", MODELS_WITH_TRICKS)
def test_a_trick_is_one_flag(system):
    recipe = find_recipe("reduced_tricks")
    plain = recipe.flags(system)
    assert recipe.flags(f"{system}+shuffle") == {**plain, "row-offsets": "random"}
    assert recipe.flags(f"{system}+adversarial") == {**plain, "adversarial-epsilon": 0.005}


def test_gates_have_the_papers_width_unless_they_say_so_and_its_exceptions():
    recipe, on_awd = find_recipe("reduced_base_models"), {"clip-norm": 0.1, "gate-init-range": 0.01}
    gates = {name: dict(recipe.system(name).flags) for name in recipe.systems if "+" in name}
    assert {name for name in gates if name.endswith("+iog")} == {
        *(f"{base}+iog" for base in (*BASE_MODELS, "mos", "doc")),
        "zaremba3+iog",
    }
    assert all(flags.pop("arch") == "gated_lm" for flags in gates.values())
    own = {
        "zaremba+iog30": {"gate-dim": 30},
        "variational+iog30": {"gate-dim": 30},
        **{
            f"{base}+{gate}": {"output-gate": gate}
            for base in ("zaremba", "rhn")
            for gate in ("iog-hidden", "iog-lstm")
        },
        **{f"{base}+iog": on_awd for base in ("awd", "mos", "doc")},
    }
    assert gates == {name: own.get(name, {}) for name in gates}
    for name in gates:
        base = name.partition("+")[0].removesuffix("3")
        num = 3 if name == "zaremba3+iog" else 1
        assert recipe.system(name).base == Base(system=f"{base}-averaged", flag="base-model", num=num)


@pytest.mark.parametrize("name", ["reduced", "reduced_base_models", "reduced_tricks", "reduced_wt2"])
def test_an_averaged_epoch_follows_those_of_every_system_but_gates(name):
    recipe = find_recipe(name)
    for system in recipe.systems:
        if "+iog" in system:
            with pytest.raises(ValueError, match=f"recipe {name} has no system "):
                recipe.system(f"{system}-averaged")
            continue
        assert recipe.flags(f"{system}-averaged") == {**recipe.flags(system), "averaging": "immediate", "max-epoch": 1}
        assert recipe.system(f"{system}-averaged").base == Base(system=system, flag="finetune-from-model")
