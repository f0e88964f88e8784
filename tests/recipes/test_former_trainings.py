"""Every system is trained with the flags of its former script.

``fixtures/former_trainings.json`` has the flags that those scripts and the benchmark passed to fairseq-train.
"""

import ast
import json
from pathlib import Path

import pytest
from fairseq import options

from fairseq_plugins.models.presets import ARCHITECTURES, command_line
from fairseq_plugins.recipes import RECIPES, training_arguments

FORMER = json.loads((Path(__file__).parents[1] / "fixtures/former_trainings.json").read_text(encoding="utf-8"))
REDUCED = ("lm/ptb_reduced.sh", "lm/drill_reduced.sh", "lm/mmlstm_reduced.sh")
# the same runs under the architectures of two papers
RENAMED = {
    ("lm/ptb_reduced.sh", "awd"): ("tied", {}),
    ("lm/mmlstm_reduced.sh", "10:0"): ("tied", {"arch": "lstm_lm_awd"}),
    ("lm/mmlstm_reduced.sh", "mos"): ("mos", {"arch": "lstm_lm_mos"}),
}
# on WikiText-2 these masks are those of DRILL itself, so both rows were the same run
SAME_AS = {("CORPUS=wt2 lm/drill.sh", "standard"): "drill"}
# scripts without a seed argument
NO_SEED_TAKEN = ("lm/train_preset.sh", "demo.sh demo_lm", "demo.sh demo_translation")
# benchmarks save nothing and set the interval of the log themselves
SAID_BY_BENCHMARKS = ("no_epoch_checkpoints", "log_interval")

# Changed since then:
# presets of MoS and DOC for WikiText-2 compute micro-batches of rows, as the programs of their papers do
IN_GROUPS = ("lstm_lm_mos_wt2", "lstm_lm_doc_wt2", "mmlstm_lm_mos_wt2")
# the validation set is decoded, which changes nothing else
SCORED = ("multi30k", "multi30k_transformer", "agnews", "reuters21578")
# the gradient of a sentence is clipped, as in the toolkit of the paper
CLIPPED_BY_SENTENCE = ("iwslt16", "gigaword")
# LSTMs have one bias vector, as in the toolkits of the papers
ONE_BIAS = ("iwslt16", "gigaword", "wmt14_mmlstm")
# the attention that the architectures had then is kept
WITH_GENERAL_ATTENTION = ("multi30k", "agnews", "demo_translation")
# the output layer uses the faster precision, because both were found to be equally good
FOR_CPUS = ("reduced", "multi30k", "agnews", "demo_lm", "demo_translation")


def place_of(group, system):
    """Recipe and name of the system of a former script."""
    script = group.split()[-1]
    if script in REDUCED:
        return "reduced", RENAMED.get((group, system), (system,))[0]
    if group.startswith("benchmark_lm.py"):
        recipe = RECIPES[f"speed_{script}"]
        return recipe.name, next(name for name in recipe.systems if recipe.label(name) == system)
    if script == "lm/train_preset.sh":
        return "presets", system
    name = Path(script).stem
    recipe = f"{name}_{group.split()[0].partition('=')[2]}" if group.startswith("CORPUS") else name
    return recipe, SAME_AS.get((group, system), system)


def read(arguments):
    """What fairseq makes of a command line."""
    args = vars(options.parse_args_and_arch(options.get_training_parser(), input_args=arguments))
    if "update2lr" in args:
        args["update2lr"] = ast.literal_eval(args["update2lr"])
    return args


@pytest.mark.parametrize("group", FORMER)
def test_systems_are_trained_as_before(group):
    for system, own in FORMER[group]["systems"].items():
        seed = {} if group in NO_SEED_TAKEN else {"seed": 7}
        former = read(["data", "--save-dir=save", *command_line({**FORMER[group]["all"], **own, **seed})])
        former.update(RENAMED.get((group, system), ("", {}))[1])
        recipe, name = place_of(group, system)
        arguments = training_arguments(RECIPES[recipe], name, data="data", save_dir="save", **seed)
        found = read([argument for argument in arguments if not argument.startswith("--user-dir")])
        for flag in SAID_BY_BENCHMARKS if group.startswith("benchmark_lm.py") else ():
            del former[flag], found[flag]
        if recipe in SCORED:
            assert (found.pop("task"), former.pop("task")) == ("scored_translation", "translation"), system
            former = {flag: value for flag, value in former.items() if not flag.startswith("eval_bleu")}
            found = {flag: value for flag, value in found.items() if not flag.startswith(("eval_bleu", "eval_scorer"))}
        if recipe in CLIPPED_BY_SENTENCE:
            assert found.pop("sentence_avg") and not former.pop("sentence_avg"), system
        if recipe in ONE_BIAS:
            assert found.pop("rnn_biases") == "one" and "rnn_biases" not in former, system
        if recipe in WITH_GENERAL_ATTENTION and found["arch"] in ARCHITECTURES:
            former["attention"] = "general"
        if recipe in FOR_CPUS:
            assert found.pop("output_precision", None) == ("auto" if found["arch"] in ARCHITECTURES else None), system
        in_groups = found["arch"] in IN_GROUPS and RECIPES[recipe].training_of_presets == "taken"
        assert found.pop("row_groups", 1) == (3 if in_groups else 1), system
        former.pop("row_groups", None)
        assert found == former, system


def test_all_former_trainings_have_a_place():
    places = {place_of(group, system) for group, rows in FORMER.items() for system in rows["systems"]}
    assert places <= {(name, system) for name, recipe in RECIPES.items() for system in recipe.systems}
