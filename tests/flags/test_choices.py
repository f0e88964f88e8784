"""Flags that take one of a few words."""

from argparse import ArgumentError, ArgumentParser
from dataclasses import dataclass, field
from functools import partial
from typing import Optional

import pytest
from builders import build_tiny_encdec, build_tiny_lm, build_tiny_transformer
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from omegaconf import OmegaConf

from fairseq_plugins.flags.choices import check_choices, choices

Colour = choices(["red", "green"])


@dataclass
class Options(FairseqDataclass):
    colour: Colour = field(default="red", metadata={"help": "of the paint"})
    shade: Optional[Colour] = field(default=None, metadata={"help": "of the shade"})
    width: str = field(default="any", metadata={"help": "no choice"})


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


@pytest.mark.parametrize(
    "flags, told",
    [
        ({"colour": "blue"}, "^--colour blue: choose one of red, green$"),
        ({"colour": True}, "^--colour True: choose one of red, green$"),
        ({"shade": "re"}, "^--shade re: choose one of red, green$"),
    ],
)
def test_other_words_from_elsewhere_are_refused(flags, told):
    with pytest.raises(ValueError, match=told):
        check_choices(Options(**flags))


@pytest.mark.parametrize(
    "build, flags",
    [
        (partial(build_tiny_lm, "full"), {"output_bias": "no"}),
        (partial(build_tiny_lm, "full"), {"output_loss": "plian"}),
        (partial(build_tiny_lm, "full"), {"dropout_masks": "lockd"}),
        (partial(build_tiny_lm, "full"), {"word_masks": "rows"}),
        (partial(build_tiny_lm, "drill"), {"label_mask": "none"}),
        (partial(build_tiny_lm, "mos", experts_per_layer="0 0 2"), {"latent_mask": "own"}),
        (partial(build_tiny_lm, "full", rnn_cell="mmlstm", major_proportions="0.5 0.5"), {"minor_input": "left"}),
        (partial(build_tiny_lm, "full", rnn_cell="rhn"), {"transform_input": "output"}),
        (partial(build_tiny_encdec, "full"), {"input_feeding": "yes"}),
        (partial(build_tiny_encdec, "full"), {"attention": "dots"}),
        (partial(build_tiny_encdec, "full"), {"share_embeddings": "some"}),
        (partial(build_tiny_encdec, "full"), {"encoder_directions": "left"}),
        (partial(build_tiny_encdec, "full"), {"encoder_merge": "bottom"}),
        (partial(build_tiny_encdec, "full"), {"init": "bylayer"}),
        (partial(build_tiny_transformer, "transformer_drill"), {"label_residual": "true"}),
    ],
)
def test_models_refuse_words_that_are_no_choices(build, flags):
    ((name, value),) = flags.items()
    with pytest.raises(ValueError, match=f"^--{name.replace('_', '-')} {value}: choose one of "):
        build(**flags)
