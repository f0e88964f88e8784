"""Presets beside what the user chose, and as fairseq reads them. Tied embeddings."""

import re
from argparse import Namespace
from dataclasses import dataclass

import pytest
import torch
from builders import build_encdec, build_lm
from fairseq import options
from fairseq.dataclass import FairseqDataclass

from fairseq_plugins.models.presets import (
    ARCHITECTURES,
    LANGUAGE_MODELS,
    Preset,
    TyingFlags,
    apply_preset,
    as_arguments,
    translation,
)
from fairseq_plugins.modules.cell import RECURRENT_CELLS
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS, OutputLayer, TieEmbeddings
from fairseq_plugins.output_layers.gates import OUTPUT_GATES
from fairseq_plugins.parts import Part

RECURRENT = (LANGUAGE_MODELS, translation.ENCODER_DECODER_ARCHITECTURES)
NO_MATCH = re.compile("give the last layer the width of the embedding|compares hidden states, .* wide, with")


@pytest.fixture
def build():
    """``build(arch, **flags)``: a model of 23 words without memory."""

    def build(arch, **flags):
        with torch.device("meta"):
            return build_lm(arch, 23, **flags) if arch in LANGUAGE_MODELS else build_encdec(arch, 23, 23, **flags)

    return build


def one_of_each(presets, *flags):
    """A preset for every combination of values of some flags, with options for other layers and without."""
    found = {
        (*(preset.model.get(flag) for flag in flags), bool(preset.output_layers)): arch
        for arch, preset in presets.items()
    }
    return sorted(found.values())


MIXED = ["lstm_lm_{}", "lstm_lm_{}_ptb", "lstm_lm_{}_wt2", "lstm_encdec_{}_iwslt", "lstm_encdec_{}_gigaword"]


@pytest.mark.parametrize("family", MIXED)
@pytest.mark.parametrize("own, other", [("mos", "doc"), ("doc", "mos")])
def test_the_other_mixture_is_that_of_its_own_preset(family, own, other):
    found, expected = Namespace(output_layer=other), Namespace()
    apply_preset(ARCHITECTURES[family.format(own)], found)
    apply_preset(ARCHITECTURES[family.format(other)], expected)
    assert found == expected


BY_LAYER = [arch for presets in RECURRENT for arch in one_of_each(presets, "output_layer")]
BY_LAYER += ["transformer_full", "transformer_doc"]
SMALL = ["lstm_lm_awd", "lstm_lm_full", "lstm_lm_mos", "lstm_lm_doc", "mmlstm_lm_mos"]
LAYERS = sorted(OUTPUT_LAYERS)


@pytest.mark.parametrize(
    "arch, layer",
    [(arch, LAYERS[n % len(LAYERS)]) for n, arch in enumerate(BY_LAYER)]
    + [(arch, layer) for arch in (*SMALL, "lstm_encdec_doc", "transformer_doc") for layer in LAYERS],
)
def test_every_output_layer_replaces_that_of_the_preset(arch, layer, build):
    try:
        model = build(arch, output_layer=layer)
    except ValueError as error:  # what compares states with embeddings needs them equally wide
        assert NO_MATCH.search(str(error)), error
        assert layer in ("tied", "drill") and arch not in SMALL
    else:
        assert model.decoder.output.name == layer


CELLS = sorted(RECURRENT_CELLS)
BY_CELL = [arch for presets in RECURRENT for arch in one_of_each(presets, "rnn_cell")]


@pytest.mark.parametrize(
    "arch, cell",
    [(arch, CELLS[n % len(CELLS)]) for n, arch in enumerate(BY_CELL)]
    + [(arch, cell) for arch in ("lstm_lm_awd_ptb", "mmlstm_encdec") for cell in CELLS],
)
def test_every_cell_replaces_that_of_the_preset(arch, cell, build):
    stack = build(arch, rnn_cell=cell).decoder.stack
    layers = stack.layers if arch in LANGUAGE_MODELS else stack.stack.layers
    assert {type(layer) for layer in layers} == {RECURRENT_CELLS[cell]}


