"""Recipes of language models: sizes of their networks, and flags of their training."""

import ast

import pytest
import torch
from builders import build_lm
from built_systems import as_fairseq_reads, build_system

from fairseq_plugins.recipes import find_recipe, training_arguments
from fairseq_plugins.recipes.fine_tuning import fine_tuning_flags
from fairseq_plugins.recipes.recipe import Base

WORDS, CHARACTERS = 67_428, 27
"""Published vocabularies of text8."""
BASE_MODELS = ["zaremba", "variational", "rhn", "rhn-tied", "mogrifier", "awd"]
REDUCED_CASES = [("reduced_base_models", name) for name in BASE_MODELS]
REDUCED_CASES += [
    ("reduced", f"{name}{end}") for name in ("9:1", "mmlstm-mos") for end in ("", "-without3", "-previous")
]
WSJ_SYSTEMS = ["awd", "mos", "doc"]
SIZES = [
    # recipe, system, vocabulary, parameters, relative tolerance
    *(("fpnn_text8", name, WORDS, 2 * 512 * WORDS + 512, 0) for name in ("fpnn", "fpnn+nce")),
    *(("fpnn_text8", name, WORDS, 2 * 512 * WORDS + 512**2, 0) for name in ("rectifier", "rectifier+nce")),
    *(
        ("fpnn_text8_chars", f"{name}{training}", CHARACTERS, 2 * 2048 * CHARACTERS + inside, 0)
        for name, inside in (
            ("fpnn+hidden", 2048 + 2048**2 + 2048),
            ("smooth-rectifier", 2048**2),
            ("skipping", 2 * 2048**2),
        )
        for training in ("", "+damped")
    ),
    *((*case, 10_002, 4.0e6, 0.01) for case in REDUCED_CASES),  # Penn Treebank's vocabulary in fairseq
    *(("ptb_small", name, 10_002, 4.94e6, 0.006) for name in find_recipe("ptb_small").systems),
    *(("wt2_small", name, 33_280, 10.92e6, 0.003) for name in find_recipe("wt2_small").systems),
    *(("wsj_sample", name, 1_109, 4.0e6, 0.01) for name in WSJ_SYSTEMS),
]


@pytest.mark.parametrize("recipe, system, vocab_size, size, tolerance", SIZES)
def test_networks_have_so_many_parameters(recipe, system, vocab_size, size, tolerance):
    with torch.device("meta"):
        model = build_system(find_recipe(recipe), system, vocab_size=vocab_size, word="_")
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(size, rel=tolerance, abs=0)


SYSTEMS = [(name, system) for name in ("iog_ptb", "iog_wt2") for system in find_recipe(name).systems]
GATES = [(name, system) for name, system in SYSTEMS if "+" in system]
BASES = [(name, system) for name, system in SYSTEMS if "+" not in system and system != "awd-fin"]
ON_AWD = {"clip-norm": 0.1, "gate-init-range": 0.01}


@pytest.mark.parametrize("name", ["iog_ptb", "iog_wt2", "reduced_base_models"])
def test_models_take_the_flags_of_their_trainings(name):
    for system in find_recipe(name).systems:
        with torch.device("meta"):
            build_system(find_recipe(name), system, vocab_size=50)


@pytest.mark.parametrize("name, system", BASES)
def test_a_base_model_is_trained_by_its_preset_on_the_recipes_corpus(name, system):
    corpus, recipe = name.split("_")[1], find_recipe(name)
    flags = recipe.flags(system)
    assert flags["arch"].endswith(f"_{corpus}") and recipe.system(system).flags == {"arch": flags["arch"]}
    assert flags["max-epoch"] in {39, 55, 200, 500, 750}
    assert ("base" in recipe.system(system).published) == (system != "awd")
    assert recipe.system(system).result == f"checkpoint_{'best' if system == 'awd' else 'last'}.pt"


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


