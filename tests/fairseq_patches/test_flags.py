"""A wrong flag or value of a command of fairseq is one line that names it."""

import math
import sys
from inspect import unwrap

import pytest
import torch
from fairseq import options

import fairseq_plugins  # noqa: F401  patches fairseq

PARSERS = {
    "train": options.get_training_parser,
    "generate": options.get_generation_parser,
    "eval-lm": options.get_eval_lm_parser,
    "interactive": options.get_interactive_generation_parser,
    "validate": options.get_validation_parser,
}
TRAIN = "train --arch=lstm_lm_awd --optimizer=sgd"
TRANSFORMER = "train --arch=transformer --task=translation"
GENERATE = "generate --path=a.pt"


@pytest.fixture
def read(monkeypatch):
    """``read(typed)``: the flags of a program of fairseq, as its parser reads them."""

    def read(typed, parse_args_and_arch=options.parse_args_and_arch):
        program, *words = typed.split()
        monkeypatch.setattr(sys, "argv", [f"fairseq-{program}", "data", *words])
        return parse_args_and_arch(PARSERS[program]())

    return read


@pytest.fixture
def error_of(read, capsys):
    """``error_of(typed)``: what the program prints when it ends with status 2."""

    def error_of(*typed):
        with pytest.raises(SystemExit) as end:
            read(*typed)
        assert end.value.code == 2
        return capsys.readouterr().err

    return error_of


@pytest.mark.parametrize(
    "typed, message",
    [
        (f"{TRAIN} --hiden-sizes 8", "unrecognized arguments: --hiden-sizes 8 (did you mean --hidden-sizes or "),
        (f"{TRAIN} --max-epcoh=8", "unrecognized arguments: --max-epcoh=8 (did you mean --max-epoch"),
        (f"{TRAIN} more", "unrecognized arguments: more\n"),
        ("train --arch lstm_lm_dco", "argument --arch/-a: invalid choice: 'lstm_lm_dco' (did you mean lstm_lm_doc or "),
        (f"{TRAIN} --ddp-backend ?", "argument --ddp-backend: invalid choice: '?' (choose from 'c10d', "),
        (f"{TRAIN} --max-epoch x", "argument --max-epoch: invalid int value: 'x'\n"),
        # fairseq alone ends in a traceback
        ("train --task translation", "the following arguments are required: --arch/-a"),
        ("validate --path a.pt", "the following arguments are required: --task"),
        ("eval-lm --tokens-per-sample 20 --context-window 20", "--context-window 20: give less than --tokens-per"),
        ("interactive --score-reference", "--score-reference: fairseq-interactive reads no references"),
        # it trains or decodes otherwise than was meant
        (f"{TRAIN} --clip-norm=nan", "--clip-norm nan: give a number"),
        (f"{TRANSFORMER} --dropout=-NaN", "--dropout nan: give a number"),
        *((f"{TRAIN} {flag}=-0.1", f"{flag} -0.1: give at least 0") for flag in ("--clip-norm", "--momentum")),
        (f"{TRAIN} --lr=0.1,-1", "--lr -1.0: give at least 0"),
        (f"{TRAIN} --update-freq=2,0", "--update-freq 0: give at least 1"),
        (f"{TRAIN} --seed=-1", "--seed -1: give at least 0"),
        *((f"{TRAIN} {flag}=0", f"{flag} 0: give at least 1") for flag in ("--save-interval", "--log-interval")),
        *((f"{TRAIN} {flag}=0", f"{flag} 0: give at least 1") for flag in ("--batch-size", "--max-tokens")),
        (f"{TRAIN} --required-batch-size-multiple=0", "--required-batch-size-multiple 0: give at least 1"),
        *((f"{GENERATE} {flag}=0", f"{flag} 0: give at least 1") for flag in ("--beam", "--nbest", "--num-shards")),
        (f"{GENERATE} --prefix-size=-1", "--prefix-size -1: give at least 0"),
        *((f"{GENERATE} --shard-id={shard}", f"--shard-id {shard}: shards count from 0 to") for shard in (1, -1)),
    ],
)
def test_what_is_wrong_is_named_in_a_line(typed, message, error_of):
    told = error_of(typed)
    assert told.startswith(f"fairseq-{typed.split()[0]}: error: {message}") and len(told.splitlines()) == 1


def test_fairseq_alone_prints_all_flags(error_of):
    assert error_of(f"{TRAIN} --hiden-sizes 8", unwrap(options.parse_args_and_arch)).count("\n") > 100


@pytest.mark.parametrize("given", ["--fp16", "--fp16 --cpu"])
def test_training_in_half_precision_without_a_gpu_is_refused(given, monkeypatch, read, error_of):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "--cpu" in given)
    training = f"{TRAIN} {given}"
    for possible in (
        f"{GENERATE} {given}",
        f"{training} --fp16-no-flatten-grads",
        f"{training} --memory-efficient-fp16",
    ):
        assert read(possible).fp16
    assert error_of(training).startswith("fairseq-train: error: --fp16 needs a GPU: ")


def test_other_values_are_what_they_were_and_fairseq_alone_takes_all(read):
    assert read("eval-lm --tokens-per-sample 20 --context-window 19").context_window == 19
    args = read(f"{TRAIN} --clip-norm inf --lr 1 --patience -1")
    assert (args.clip_norm, args.lr, args.patience, args.update_freq) == (math.inf, [1.0], -1, [1])
    args = read(f"{TRANSFORMER} --clip-norm=-1 --dropout=-NaN --update-freq 0", unwrap(options.parse_args_and_arch))
    assert math.isnan(args.dropout) and args.clip_norm == -1 and args.update_freq == [0]
