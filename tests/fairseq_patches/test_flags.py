"""A wrong flag or value of a command of fairseq is one line that names it."""

import argparse
import math
import sys
from inspect import unwrap

import pytest
import torch
from fairseq import options

import fairseq_plugins  # noqa: F401  patches fairseq


def ends(words, parse, monkeypatch, capsys):
    """The error of fairseq-train."""
    monkeypatch.setattr(sys, "argv", ["fairseq-train", "data", *words])
    with pytest.raises(SystemExit) as end:
        parse(options.get_training_parser())
    assert end.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    "words, message",
    [
        (["--hiden-sizes", "8"], "unrecognized arguments: --hiden-sizes 8 (did you mean --hidden-sizes or "),
        (["--max-epcoh=8"], "unrecognized arguments: --max-epcoh=8 (did you mean --max-epoch"),
        (["more"], "unrecognized arguments: more\n"),
        (["--arch", "lstm_lm_dco"], "argument --arch/-a: invalid choice: 'lstm_lm_dco' (did you mean lstm_lm_doc or "),
        (["--ddp-backend", "?"], "argument --ddp-backend: invalid choice: '?' (choose from 'c10d', "),
        (["--max-epoch", "x"], "argument --max-epoch: invalid int value: 'x'\n"),
    ],
)
def test_the_nearest_flags_are_named_in_a_line(words, message, monkeypatch, capsys):
    words = ["--arch=lstm_lm_awd", *words]
    told = ends(words, options.parse_args_and_arch, monkeypatch, capsys)
    assert told.startswith(f"fairseq-train: error: {message}") and len(told.splitlines()) == 1


def test_fairseq_alone_prints_all_flags(monkeypatch, capsys):
    words = ["--arch=lstm_lm_awd", "--hiden-sizes", "8"]
    assert ends(words, unwrap(options.parse_args_and_arch), monkeypatch, capsys).count("\n") > 100


# values


def read(parse_args_and_arch, *flags):
    parser = argparse.ArgumentParser(prog="fairseq-train")
    for name in ("clip-norm", "momentum", "dropout"):
        parser.add_argument(f"--{name}", type=float, default=0.0)
    sizes = "batch-size", "max-tokens", "required-batch-size-multiple", "beam", "nbest", "num-shards"
    parser.add_argument("--shard-id", type=int, default=0)
    for name in ("no-seed-provided", "fp16", "fp16-no-flatten-grads", "memory-efficient-fp16", "cpu"):
        parser.add_argument(f"--{name}", action="store_true")
    for name in (*sizes, "patience", "prefix-size", "save-interval", "log-interval", "seed"):
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--max-epoch", default=argparse.SUPPRESS)  # a flag of training alone
    parser.add_argument("--lr", type=options.eval_str_list, default=[0.25])
    parser.add_argument("--update-freq", type=lambda text: options.eval_str_list(text, type=int), default=[1])
    return parse_args_and_arch(parser, list(flags))


PARSERS = {
    "train": options.get_training_parser,
    "eval-lm": options.get_eval_lm_parser,
    "interactive": options.get_interactive_generation_parser,
    "validate": options.get_validation_parser,
}


@pytest.mark.parametrize(
    "words, message",
    [
        ("train data --task translation", "the following arguments are required: --arch/-a"),
        ("validate data --path a.pt", "the following arguments are required: --task"),
        ("eval-lm data --tokens-per-sample 20 --context-window 20", "--context-window 20: give less than --tokens-per"),
        ("interactive data --score-reference", "--score-reference: fairseq-interactive reads no references"),
    ],
)
def test_flags_that_end_fairseq_alone_in_a_traceback_are_named(words, message, monkeypatch, capsys):
    program, *words = words.split()
    monkeypatch.setattr(sys, "argv", [f"fairseq-{program}", *words])
    with pytest.raises(SystemExit) as end:
        options.parse_args_and_arch(PARSERS[program]())
    assert end.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith(f"fairseq-{program}: error: {message}") and len(told.splitlines()) == 1


def test_a_context_that_leaves_a_token_is_taken():
    words = ["data", "--tokens-per-sample", "20", "--context-window", "19"]
    assert options.parse_args_and_arch(options.get_eval_lm_parser(), words).context_window == 19


OF_SIZE = ["--batch-size=0", "--max-tokens=-5", "--required-batch-size-multiple=0", "--beam=0", "--nbest=0"]
WRONG = ["--clip-norm=nan", "--dropout=-NaN", "--clip-norm=-1", "--lr=0.1,-1", "--update-freq=2,0", "--momentum=-0.1"]


@pytest.mark.parametrize(
    "given",
    [
        *(*WRONG, *OF_SIZE, "--shard-id=1", "--shard-id=-1", "--prefix-size=-1"),
        *("--save-interval=0", "--log-interval=0", "--seed=-1"),
    ],
)
def test_a_value_that_fairseq_would_misread_is_refused(given, capsys):
    with pytest.raises(SystemExit) as error:
        read(options.parse_args_and_arch, given)
    line = capsys.readouterr().err
    assert error.value.code == 2 and line.startswith(f"fairseq-train: error: {given.partition('=')[0]} ")
    assert line.count("\n") == 1


@pytest.mark.parametrize("given", [["--fp16"], ["--fp16", "--cpu"]])
def test_training_in_half_precision_without_a_gpu_is_refused(given, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "--cpu" in given)
    training = [*given, "--max-epoch", "1"]
    for possible in (given, [*training, "--fp16-no-flatten-grads"], [*training, "--memory-efficient-fp16"]):
        assert read(options.parse_args_and_arch, *possible).fp16
    with pytest.raises(SystemExit) as error:
        read(options.parse_args_and_arch, *training)
    assert error.value.code == 2
    assert capsys.readouterr().err.startswith("fairseq-train: error: --fp16 needs a GPU: ")


def test_other_values_are_what_they_were_and_fairseq_alone_takes_all():
    args = read(options.parse_args_and_arch, "--clip-norm", "inf", "--lr", "1", "--patience", "-1")
    assert (args.clip_norm, args.lr, args.patience, args.update_freq) == (float("inf"), [1.0], -1, [1])
    args = read(unwrap(options.parse_args_and_arch), *WRONG[:3], "--update-freq", "0")
    assert math.isnan(args.dropout) and args.clip_norm == -1 and args.update_freq == [0]