@pytest.mark.parametrize(
    "name, system, num", [("iog_ptb", "rhn+iog", 1), ("iog_ptb", "rhn5+iog", 5), ("presets", "gated_lm", 3)]
)
def test_a_gate_without_a_base_model_is_refused(name, system, num):
    recipe = find_recipe(name)
    for more in ([], ["--base-models", "a.pt"], ["a.pt"]):
        with pytest.raises(ValueError, match=r"is a gate on a trained [\w -]+: give .* --base-model CKPT"):
            training_arguments(recipe, system, data="data", save_dir="save", more=more)
    base_models = ":".join(f"{n}.pt" for n in range(num))
    for more in (["--base-model", base_models], [f"--base-model={base_models}"]):
        assert training_arguments(recipe, system, data="data", save_dir="save", more=more)[-len(more) :] == more


@pytest.mark.parametrize("system, num", [("rhn+iog", 1), ("rhn5+iog", 5)])
def test_another_number_of_base_models_than_that_of_the_published_figures_is_refused(system, num):
    with pytest.raises(ValueError) as error:
        more = ["--base-model", "0.pt:1.pt"]
        training_arguments(find_recipe("iog_ptb"), system, data="data", save_dir="save", more=more)
    assert str(error.value) == (
        f"--base-model names 2: {system} of recipe iog_ptb is a gate on {num}; name that many checkpoints, "
        "joined by colons"
    )


def test_a_gate_is_resumed_without_its_base_model(tmp_path):
    (tmp_path / "checkpoint_last.pt").touch()
    arguments = training_arguments(find_recipe("iog_ptb"), "rhn5+iog", data="data", save_dir=str(tmp_path))
    assert not any(word.startswith("--base-model") for word in arguments)


def test_a_base_model_is_asked_for_by_gates_alone():
    for name, system in (*BASES, ("reduced_base_models", "awd"), ("presets", "lstm_lm_doc")):
        training_arguments(find_recipe(name), system, data="data", save_dir="save")


VOCABULARY = {"ptb": 10_000, "wt2": 33_278, "wt103": 267_735}
MILLIONS = {
    "ptb": {
        **{"mos": 18.8, "mmlstm-mos": 21.3, "previous": 21.7, "without1": 21.5, "without2": 21.5, "without3": 21.5},
        **{"lm": 21.5, "lm+": 21.5, "lm#": 24.9, "lm##": 24.9},
        **{"10:0": 24.2, "9:1": 24.2, "8:2": 24.1, "7:3": 24.1, "6:4": 24.2, "5:5": 24.3},
    },
    "wt2": {
        **{"mos": 29.4, "mmlstm-mos": 32.3, "previous": 32.5, "without1": 32.5, "without2": 32.6, "without3": 32.6},
        **{"10:0": 33.6, "9:1": 33.3, "8:2": 33.5, "7:3": 34.0, "6:4": 33.5, "5:5": 33.4},  # 7:3 is printed as 33.8
    },
    "wt103": {"10:0": 75.4, "9:1": 75.2},  # 9:1 is printed as 75.0
}
CASES = [(corpus, system, millions) for corpus, row in MILLIONS.items() for system, millions in row.items()]


@pytest.mark.parametrize("corpus, system, millions", CASES)
def test_networks_have_the_papers_numbers_of_parameters(corpus, system, millions):
    flags = find_recipe(f"mmlstm_{corpus}").flags(system)
    shaping = ("hidden-sizes", "major-proportions", "minor-input", "rnn-cell")
    network = {name.replace("-", "_"): flags[name] for name in shaping if name in flags}
    with torch.device("meta"):
        model = build_lm(flags["arch"], VOCABULARY[corpus], **network)
    assert round(sum(param.numel() for param in model.parameters()) / 1e6, 1) == millions


@pytest.mark.parametrize("system", ["lstm", "mmlstm"])
def test_translation_is_trained_as_by_the_toolkit(system):
    flags = find_recipe("wmt14_mmlstm").flags(system)
    rates = {int(update): rate for update, rate in ast.literal_eval(flags["update2lr"]).items()}
    assert rates == {1: 1, **{170_000 + 17_000 * n: 0.5**n for n in range(1, 10)}}
    assert {"batch-size": 128, "max-update": 340_000, "clip-norm": 5, "sentence-avg": True}.items() <= flags.items()


