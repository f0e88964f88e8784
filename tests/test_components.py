"""Components that a flag chooses, and their flags."""

import argparse
from argparse import Namespace
from dataclasses import dataclass, field

import pytest
from fairseq.dataclass import FairseqDataclass
from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_plugins.components import Component, ModelFlags, Registry, join_owners, option_owners
from fairseq_plugins.models import recurrent_encdec, recurrent_lm, transformer
from fairseq_plugins.modules.cell import RECURRENT_CELLS
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS


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
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)  # as fairseq's model group
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
    message = r"--radius is declared by \S*RoundOptions and by \S*OtherRadiusOptions"
    with pytest.raises(ValueError, match=message):
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
    message = "^--radius has no effect on this --shape-name round: leave it out, or give a --width$"
    with pytest.raises(ValueError, match=message):
        shapes.read_options(Namespace(shape_name="round", width=0, radius=1.0))
    assert shapes.read_options(Namespace(shape_name="round", width=1, radius=1.0)).radius == 1.0
    assert shapes.read_options(Namespace(shape_name="round", width=0)).radius == 0.5


@dataclass
class Base(FairseqDataclass):
    width: int = 1


@dataclass
class First(Base):
    depth: int = 2


@dataclass
class Second(Base):
    depth: int = 2


@dataclass
class DeclaredAnew(Base):
    width: int = 3


def test_an_option_belongs_to_the_dataclass_that_declares_it():
    assert option_owners(First) == {"width": Base, "depth": First}


def test_a_dataclass_that_several_inherit_is_one_owner():
    assert join_owners(option_owners(Base), {"width": Base}, option_owners(First))["width"] is Base


def test_one_option_of_two_dataclasses_is_refused_with_both():
    message = r"--depth is declared by \S*First and by \S*Second: give one of them another name"
    with pytest.raises(ValueError, match=message):
        join_owners(option_owners(First), option_owners(Second))


def test_an_option_that_a_subclass_declares_anew_is_refused():
    with pytest.raises(ValueError, match=r"--width is declared by \S*Base and by \S*DeclaredAnew"):
        option_owners(DeclaredAnew)


def test_owners_may_be_named_in_words():
    with pytest.raises(ValueError, match=r"--depth is declared by the registry of --depth and by \S*First"):
        join_owners({"depth": "the registry of --depth"}, option_owners(First))


@dataclass
class ModelConfig(FairseqDataclass):
    width: int = field(default=0, metadata={"help": "of all layers"})


@dataclass
class InnerConfig(FairseqDataclass):
    depth: int = 1


@dataclass
class NestedConfig(FairseqDataclass):
    inner: InnerConfig = field(default_factory=InnerConfig)


def options(name):
    return dataclass(type(f"{name.title()}Options", (FairseqDataclass,), {"__annotations__": {name: int}, name: 1}))


def registry(flag, *option_names):
    made = Registry(flag, help="a part")
    for name in option_names:
        made.register(name)(part_with_option(name))
    return made


def part_with_option(option_name):
    return type("Part", (Component,), {"Options": options(option_name)})


@pytest.mark.parametrize(
    "name, message",
    [
        ("width", r"--width is declared by \S*ModelConfig and by \S*WidthOptions"),
        ("depth", r"--depth is declared by \S*DepthOptions and by \S*DepthOptions"),
        ("roof", r"--roof is declared by .*--roof"),
        ("batch_size", r"--batch-size is declared by fairseq\S*FairseqConfig and by \S*Batch_SizeOptions"),
    ],
)
def test_a_clash_is_refused_whichever_part_comes_last(name, message):
    roofs = registry("--roof", "depth")
    with pytest.raises(ValueError, match="--roof is declared by" if name == "roof" else message):
        ModelFlags(ModelConfig, registry("--wall", name), roofs)
    walls = registry("--wall")
    ModelFlags(ModelConfig, walls, roofs)
    with pytest.raises(ValueError, match=message):
        walls.register("late")(part_with_option(name))
    assert not walls


def test_models_may_have_a_flag_of_one_name():
    shared = registry("--wall", "depth")
    assert ModelFlags(ModelConfig, shared).owners()["width"] is ModelConfig
    assert ModelFlags(dataclass(type("Other", (ModelConfig,), {})), shared).owners()["depth"] is shared["depth"].Options


