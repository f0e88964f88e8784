"""Flags that take one of a few words."""

from argparse import ArgumentError, ArgumentParser
from dataclasses import dataclass, field

import pytest
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from omegaconf import OmegaConf

from fairseq_plugins.flags.choices import choices

Colour = choices(["red", "green"])


@dataclass
class Options(FairseqDataclass):
    colour: Colour = field(default="red", metadata={"help": "of the paint"})


@pytest.fixture
def parser():
    parser = ArgumentParser(exit_on_error=False)
    gen_parser_from_dataclass(parser, Options())
    return parser


def test_a_parsed_value_is_a_string(parser):
    for arguments, colour in (([], "red"), (["--colour", "green"], "green")):
        value = parser.parse_args(arguments).colour
        assert type(value) is str and value == colour


def test_other_words_are_refused(parser):
    with pytest.raises(ArgumentError, match="invalid choice: 'blue'"):
        parser.parse_args(["--colour", "blue"])


def test_a_value_of_a_configuration_stands_for_its_string():
    value = OmegaConf.structured(Options(colour=Colour("green"))).colour
    assert value == "green" and str(value) == "green" and f"{value}" == "green"
    assert {"green": 1}[value] == 1
