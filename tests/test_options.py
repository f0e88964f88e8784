"""Values of the command line: lists, rates, positive numbers."""

import math
import re
from argparse import ArgumentError, ArgumentParser
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Optional

import numpy as np
import pytest
from builders import build_tiny_encdec, build_tiny_lm, build_tiny_transformer
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from omegaconf import OmegaConf

import fairseq_plugins  # noqa: F401  registers all parts
from fairseq_plugins.options import (
    UserError,
    check_at_least_one,
    check_choice,
    check_choices,
    check_dropout,
    check_not_negative,
    check_positive,
    choices,
    named_paths,
    optionally_named_paths,
    parse_numbers,
)

INTS = [("0 0 5 15", [0, 0, 5, 15]), ("0,0,5,15", [0, 0, 5, 15]), (" 7 ", [7]), ("1, 2", [1, 2]), ("-3 4", [-3, 4])]
INTS += [(16, [16]), ([16, 8], [16, 8]), (OmegaConf.create([16, 8]), [16, 8])]  # as in a YAML file
FLOATS = [("0.9 1 .5", [0.9, 1.0, 0.5]), ("0.9,0.6", [0.9, 0.6]), (" 7 ", [7.0])]


@pytest.mark.parametrize(
    "kind, text, expected", [*((int, *case) for case in INTS), *((float, *case) for case in FLOATS)]
)
def test_lists_are_separated_by_spaces_or_commas(kind, text, expected):
    numbers = parse_numbers(text, kind, flag="--sizes", example="1")
    assert numbers == expected and {*map(type, numbers)} == {kind}


NO_INTS = ["", " ", ",", "a", "1 b", "1.5", "1e3", "3-", "-", "--3", "²", "0x10", "None"]
REFUSED = [
    *((partial(parse_numbers, kind=int, example="1"), text) for text in NO_INTS),
    *((partial(parse_numbers, kind=float, example="1"), text) for text in ("", ",", "a", "0.9 b", "90%", "None")),
    *((check_dropout, rate) for rate in (-0.1, 1.0, 1, math.nan, math.inf)),
    *((check_positive, value) for value in (0, -1, math.nan, math.inf)),
    *((check_not_negative, value) for value in (-1, math.nan, math.inf)),
    *((check_at_least_one, value) for value in (0, 2.0, None, "2")),
    (partial(check_choice, choices=["red", "green"]), "blue"),
]


@pytest.mark.parametrize("check, value", REFUSED)
def test_a_wrong_value_is_refused_with_its_flag(check, value):
    with pytest.raises(UserError, match=r"^--flag "):
        check(value, flag="--flag")


@pytest.mark.parametrize(
    "check, value",
    [
        *((check_dropout, rate) for rate in (0, 0.0, 0.999)),
        *((check_positive, 3), (check_not_negative, 0), (check_at_least_one, np.int64(2))),
        (partial(check_choice, choices=["red", "green"]), "red"),
    ],
)
def test_a_value_is_passed_on(check, value):
    assert check(value, flag="--flag") == value


def test_a_path_may_have_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert optionally_named_paths(["A=a.pt", "A=runs/lr=2.pt"]) == [("A", "a.pt"), ("A", "runs/lr=2.pt")]
    (tmp_path / "lr=20.pt").touch()
    assert optionally_named_paths(["a=a", "b=b.pt"]) == [("a", "a"), ("b", "b.pt")]
    own = ["a.pt", "lr=20.pt", "runs/lr=20/a.pt", "./lr=2.pt", "=a.pt"]
    assert optionally_named_paths(own) == [(path, path) for path in own]


@pytest.mark.parametrize("texts", [["a.pt", "B=b.pt"], ["B=b.pt", "a.pt"], ["a.pt", "a.pt=a.pt"], ["A="]])
def test_paths_of_which_some_have_no_name_or_no_path_are_refused(texts):
    with pytest.raises(UserError, match="^(a.pt|A=): give it as NAME=PATH"):
        optionally_named_paths(texts)


@pytest.mark.parametrize("texts", [["a.pt"], ["=a.pt"], ["A="], ["A=a.pt", "A=b.pt"]])
def test_names_that_are_needed(texts):
    with pytest.raises(UserError, match="NAME"):
        named_paths(texts, repeated_names="refused")
    assert named_paths(["A=a.pt", "A=b=c.pt"]) == [("A", Path("a.pt")), ("A", Path("b=c.pt"))]


Colour = choices(["red", "green"])


@dataclass
class Options(FairseqDataclass):
    colour: Colour = field(default="red", metadata={"help": "of the paint"})
    shade: Optional[Colour] = field(default=None, metadata={"help": "of the shade"})
    width: str = field(default="any", metadata={"help": "no choice"})


def test_a_parsed_value_is_a_string_and_other_words_are_refused():
    parser = ArgumentParser(exit_on_error=False)
    gen_parser_from_dataclass(parser, Options())
    for arguments, colour in (([], "red"), (["--colour", "green"], "green")):
        value = parser.parse_args(arguments).colour
        assert type(value) is str and value == colour
    with pytest.raises(ArgumentError, match="invalid choice: 'blue'"):
        parser.parse_args(["--colour", "blue"])


def test_a_value_of_a_configuration_stands_for_its_string():
    value = OmegaConf.structured(Options(colour=Colour("green"))).colour
    assert value == "green" and str(value) == "green" and f"{value}" == "green"
    assert {"green": 1}[value] == 1


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(colour="green", shade="red", width="blue"),
        Options(colour=Colour("green"), shade=Colour("red")),
    ],
)
def test_words_from_elsewhere_are_checked_and_kept(options):
    kept = (options.colour, options.shade, options.width)
    assert check_choices(options) is options and (options.colour, options.shade, options.width) == kept


@pytest.mark.parametrize("flags", [{"colour": "blue"}, {"colour": True}, {"shade": "re"}])
def test_other_words_from_elsewhere_are_refused(flags):
    ((name, value),) = flags.items()
    with pytest.raises(UserError, match=f"^--{name} {value}: choose one of red, green$"):
        check_choices(Options(**flags))


@pytest.mark.parametrize(
    "build, flags",
    [
        (partial(build_tiny_lm, "full"), {"dropout_masks": "lockd"}),
        (partial(build_tiny_lm, "drill"), {"label_mask": "none"}),
        (partial(build_tiny_lm, "mos", experts_per_layer="0 0 2"), {"latent_mask": "own"}),
        (partial(build_tiny_lm, "full", rnn_cell="mmlstm", major_proportions="0.5 0.5"), {"minor_input": "left"}),
        (partial(build_tiny_encdec, "full"), {"attention": "dots"}),
        (partial(build_tiny_transformer, "transformer_drill"), {"label_residual": "true"}),
    ],
)
def test_models_refuse_words_that_are_no_choices(build, flags):
    ((name, value),) = flags.items()
    with pytest.raises(ValueError, match=f"^--{name.replace('_', '-')} {value}: choose one of "):
        build(**flags)


def subclasses(cls):
    return {cls}.union(*map(subclasses, cls.__subclasses__()))


OPTIONS = [cls for cls in subclasses(FairseqDataclass) if cls.__module__.startswith("fairseq_plugins.")]


def test_told_defaults_are_those_of_the_fields():
    num_told = 0
    for options in OPTIONS:
        for each in fields(options):
            told = re.search(r"\(default: ([^ ,;)]+)", each.metadata.get("help", ""))
            num_told += bool(told)
            assert not told or each.default is None or told[1] == str(each.default), (options, each.name)
    assert len(OPTIONS) > 20 and num_told > 50
