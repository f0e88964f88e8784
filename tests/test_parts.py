"""Parts that a flag chooses, and their flags."""

import argparse
from argparse import Namespace
from dataclasses import dataclass, field

import pytest
from fairseq import options as fairseq_options
from fairseq.criterions import CRITERION_REGISTRY, FairseqCriterion
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import TASK_REGISTRY, FairseqTask

import fairseq_plugins  # noqa: F401  registers all parts
from fairseq_plugins.options import UserError
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS
from fairseq_plugins.parts import ModelFlags, Part, Registry


@dataclass
class SizeOptions(FairseqDataclass):
    width: int = field(default=4, metadata={"help": "of all layers"})


@dataclass
class RoundOptions(SizeOptions):
    radius: float = field(default=0.5, metadata={"help": "of the corners", "argparse_alias": "-r"})


def part_with(options=FairseqDataclass):
    return type("Shape", (Part,), {"Options": options})


@pytest.fixture
def shapes():
    registry = Registry("--shape-name", help="what it looks like")
    for name, options in (("square", SizeOptions), ("round", RoundOptions), ("oval", RoundOptions)):
        registry.register(name)(part_with(options))
    return registry


def parser_of(registry):
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)  # as fairseq's model group
    registry.add_args(parser)
    return parser


def test_parts_are_found_by_their_names_which_are_registered_once(shapes):
    first = shapes["round"]
    assert shapes.find("round") is first and first.name == "round"
    with pytest.raises(ValueError, match="--shape-name flat: choose one of oval, round, square"):
        shapes.find("flat")
    with pytest.raises(ValueError, match="--shape-name round is registered twice: give Shape another name"):
        shapes.register("round")(part_with())
    assert shapes["round"] is first


def test_help_names_the_parts_that_have_an_option(shapes):
    before = {action.dest: action.help for action in parser_of(shapes)._actions}
    assert (before["width"], before["radius"]) == ("of all layers", "oval, round: of the corners")
    shapes.register("plain")(part_with())
    after = {action.dest: action.help for action in parser_of(shapes)._actions}
    assert after["width"] == "oval, round, square: of all layers"


def test_flags_are_added_without_defaults_and_keep_their_types_and_aliases(shapes):
    parser = parser_of(shapes)
    assert vars(parser.parse_args([])) == {}
    assert parser.parse_args(["--width", "3", "-r", "2"]) == Namespace(width=3, radius=2.0)
    assert parser.parse_args(["--shape-name", "oval"]) == Namespace(shape_name="oval")
    with pytest.raises(SystemExit):
        parser.parse_args(["--shape-name", "flat"])


def test_options_are_those_of_the_part_and_absent_ones_take_their_defaults(shapes):
    options = shapes.read_options(Namespace(shape_name="round", radius=1.0))
    assert isinstance(options, RoundOptions) and (options.width, options.radius) == (4, 1.0)
    with pytest.raises(ValueError, match="--radius: not a flag of --shape-name square"):
        shapes.read_options(Namespace(shape_name="square", radius=1.0))


def test_an_option_that_another_switches_off_is_refused_with_what_gives_it_an_effect(shapes):
    shapes["round"].unused_options = lambda args: {} if args.width else {"radius": "give a --width"}
    message = "^--radius has no effect on this --shape-name round: leave it out, or give a --width$"
    with pytest.raises(ValueError, match=message):
        shapes.read_options(Namespace(shape_name="round", width=0, radius=1.0))
    assert shapes.read_options(Namespace(shape_name="round", width=1, radius=1.0)).radius == 1.0
    assert shapes.read_options(Namespace(shape_name="round", width=0)).radius == 0.5


# flags of one command line: of a model, its parts, and tasks, criteria and optimizers


@dataclass
class ModelConfig(FairseqDataclass):
    width: int = field(default=0, metadata={"help": "of all layers"})


@dataclass
class InnerConfig(FairseqDataclass):
    depth: int = 1


@dataclass
class NestedConfig(FairseqDataclass):
    inner: InnerConfig = field(default_factory=InnerConfig)


def options(name, *bases):
    kind = type(f"{name.title()}Options", bases or (FairseqDataclass,), {"__annotations__": {name: int}, name: 1})
    return dataclass(kind)


def registry(flag, *parts):
    made = Registry(flag, help="a part")
    for number, part in enumerate(parts):
        made.register(f"part {number}")(part_with(part if isinstance(part, type) else options(part)))
    return made


HEIGHT = options("height")
TALL = options("pitch", HEIGHT)