SHARED = ("optimizer", "tokens-per-sample", "window-lengths", "batch-size", "max-epoch", "clip-norm", "criterion")


@pytest.mark.parametrize("recipe, system", REDUCED_CASES)
def test_systems_differ_in_the_network_and_not_in_the_updates(recipe, system):
    flags, reduced = find_recipe(recipe).flags(system), find_recipe("reduced").flags("tied")
    assert {name: flags[name] for name in SHARED} == {name: reduced[name] for name in SHARED}
    assert flags["lr"] == (7 if system.startswith("rhn") else 20)


@pytest.mark.parametrize("name", ["ptb_small", "wt2_small"])
def test_systems_over_several_seeds_differ_in_the_network_alone(name):
    recipe = find_recipe(name)
    recurrent = [name for name in recipe.systems if not name.startswith("transformer")]
    shaping = {"arch", "embed-dim", "hidden-sizes", "output-layer", "experts-per-layer", "rnn-cell"}
    shaping |= {
        "balance",
        "expert-warmup",
        "major-proportions",
        "label-depth",
        "label-dropout",
        "dropout-weight",
        "latent-dropout",
    }
    flags = {name: dict(recipe.flags(name)) for name in recurrent}
    for mogrifier in (one for name, one in flags.items() if "mogrifier" in name):  # at the others' rate they diverge
        assert mogrifier["lr"] == flags["tied"]["lr"] / 2
        mogrifier["lr"] = flags["tied"]["lr"]
    trainings = [{k: v for k, v in one.items() if k not in shaping} for one in flags.values()]
    assert trainings[1:] == trainings[:-1] and trainings[0]["max-update"] == 5400
    rates = ["dropout_embedding", "dropout_input", "dropout_hidden", "dropout_output"]
    read = [as_fairseq_reads(recipe, name) for name in recurrent]
    assert {tuple(getattr(one, rate) for rate in rates) for one in read} == {(0.05, 0.2, 0.15, 0.2)}
    tied, transformer, doc = (recipe.flags(name) for name in ("tied", "transformer", "transformer-doc"))
    for flags in (transformer, doc):
        batches, updates = ("batch-size", "tokens-per-sample"), ("optimizer", "warmup-updates", "max-update")
        assert all(flags[name] == tied[name] for name in (*batches, *updates))
    assert {name for name in doc if doc[name] != transformer.get(name)} == (
        {"arch", "balance", "expert-warmup", "experts-per-layer", "latent-dropout", "decoder-ffn-embed-dim"}
    )


@pytest.mark.parametrize("name", ["reduced", "reduced_base_models"])
def test_an_averaged_epoch_follows_those_of_every_system_but_gates(name):
    recipe = find_recipe(name)
    trained = [system for system in recipe.systems if "+iog" not in system and not system.endswith("-averaged")]
    averaged = [system for system in recipe.systems if system.endswith("-averaged")]
    assert averaged == [f"{system}-averaged" for system in trained] and len(averaged) > 7
    for system in trained:
        assert recipe.flags(f"{system}-averaged") == {**recipe.flags(system), "averaging": "immediate", "max-epoch": 1}
        assert recipe.system(f"{system}-averaged").base == Base(system=system, flag="finetune-from-model")


def test_systems_of_the_sample_differ_in_the_network_and_not_in_the_training():
    recipe = find_recipe("wsj_sample")
    network = {"arch", "embed-dim", "hidden-sizes", "experts-per-layer", "latent-dropout", "balance"}
    awd, mos, doc = (
        {name: value for name, value in recipe.flags(system).items() if name not in network} for system in WSJ_SYSTEMS
    )
    assert (
        awd == mos == doc and awd["patience"] > awd["nonmonotone-interval"] and recipe.flags("doc")["balance"] == 0.001
    )
