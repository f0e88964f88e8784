"""Configurations of commands that tests run are those of hydra, composed faster."""

import preloaded
import pytest
from fairseq import options
from fairseq.dataclass import utils

STREAMS = ["--task", "stateful_lm", "--criterion", "regularized_cross_entropy", "--optimizer", "nt_asgd", "--lr", "5,1"]
PAIRS = ["--task", "translation", "--criterion", "regularized_cross_entropy", "--optimizer", "adam", "--lr", "0.1"]


@pytest.mark.parametrize(
    "flags",
    [
        ["a b", "--arch", "lstm_lm_doc", *STREAMS, "--balance", "0.5", "--bf16", "--update-freq", "2"],
        ["c:d", "--arch", "transformer_doc", *PAIRS, "--adam-betas", "(0.5, 0.6)", "--eval-bleu-args", '{"beam": 3}'],
    ],
)
def test_a_configuration_is_that_of_hydra(flags, monkeypatch):
    args = options.parse_args_and_arch(options.get_training_parser(), flags)
    monkeypatch.setattr(utils, "compose", preloaded._compose)
    expected = utils.convert_namespace_to_omegaconf(args)
    monkeypatch.setattr(utils, "compose", preloaded.compose)
    monkeypatch.setattr(preloaded, "_compose", None)  # what is composed was kept
    assert utils.convert_namespace_to_omegaconf(args) == expected


def test_a_wrong_value_is_refused_in_the_words_of_hydra(monkeypatch):
    args = options.parse_args_and_arch(options.get_training_parser(), ["data", "--arch", "transformer_doc", *PAIRS])
    args.ddp_backend = "nowhere"
    told = []
    for compose in (preloaded._compose, preloaded.compose):
        monkeypatch.setattr(utils, "compose", compose)
        with pytest.raises(Exception) as error:
            utils.convert_namespace_to_omegaconf(args)
        told.append((type(error.value), str(error.value)))
    assert told[0] == told[1] and "nowhere" in told[0][1]
