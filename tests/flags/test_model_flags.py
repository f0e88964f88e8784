"""The flags of one model and of its parts."""

import argparse
from dataclasses import dataclass, field

import pytest
from fairseq.dataclass import FairseqDataclass
from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_plugins.flags.model_flags import ModelFlags
from fairseq_plugins.flags.registry import Component, Registry
from fairseq_plugins.models import recurrent_encdec, recurrent_lm, transformer
from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS


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
        made.register(name)(component(name))
    return made


def component(option_name):
    return type("Part", (Component,), {"Options": options(option_name)})


@pytest.mark.parametrize(
    "name, told",
    [
        ("width", r"--width is declared by \S*ModelConfig and by \S*WidthOptions"),
        ("depth", r"--depth is declared by \S*DepthOptions and by \S*DepthOptions"),
        ("roof", r"--roof is declared by .*--roof"),
        ("batch_size", r"--batch-size is declared by fairseq\S*FairseqConfig and by \S*Batch_SizeOptions"),
    ],
)
def test_a_clash_is_refused_whichever_part_comes_last(name, told):
    roofs = registry("--roof", "depth")
    with pytest.raises(ValueError, match="--roof is declared by" if name == "roof" else told):
        ModelFlags(ModelConfig, registry("--wall", name), roofs)
    walls = registry("--wall")
    ModelFlags(ModelConfig, walls, roofs)
    with pytest.raises(ValueError, match=told):
        walls.register("late")(component(name))
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
        OUTPUT_LAYERS.register("late")(component(config_flag))
    assert "late" not in OUTPUT_LAYERS
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    assert {config_flag, "experts_per_layer"} <= {action.dest for action in parser._actions}


def test_cells_and_output_layers_know_each_others_flags():
    with pytest.raises(ValueError, match="--latent-dropout is declared by .*MixtureOptions and by"):
        RECURRENT_CELLS.register("late")(component("latent_dropout"))
    with pytest.raises(ValueError, match="--minor-input is declared by .*MajorMinorOptions and by"):
        OUTPUT_LAYERS.register("late")(component("minor_input"))
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
    for configs, told in (
        ([criterion, task], "--smoothing is declared by"),
        ([criterion, (optimiser, task)], "--smoothing is declared by"),
        ([optimiser, other_optimiser], "--decay is declared by"),
    ):
        with pytest.raises(ValueError, match=told):
            ModelFlags(FairseqDataclass).stand_beside(*configs)


@pytest.mark.parametrize("model", [recurrent_lm, recurrent_encdec, transformer])
@pytest.mark.parametrize("taken", ["label_smoothing", "averaging", "adam_betas", "weight_decay", "max_window"])
def test_the_models_know_the_options_of_this_packages_task_criterion_and_optimiser(model, taken):
    assert taken in model.FLAGS.owners()
