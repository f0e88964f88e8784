"""Networks and rates that the recipes of the Major-Minor LSTM ask for, against the paper's."""

import ast
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from fairseq_plugins.recipes import find_recipe

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
def test_networks_have_the_papers_numbers_of_parameters(corpus, system, millions, make_task):
    flags = find_recipe(f"mmlstm_{corpus}").flags(system)
    shaping = ("arch", "hidden-sizes", "major-proportions", "minor-input", "rnn-cell")
    args = Namespace(**{name.replace("-", "_"): flags[name] for name in shaping if name in flags})
    ARCH_CONFIG_REGISTRY[args.arch](args)
    with torch.device("meta"):
        model = ARCH_MODEL_REGISTRY[args.arch].build_model(args, make_task(VOCABULARY[corpus]))
    assert round(sum(param.numel() for param in model.parameters()) / 1e6, 1) == millions


def test_more_dropout_is_more_dropout():
    flags = find_recipe("mmlstm_ptb").flags("lm+")
    assert (flags["arch"], flags["dropout-hidden"], flags["dropout-weight"]) == ("lstm_lm_mos_ptb", 0.25, 0.525)


@pytest.mark.parametrize("system, corpus", [("lm", "wt2"), ("mos", "wt103"), ("4:6", "ptb"), ("mmlstm-mos", "text8")])
def test_what_the_paper_has_not_is_refused(system, corpus):
    with pytest.raises(ValueError, match="choose one of "):
        find_recipe(f"mmlstm_{corpus}").flags(system)


@pytest.mark.parametrize("system, millions", [("lstm", 170.7), ("mmlstm", 172.8)])
def test_translation_is_trained_as_by_the_toolkit(system, millions, make_dictionary):
    flags = find_recipe("wmt14_mmlstm").flags(system)
    args = Namespace(arch=flags["arch"])
    ARCH_CONFIG_REGISTRY[args.arch](args)
    words = make_dictionary(33_200)
    with torch.device("meta"):
        task = SimpleNamespace(source_dictionary=words, target_dictionary=words)
        model = ARCH_MODEL_REGISTRY[args.arch].build_model(args, task)
    second_biases = sum(param.numel() for name, param in model.named_parameters() if "bias_hh" in name)
    assert round((sum(param.numel() for param in model.parameters()) - second_biases) / 1e6, 1) == millions
    rates = {int(update): rate for update, rate in ast.literal_eval(flags["update2lr"]).items()}
    assert rates == {1: 1, **{170_000 + 17_000 * n: 0.5**n for n in range(1, 10)}}
    assert {"batch-size": 128, "max-update": 340_000, "clip-norm": 5, "sentence-avg": True}.items() <= flags.items()
