"""Recipes as tables of systems."""

import re

import pytest
from example_parts import OwnSoftmax

from fairseq_plugins.models.presets import ARCHITECTURES
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS
from fairseq_plugins.own_parts import user_dir
from fairseq_plugins.recipes import RECIPES, Recipe, System, find_recipe, training_arguments
from fairseq_plugins.recipes import training as module
from fairseq_plugins.recipes.recipe import COMMON, scored_validation

SCORED_BY = {
    **dict.fromkeys(("multi30k", "multi30k_joined", "multi30k_joined_transformer"), "bleu"),
    **dict.fromkeys(("iwslt14_partial", "tatoeba"), "bleu"),
    **dict.fromkeys(("agnews", "reuters21578"), "rouge1"),
}


@pytest.fixture
def recipe():
    systems = {
        "plain": System({"arch": "lstm_lm_awd"}),
        "longer": System({"arch": "lstm_lm_awd", "max-epoch": 9, "label-depth": 2}, label="for longer"),
        "fairseq": System({"arch": "lstm_lm"}),
    }
    return Recipe(name="some", title="", corpus="", systems=systems, training={"max-epoch": 8, "seed": 3})


def test_flags_are_the_presets_then_the_recipes_then_the_systems(recipe):
    preset = ARCHITECTURES["lstm_lm_awd"].training
    expected = {**COMMON, **preset, "arch": "lstm_lm_awd", "seed": 3}
    assert recipe.flags("plain") == {**expected, "max-epoch": 8}
    assert recipe.flags("longer") == {**expected, "max-epoch": 9, "label-depth": 2}
    assert recipe.flags("fairseq") == {**COMMON, "arch": "lstm_lm", "max-epoch": 8, "seed": 3}


def test_a_recipe_may_be_the_whole_training(recipe):
    alone = Recipe(name="alone", title="", corpus="", systems=recipe.systems, training_of_presets="left out")
    assert alone.flags("plain") == {**COMMON, "arch": "lstm_lm_awd"}


def test_arguments_of_a_training(recipe):
    arguments = training_arguments(recipe, "longer", data="a b", save_dir="c d", seed=7, more=["--lr", "2"])
    assert arguments[0] == "a b" and arguments[-2:] == ["--lr", "2"]
    assert {f"--user-dir={user_dir()}", "--save-dir=c d", "--seed=7", "--no-epoch-checkpoints"} <= set(arguments)
    assert "--seed=3" in training_arguments(recipe, "longer", data="a b", save_dir="c d")
    for flag in (["--keep-last-epochs", "5"], ["--keep-last-epochs=5"]):
        kept = training_arguments(recipe, "longer", data="a b", save_dir="c d", more=flag)
        assert "--no-epoch-checkpoints" not in kept and kept[-len(flag) :] == flag
    more = ["--keep-last-epochs", "5", "--no-no-epoch-checkpoints"]
    assert kept[:-1] == training_arguments(recipe, "longer", data="a b", save_dir="c d", more=more)[:-2]


def test_a_switch_of_a_recipe_is_removed_by_no(monkeypatch):
    monkeypatch.setattr(module, "has_native_bfloat16", lambda device: True)
    systems = {"tied": System({"arch": "lstm_lm_awd", "bf16": True, "lr": 2})}
    recipe = Recipe(name="some", title="", corpus="", systems=systems)
    where = dict(data="a", save_dir="b")
    assert "--bf16" in training_arguments(recipe, "tied", **where)
    more = ["--no-bf16", "--no-lr", "--no-progress-bar"]  # lr is no switch; the last one is a flag of fairseq
    arguments = training_arguments(recipe, "tied", **where, more=more)
    assert "--bf16" not in arguments and "--lr=2" in arguments and arguments[-2:] == more[1:]


@pytest.mark.parametrize("has_gpu, more, is_kept", [(False, [], False), (True, [], True), (True, ["--cpu"], False)])
def test_bfloat16_of_a_recipe_is_left_out_where_the_processor_has_none(has_gpu, more, is_kept, monkeypatch):
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(module, "has_native_bfloat16", lambda device: device.type == "cuda")
    recipe = Recipe(name="some", title="", corpus="", systems={"tied": System({"arch": "lstm_lm_awd", "bf16": True})})
    assert is_kept == ("--bf16" in training_arguments(recipe, "tied", data="a", save_dir="b", more=more))
    assert "--bf16" in training_arguments(recipe, "tied", data="a", save_dir="b", more=[*more, "--bf16"])
    without = training_arguments(recipe, "tied", data="a", save_dir="b", more=[*more, "--no-bf16"])
    assert not {"--bf16", "--no-bf16"} & {*without}