@dataclass
class CommonOptions(FairseqDataclass):
    common: float = 0.0


@dataclass
class FirstOptions(CommonOptions):
    first: float = 0.0


@dataclass
class SecondOptions(CommonOptions):
    second: float = 0.0


@pytest.mark.parametrize("registry, kept", [(RECURRENT_CELLS, True), (OUTPUT_LAYERS, False), (OUTPUT_GATES, False)])
def test_what_two_cells_declare_in_common_is_the_presets_and_of_layers_and_gates_nothing(registry, kept, monkeypatch):
    for name, declared in (("one", FirstOptions), ("two", SecondOptions)):
        monkeypatch.setitem(registry, name, type(name, (Part,), {"name": name, "Options": declared}))
    own = {registry.destination: "one", "common": 0.5, "first": 0.25}
    others = {other.destination: "same" for other in (RECURRENT_CELLS, OUTPUT_LAYERS, OUTPUT_GATES)}
    preset = Preset({**others, **own, "embed_dim": 7})
    args = Namespace()
    apply_preset(preset, args)
    assert vars(args) == preset.model
    args = Namespace(**{registry.destination: "two"})
    apply_preset(preset, args)
    expected = {**others, "embed_dim": 7, registry.destination: "two", **({"common": 0.5} if kept else {})}
    assert vars(args) == expected


def test_another_layer_starts_from_its_own_defaults_and_the_flags_that_are_given():
    preset = Preset({"embed_dim": 7, "output_layer": "drill", "label_depth": 4, "label_dropout": 0.6})
    args = Namespace(output_layer="bilinear", label_mask="standard")
    apply_preset(preset, args)
    assert vars(args) == {"embed_dim": 7, "output_layer": "bilinear", "label_mask": "standard"}
    args = Namespace(output_layer="drill", label_depth=1)
    apply_preset(preset, args)
    assert vars(args) == {**preset.model, "label_depth": 1}


def test_another_layer_has_the_flags_that_go_with_it_in_place_of_those_of_the_presets_own():
    of_layers = {"doc": {"expert_warmup": 5, "dropout_output": 0.0}, "mos": {"latent_dropout": 0.2}}
    preset = Preset({"output_layer": "doc", "dropout": 0.3, **of_layers["doc"]}, output_layers=of_layers)
    for layer, expected in (("doc", of_layers["doc"]), ("mos", of_layers["mos"]), ("full", {})):
        args = Namespace(output_layer=layer)
        apply_preset(preset, args)
        assert vars(args) == {"output_layer": layer, "dropout": 0.3, **expected}
    args = Namespace(output_layer="mos", latent_dropout=0.0)
    apply_preset(preset, args)
    assert args.latent_dropout == 0.0


TRAINED = {
    (str(preset.training), str(preset.fine_tuning), preset.model.get("rnn_cell")): name
    for name, preset in ARCHITECTURES.items()
    if preset.training
}
"""One architecture for each training and cell."""


@pytest.mark.parametrize("arch", TRAINED.values())
def test_fairseq_accepts_every_training_flag_with_its_value(arch):
    preset = ARCHITECTURES[arch]
    commands = [preset.training]
    if preset.fine_tuning is not None:
        commands.append({**preset.training, **preset.fine_tuning, "averaging": "immediate"})
    for flags in commands:
        command = ["data", f"--arch={arch}", *as_arguments(flags)]
        args = vars(options.parse_args_and_arch(options.get_training_parser(), input_args=command))
        for name in ("lr", "update_freq"):
            # a rate for each epoch is a list
            args[name] = args[name][0] if len(args[name]) == 1 else ",".join(map(str, args[name]))
        # fairseq reads --batch-size-valid, whose default is another flag's value, as text
        assert {name: type(value)(args[name.replace("-", "_")]) for name, value in flags.items()} == flags
        assert {flag: args[flag] for flag in preset.model} == preset.model


# tied embeddings

