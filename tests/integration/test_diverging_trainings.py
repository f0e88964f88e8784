"""A training that diverges ends with one line, whatever the network."""

import re

import fairseq_cli.train
import pytest
from commands import PLUGINS, training_arguments
from translation_commands import TRANSFORMER_SIZES, training_flags

RATE = ["--lr", "1e37", "--max-epoch", 1, "--disable-validation"]


def diverge(run_here, arguments) -> str:
    with pytest.raises(ValueError) as raised:
        run_here(fairseq_cli.train, *arguments)
    (line,) = str(raised.value).splitlines()
    return line


def test_a_language_model(data, tmp_path, run_here):
    line = diverge(run_here, training_arguments(data, tmp_path, *RATE, "--clip-norm", 0))
    lower = r"lower --lr \(now 1e\+37\), --activation-regularization \(now 2\), .*, --balance \(now 0.001\)"
    where = r"decoder\.[\w.]+(| and \d+ others)"
    told = rf"the training diverged at update [2-9]: .* in {where}; {lower}, or give --clip-norm$"
    assert re.match(told, line), line
    assert not list(tmp_path.glob("checkpoint*.pt"))


def test_a_recurrence_that_explodes_in_validation_alone(data, tmp_path, run_here):
    """The loss of noise-contrastive estimation is bounded, the one of validation is not."""
    model = ("--arch", "rectifier_rnn_lm", "--recurrent-scale", 3, "--criterion", "noise_contrastive")
    stream = ("--task", "stateful_lm", "--tokens-per-sample", 10, "--batch-size", 2)
    flags = ("--user-dir", PLUGINS, *stream, *model, "--optimizer", "sgd", "--lr", 0.1, "--max-update", 1, "--cpu")
    line = diverge(run_here, [data, "--save-dir", tmp_path, *flags])
    told = r"the training diverged at update 1: the loss of validation is inf or NaN, the largest weight is "
    assert re.match(told, line), line
    assert not list(tmp_path.glob("checkpoint*.pt"))


@pytest.mark.slow
def test_a_transformer(pair_data, tmp_path, run_here):
    arguments = training_flags(pair_data, tmp_path, *RATE, model=("--arch", "transformer_doc"), sizes=TRANSFORMER_SIZES)
    assert re.match(
        r"the training diverged at update \d+: .* in \w+coder\..*; lower --lr", diverge(run_here, arguments)
    )