@pytest.mark.parametrize(
    "more, left_out",
    [
        ([], set()),
        (["--output-layer", "doc"], set()),
        (["--output-layer=bilinear"], {"experts-per-layer", "latent-dropout", "balance"}),
        (["--output-layer", "own"], {"experts-per-layer", "latent-dropout", "balance", "output-precision"}),
        (["--rnn-cell", "mogrifier"], {"dropout-weight"}),
        (["--output-layer", "nothing"], set()),
    ],
)
def test_another_part_comes_without_the_options_of_the_recipes(more, left_out, monkeypatch):
    monkeypatch.setitem(OUTPUT_LAYERS, "own", OwnSoftmax)
    own = {"experts-per-layer": "0 1 1", "latent-dropout": 0.2, "output-precision": "auto", "dropout-weight": 0.1}
    own["balance"] = 0.001  # of the criterion
    systems = {"doc": System({"arch": "lstm_lm_doc", "hidden-sizes": "8 8", **own})}
    recipe = Recipe(name="some", title="", corpus="", systems=systems)
    arguments = training_arguments(recipe, "doc", data="a", save_dir="b", more=more)
    given = {argument[2:].partition("=")[0] for argument in arguments[: len(arguments) - len(more)]}
    assert own.keys() - given == left_out and "hidden-sizes" in given
    assert arguments[len(arguments) - len(more) :] == more


def test_what_does_not_exist_is_answered_with_what_does(recipe):
    with pytest.raises(ValueError, match=r"^there is no recipe mult: choose one of .*gigaword, .*multi30k.*$"):
        find_recipe("mult")
    for ask in (recipe.system, recipe.label, recipe.flags):
        with pytest.raises(ValueError, match="^recipe some has no system x: choose one of plain, longer, fairseq$"):
            ask("x")
    assert find_recipe("reduced") is RECIPES["reduced"]
    assert (recipe.label("plain"), recipe.label("longer")) == ("plain", "for longer")


@pytest.mark.parametrize("name", RECIPES)
def test_tables_are_complete(name):
    recipe = RECIPES[name]
    assert recipe.name == name and recipe.title and recipe.corpus
    labels = [recipe.label(system) for system in recipe.systems]
    assert len(set(labels)) == len(labels)
    for system in recipe.systems.values():
        assert bool(system.published) <= bool(recipe.metric)
        assert all(re.fullmatch(r"[\d.]+( / [\d.]+)?", figure) for figure in system.published.values())


@pytest.mark.parametrize(
    "file, joined",
    [(None, []), ("bpe.codes", []), ("sentencepiece.bpe.model", ["=sentencepiece"])],
)
def test_validation_joins_the_subwords_of_the_data(file, joined, tmp_path):
    if file is not None:
        (tmp_path / file).touch()
    for name in SCORED_BY:
        system = next(iter(RECIPES[name].systems))
        arguments = training_arguments(RECIPES[name], system, data=str(tmp_path), save_dir="save")
        (flag,) = (word for word in arguments if word.startswith("--eval-scorer-remove-bpe"))
        assert flag == "".join(["--eval-scorer-remove-bpe", *joined])


@pytest.mark.parametrize("name", RECIPES)
def test_small_translators_and_headlines_are_scored_in_training(name):
    expected = scored_validation(SCORED_BY[name]) if name in SCORED_BY else {}
    for system in RECIPES[name].systems:
        flags = RECIPES[name].flags(system)
        scored = {flag: value for flag, value in flags.items() if flag.startswith("eval-scorer")}
        assert {**scored, "task": flags.get("task")} == {"task": flags.get("task"), **expected}


def test_all_architectures_with_a_training_are_systems_of_presets():
    trained = {arch for arch, preset in ARCHITECTURES.items() if preset.training}
    assert set(RECIPES["presets"].systems) == trained
    sizes = [f"{family}_{size}" for family in ("zaremba", "variational") for size in ("medium", "large")]
    assert set(ARCHITECTURES) - trained == {f"lstm_lm_{size}" for size in sizes}