@pytest.mark.parametrize(
    "own, walls, roofs, message",
    [
        (ModelConfig, ["width"], [], r"--width is declared by \S*ModelConfig and by \S*WidthOptions"),
        (ModelConfig, ["depth"], ["depth"], r"--depth is declared by \S*DepthOptions and by \S*DepthOptions"),
        (ModelConfig, ["depth", "depth"], [], "--depth is declared by"),
        (ModelConfig, [HEIGHT, options("height", HEIGHT)], [], "--height is declared by"),  # anew by a subclass
        (ModelConfig, ["roof"], [], "--roof is declared by the registry of --roof and by"),
        (ModelConfig, [], ["batch_size"], r"--batch-size is declared by fairseq\S*FairseqConfig and by"),
        (NestedConfig, ["inner_depth"], [], r"--inner-depth is declared by \S*NestedConfig"),
        *(
            (ModelConfig, [name], [], f"--{name.replace('_', '-')} is declared by")
            for name in ("label_smoothing", "averaging", "adam_betas", "weight_decay", "max_window", "eval_scorer")
        ),
        (ModelConfig, [HEIGHT, TALL, "depth"], ["slope"], None),  # those of a base are declared once
        (NestedConfig, ["depth"], [], None),
    ],
    ids=str,
)
def test_a_flag_has_one_owner(own, walls, roofs, message):
    model = ModelFlags(own, registry("--wall", *walls), registry("--roof", *roofs))
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    if message is None:
        model.add_args(parser)
    else:
        with pytest.raises(UserError, match=message):
            model.add_args(parser)


@dataclass
class PlainOptions:
    height: int = 1


NO_FLAGS = {
    "a plain dataclass": PlainOptions,
    "another type": dataclass(
        type("Own", (FairseqDataclass,), {"__annotations__": {"height": int | None}, "height": 1})
    ),
    "a type as text": dataclass(type("Own", (FairseqDataclass,), {"__annotations__": {"height": "int"}, "height": 1})),
    "no default": dataclass(type("Own", (FairseqDataclass,), {"__annotations__": {"height": int}}), kw_only=True),
}


@pytest.mark.parametrize("options", NO_FLAGS.values(), ids=NO_FLAGS)
def test_options_that_become_no_flags_are_refused(options):
    model = ModelFlags(FairseqDataclass, registry("--wall", options))
    message = rf"{options.__name__} becomes no flags \(.+\): let it inherit fairseq's FairseqDataclass, give each field"
    with pytest.raises(UserError, match=message):
        model.add_args(argparse.ArgumentParser(argument_default=argparse.SUPPRESS))


def test_all_flags_are_added_without_defaults():
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    ModelFlags(ModelConfig, registry("--wall", "depth"), registry("--roof", "pitch")).add_args(parser)
    assert vars(parser.parse_args([])) == {}
    given = ["--width", "2", "--wall", "part 0", "--depth", "3", "--roof", "part 0", "--pitch", "4"]
    assert vars(parser.parse_args(given)) == dict(width=2, wall="part 0", depth=3, roof="part 0", pitch=4)


@pytest.mark.parametrize("taken", ["dropout_weight", "minor_input", "label_smoothing"])
def test_a_part_of_the_user_cannot_take_a_flag_of_a_model(taken, monkeypatch, capsys):
    """It may be registered at any time before the command line is parsed; the command ends with one line."""
    monkeypatch.setitem(OUTPUT_LAYERS, "late", part_with(options(taken)))
    with pytest.raises(UserError) as error:
        fairseq_options.parse_args_and_arch(
            fairseq_options.get_training_parser(), ["data", "--task", "stateful_lm", "--arch", "lstm_lm_doc"]
        )
    (line,) = str(error.value).splitlines()
    assert line.startswith(f"--{taken.replace('_', '-')} is declared by ")


def test_a_flag_of_two_tasks_is_one_and_of_a_task_and_a_criterion_is_two(monkeypatch):
    def of_fairseq(base, config):
        return type("Added", (base,), {"__dataclass": config, "__module__": "of.a.user"})

    model = ModelFlags(ModelConfig)
    for name in ("task one", "task two"):
        monkeypatch.setitem(TASK_REGISTRY, name, of_fairseq(FairseqTask, HEIGHT))
    model.add_args(argparse.ArgumentParser())
    monkeypatch.setitem(CRITERION_REGISTRY, "criterion", of_fairseq(FairseqCriterion, TALL))
    with pytest.raises(UserError, match="--height is declared by of.a.user.Added and by of.a.user.Added"):
        model.add_args(argparse.ArgumentParser())
