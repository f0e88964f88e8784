"""Flags of the host whose value is no number."""

import argparse

import pytest
from fairseq import options

import fairseq_plugins  # noqa: F401


def read(parse_args_and_arch, *flags):
    parser = argparse.ArgumentParser(prog="fairseq-train")
    parser.add_argument("--clip-norm", type=float, default=0.0)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--lr", type=options.eval_str_list, default=[0.25])
    return parse_args_and_arch(parser, list(flags))


@pytest.mark.parametrize("flag, value", [("--clip-norm", "nan"), ("--clip-norm", "-NaN"), ("--lr", "float('nan')")])
def test_nan_is_refused_with_one_line(flag, value, capsys):
    with pytest.raises(SystemExit) as error:
        read(options.parse_args_and_arch, f"{flag}={value}")
    assert error.value.code == 2 and capsys.readouterr().err == f"fairseq-train: error: {flag} nan: give a number\n"


def test_numbers_are_what_they_were():
    args = read(options.parse_args_and_arch, "--clip-norm", "inf", "--lr", "1")
    assert args.clip_norm == float("inf") and args.lr == [1.0]


def test_the_host_alone_takes_nan_for_a_number():
    args = read(options.parse_args_and_arch.__wrapped__, "--clip-norm", "nan")
    assert args.clip_norm != args.clip_norm