def test_an_option_inside_another_is_known_by_its_prefix():
    flags = ModelFlags(NestedConfig, registry("--wall", "depth"))
    assert flags.owners()["inner_depth"] is NestedConfig
    with pytest.raises(ValueError, match="--inner-depth"):
        ModelFlags(NestedConfig, registry("--wall", "inner_depth"))


def test_all_flags_are_added_without_defaults():
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    ModelFlags(ModelConfig, registry("--wall", "depth"), registry("--roof", "pitch")).add_args(parser)
    assert vars(parser.parse_args([])) == {}
    given = ["--width", "2", "--wall", "depth", "--depth", "3", "--roof", "pitch", "--pitch", "4"]
    assert vars(parser.parse_args(given)) == dict(width=2, wall="depth", depth=3, roof="pitch", pitch=4)


@pytest.mark.parametrize(
    "module, arch, config_flag",
    [
        (recurrent_lm, "lstm_lm_doc", "dropout_weight"),
        (recurrent_encdec, "lstm_encdec_doc", "share_embeddings"),
        (transformer, "transformer_doc", "encoder_layers"),
    ],
)
def test_a_part_cannot_take_a_flag_of_the_model_that_it_stands_in(module, arch, config_flag):
    assert config_flag in module.FLAGS.owners()
    with pytest.raises(ValueError, match=f"--{config_flag.replace('_', '-')} is declared by"):
        OUTPUT_LAYERS.register("late")(part_with_option(config_flag))
    assert "late" not in OUTPUT_LAYERS
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    assert {config_flag, "experts_per_layer"} <= {action.dest for action in parser._actions}


def test_cells_and_output_layers_know_each_others_flags():
    with pytest.raises(ValueError, match="--latent-dropout is declared by .*MixtureOptions and by"):
        RECURRENT_CELLS.register("late")(part_with_option("latent_dropout"))
    with pytest.raises(ValueError, match="--minor-input is declared by .*MajorMinorOptions and by"):
        OUTPUT_LAYERS.register("late")(part_with_option("minor_input"))
    assert "late" not in RECURRENT_CELLS and "late" not in OUTPUT_LAYERS


def test_options_of_tasks_criteria_and_optimisers_are_taken_too():
    @dataclass
    class Penalties(FairseqDataclass):
        """Of a criterion."""

        penalty: float = field(default=0.0, metadata={"help": "of something"})

    @dataclass
    class PenaltyOptions(FairseqDataclass):
        """Of a component."""

        penalty: float = field(default=0.0, metadata={"help": "of something else"})

    registry = Registry("--part", help="a part")
    flags = ModelFlags(FairseqDataclass, registry)
    flags.stand_beside(Penalties)
    with pytest.raises(ValueError, match=r"--penalty is declared by \S*Penalties and by \S*PenaltyOptions"):
        registry.register("penal")(type("Penal", (Component,), {"Options": PenaltyOptions}))
    assert "penal" not in registry


def test_alternatives_may_declare_one_option_and_others_may_not():
    criterion, task, optimiser = (options(name) for name in ("smoothing", "smoothing", "decay"))
    other_optimiser = options("decay")
    flags = ModelFlags(FairseqDataclass)
    flags.stand_beside(criterion, (optimiser, other_optimiser))
    assert flags.owners()["smoothing"] is criterion and flags.owners()["decay"] is optimiser
    for configs, message in (
        ([criterion, task], "--smoothing is declared by"),
        ([criterion, (optimiser, task)], "--smoothing is declared by"),
        ([optimiser, other_optimiser], "--decay is declared by"),
    ):
        with pytest.raises(ValueError, match=message):
            ModelFlags(FairseqDataclass).stand_beside(*configs)


@pytest.mark.parametrize("model", [recurrent_lm, recurrent_encdec, transformer])
@pytest.mark.parametrize("taken", ["label_smoothing", "averaging", "adam_betas", "weight_decay", "max_window"])
def test_the_models_know_the_options_of_this_packages_task_criterion_and_optimiser(model, taken):
    assert taken in model.FLAGS.owners()