ONE_FLAG = TyingFlags(
    requests={"share": {"no": TieEmbeddings.NEVER, "yes": TieEmbeddings.ALWAYS, "may": TieEmbeddings.AUTO}}
)
TWO_FLAGS = TyingFlags(
    requests={flag: {True: TieEmbeddings.ALWAYS, False: TieEmbeddings.NEVER} for flag in ("share", "share_all")},
    substitute="always",
)


@pytest.fixture
def layers_by_tying(monkeypatch):
    for tie in TieEmbeddings:
        name = tie.name.lower()
        monkeypatch.setitem(OUTPUT_LAYERS, name, type(name, (OutputLayer,), {"name": name, "tie_embeddings": tie}))


@pytest.mark.usefixtures("layers_by_tying")
@pytest.mark.parametrize(
    "flags, layer, asked, expected",
    [
        (ONE_FLAG, "never", {"share": "no"}, False),
        (ONE_FLAG, "never", {"share": "may"}, False),
        (ONE_FLAG, "auto", {"share": "no"}, False),
        (ONE_FLAG, "auto", {"share": "may"}, True),
        (ONE_FLAG, "auto", {"share": "yes"}, True),
        (ONE_FLAG, "always", {"share": "may"}, True),
        (ONE_FLAG, "always", {"share": "yes"}, True),
        *((TyingFlags(), layer, {}, layer != "never") for layer in ("never", "auto", "always")),
        (TWO_FLAGS, "auto", {"share": True, "share_all": False}, True),
        (TWO_FLAGS, "auto", {"share": False, "share_all": True}, True),
        (TWO_FLAGS, "auto", {"share": False, "share_all": False}, False),
    ],
)
def test_the_embedding_is_shared_where_the_layer_allows_it_and_one_flag_asks_for_it(flags, layer, asked, expected):
    embedding = torch.nn.Embedding(1, 1)
    weight = flags.shared_weight(Namespace(output_layer=layer, **asked), embedding)
    assert weight is (embedding.weight if expected else None)


@pytest.mark.usefixtures("layers_by_tying")
@pytest.mark.parametrize(
    "layer, asked, message",
    [
        ("never", "yes", "has a matrix of its own: take --output-layer tied, or leave out --share yes"),
        ("always", "no", "has no matrix of its own: take --output-layer full, or leave out --share no"),
    ],
)
def test_sharing_that_the_layer_does_not_allow_is_refused(layer, asked, message):
    with pytest.raises(ValueError, match=f"^--output-layer {layer} {message}$"):
        ONE_FLAG.shared_weight(Namespace(output_layer=layer, share=asked), torch.nn.Embedding(1, 1))


@pytest.mark.usefixtures("layers_by_tying")
@pytest.mark.parametrize(
    "given, preset, expected",
    [
        ({}, "auto", {}),
        ({}, "never", {"share": "no"}),
        ({}, "always", {"share": "yes"}),
        ({"output_layer": "always"}, "never", {"output_layer": "always", "share": "yes"}),
        ({"output_layer": "never"}, "always", {"output_layer": "never", "share": "no"}),
        ({"output_layer": "auto"}, "always", {"output_layer": "auto"}),
        ({"output_layer": "always", "share": "no"}, "never", {"output_layer": "always", "share": "no"}),
        ({"share": "yes"}, "never", {"share": "yes"}),
    ],
)
def test_what_the_layer_leaves_no_choice_about_is_set_where_it_is_open(given, preset, expected):
    args = Namespace(**given)
    ONE_FLAG.complete(args, {"output_layer": preset})
    assert vars(args) == expected


@pytest.mark.usefixtures("layers_by_tying")
@pytest.mark.parametrize(
    "given, preset, layer",
    [
        ({"share": True}, "never", "always"),
        ({"share_all": True}, "never", "always"),
        ({"share": True}, "auto", None),
        ({"share": False}, "never", None),
        ({"share": True, "output_layer": "never"}, "never", "never"),
    ],
)
def test_a_preset_that_never_shares_gives_way_where_sharing_is_asked_for_and_no_layer_is_named(given, preset, layer):
    args = Namespace(**given)
    TWO_FLAGS.complete(args, {"output_layer": preset})
    assert getattr(args, "output_layer", None) == layer
