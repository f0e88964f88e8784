"""Components that a flag chooses, and their flags."""

import argparse
from argparse import Namespace
from dataclasses import dataclass, field

import pytest
from fairseq.dataclass import FairseqDataclass

from fairseq_plugins.flags.registry import Component, Registry


@dataclass
class SizeOptions(FairseqDataclass):
    width: int = field(default=4, metadata={"help": "of all layers"})


@dataclass
class RoundOptions(SizeOptions):
    radius: float = field(default=0.5, metadata={"help": "of the corners", "argparse_alias": "-r"})


@dataclass
class OtherRadiusOptions(FairseqDataclass):
    radius: int = 1


@dataclass
class NameOptions(FairseqDataclass):
    shape_name: str = ""


def component(options=FairseqDataclass):
    return type("Shape", (Component,), {"Options": options})


@pytest.fixture
def shapes():
    registry = Registry("--shape-name", help="what it looks like")
    for name, options in (("square", SizeOptions), ("round", RoundOptions), ("oval", RoundOptions)):
        registry.register(name)(component(options))
    return registry


def parser_of(registry):
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)  # as the host's model group
    registry.add_args(parser)
    return parser


def help_of(registry):
    return {action.dest: action.help for action in parser_of(registry)._actions}


def test_components_are_found_by_their_names(shapes):
    assert shapes.find("round") is shapes["round"] and shapes["round"].name == "round"
    with pytest.raises(ValueError, match="--shape-name flat: choose one of oval, round, square"):
        shapes.find("flat")


def test_a_name_is_registered_once(shapes):
    first = shapes["round"]
    with pytest.raises(ValueError, match="--shape-name round is registered twice: give Shape another name"):
        shapes.register("round")(component())
    assert shapes["round"] is first


def test_one_option_of_two_components_is_refused_when_the_second_is_registered(shapes):
    told = r"--radius is declared by \S*RoundOptions and by \S*OtherRadiusOptions"
    with pytest.raises(ValueError, match=told):
        shapes.register("wheel")(component(OtherRadiusOptions))
    assert "wheel" not in shapes and help_of(shapes)["radius"] == "oval, round: of the corners"


def test_an_option_with_the_name_of_the_flag_is_refused(shapes):
    with pytest.raises(ValueError, match="--shape-name is declared by the registry of --shape-name and by"):
        shapes.register("self")(component(NameOptions))


def test_an_option_of_what_stands_beside_the_registry_is_refused(shapes):
    others = {}
    shapes.stand_beside(lambda: others)
    shapes.register("wheel")(component(RoundOptions))
    others["radius"] = "the wheel's maker"
    with pytest.raises(ValueError, match="--radius is declared by the wheel's maker and by"):
        shapes.register("disc")(component(RoundOptions))


def test_help_names_the_components_that_have_an_option(shapes):
    assert help_of(shapes)["width"] == "of all layers"
    assert help_of(shapes)["radius"] == "oval, round: of the corners"
    shapes.register("plain")(component())
    assert help_of(shapes)["width"] == "oval, round, square: of all layers"


def test_flags_are_added_without_defaults_and_keep_their_types_and_aliases(shapes):
    parser = parser_of(shapes)
    assert vars(parser.parse_args([])) == {}
    assert parser.parse_args(["--width", "3", "-r", "2"]) == Namespace(width=3, radius=2.0)
    assert parser.parse_args(["--shape-name", "oval"]) == Namespace(shape_name="oval")
    with pytest.raises(SystemExit):
        parser.parse_args(["--shape-name", "flat"])


def test_absent_options_take_their_defaults(shapes):
    options = shapes.read_options(Namespace(shape_name="round", radius=1.0))
    assert isinstance(options, RoundOptions) and (options.width, options.radius) == (4, 1.0)


def test_options_of_another_component_are_refused(shapes):
    with pytest.raises(ValueError, match="--radius: not a flag of --shape-name square"):
        shapes.read_options(Namespace(shape_name="square", radius=1.0))


def test_an_option_that_another_switches_off_is_refused_with_what_gives_it_an_effect(shapes):
    shapes["round"].unused_options = lambda args: {} if args.width else {"radius": "give a --width"}
    told = "^--radius has no effect on this --shape-name round: leave it out, or give a --width$"
    with pytest.raises(ValueError, match=told):
        shapes.read_options(Namespace(shape_name="round", width=0, radius=1.0))
    assert shapes.read_options(Namespace(shape_name="round", width=1, radius=1.0)).radius == 1.0
    assert shapes.read_options(Namespace(shape_name="round", width=0)).radius == 0.5
