"""Flags of the host whose values cannot be."""

import argparse
from inspect import unwrap

import pytest
import torch
from fairseq import options

import fairseq_plugins  # noqa: F401

BACKSLASH = "a backslash before a quotation mark or the end"


def read(parse_args_and_arch, *flags):
    parser = argparse.ArgumentParser(prog="fairseq-train")
    parser.add_argument("--clip-norm", type=float, default=0.0)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--patience", type=int, default=-1)
    parser.add_argument("--save-dir", default="checkpoints")
    parser.add_argument("--model-overrides", default="{}")
    parser.add_argument("--adam-betas", default="(0.9, 0.999)")
    parser.add_argument("--lr", type=options.eval_str_list, default=[0.25])
    parser.add_argument("--update-freq", type=lambda text: options.eval_str_list(text, type=int), default=[1])
    return parse_args_and_arch(parser, list(flags))


@pytest.mark.parametrize(
    "flag, value, told",
    [
        ("--clip-norm", "nan", "nan: give a number"),
        ("--clip-norm", "-NaN", "nan: give a number"),
        ("--clip-norm", "-1", "-1.0: give at least 0"),
        ("--lr", "0.1,-1", "-1.0: give at least 0"),
        ("--update-freq", "2,0", "0: give at least 1"),
        ("--seed", "-1", "-1: give at least 0"),
        ("--seed", "4294967296", "4294967296: give less than 4,294,967,296"),
        ("--momentum", "1", "1.0: give less than 1"),
        ("--save-dir", "", "is empty: give a folder"),
        *(
            ("--save-dir", name, f"{name}: fairseq cannot read ${{, or {BACKSLASH}: give another name")
            for name in ("${x}/a", "a${b", "a\\", "a\\'b")
        ),
        *(
            ("--model-overrides", text, f'"{text}": give a dictionary, such as "{{\'dropout\': 0.1}}"')
            for text in ("x", "{'a':", "1", "print(1)")
        ),
        ("--patience", "-2", "-2: give at least -1"),
        *(
            ("--adam-betas", value, f'{value}: give two numbers from 0 on, below 1, as in "(0.9, 0.999)"')
            for value in ("nan", "0.9", "(0.9, 1)", "(0.9,)", "(-0.1, 0.9)", "('a', 'b')", "(")
        ),
    ],
)
def test_what_cannot_be_is_refused_with_one_line(flag, value, told, capsys):
    with pytest.raises(SystemExit) as error:
        read(options.parse_args_and_arch, f"{flag}={value}")
    assert error.value.code == 2 and capsys.readouterr().err == f"fairseq-train: error: {flag} {told}\n"


def with_fp16(parse_args_and_arch, *flags):
    parser = argparse.ArgumentParser(prog="fairseq-train")
    parser.add_argument("--batch-size", type=int, default=1)
    for flag in ("--fp16", "--fp16-no-flatten-grads", "--memory-efficient-fp16", "--cpu"):
        parser.add_argument(flag, action="store_true")
    if "--generate" not in flags:
        parser.add_argument("--update-freq", default=[1])
    return parse_args_and_arch(parser, [flag for flag in flags if flag != "--generate"])


@pytest.mark.parametrize("has_gpu, flags", [(False, []), (True, ["--cpu"])])
def test_fp16_needs_a_gpu_for_its_flat_copy(has_gpu, flags, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    with pytest.raises(SystemExit) as error:
        with_fp16(options.parse_args_and_arch, "--fp16", *flags)
    told = "--fp16: it needs a GPU; give --bf16 in its place"
    assert error.value.code == 2 and capsys.readouterr().err == f"fairseq-train: error: {told}\n"


@pytest.mark.parametrize(
    "has_gpu, flags",
    [
        (True, []),
        (False, ["--generate"]),
        (False, ["--memory-efficient-fp16", "--cpu"]),
        (False, ["--fp16-no-flatten-grads"]),
    ],
)
def test_fp16_is_taken_where_it_works(has_gpu, flags, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert with_fp16(options.parse_args_and_arch, "--fp16", *flags).fp16


def test_values_are_what_they_were():
    args = read(options.parse_args_and_arch, "--clip-norm", "inf", "--lr", "1", "--adam-betas", "[0.5, 0]")
    assert (args.clip_norm, args.lr, args.adam_betas) == (float("inf"), [1.0], "[0.5, 0]")
    assert (args.seed, args.patience, args.update_freq) == (1, -1, [1])


def test_the_host_alone_takes_them():
    args = read(unwrap(options.parse_args_and_arch), "--clip-norm", "nan", "--update-freq", "0", "--seed", "-1")
    assert args.clip_norm != args.clip_norm and (args.update_freq, args.seed) == ([0], -1)


@pytest.mark.parametrize("given, told", [([], "missing or empty"), (["--path", ""], "missing or empty")])
def test_what_reads_trained_models_needs_a_path(given, told, capsys):
    parser = argparse.ArgumentParser(prog="fairseq-validate")
    parser.add_argument("--path")
    parser.add_argument("--batch-size", type=int, default=1)
    with pytest.raises(SystemExit) as error:
        options.parse_args_and_arch(parser, given)
    assert error.value.code == 2 and f"--path is {told}: give a checkpoint" in capsys.readouterr().err


def test_a_validation_needs_a_task(capsys):
    with pytest.raises(SystemExit) as error:
        options.parse_args_and_arch(options.get_validation_parser(), ["data", "--path", "a.pt"])
    assert error.value.code == 2 and "--task is missing: give that of the training" in capsys.readouterr().err
