"""Flags of layers that compute their labels: what they set, and what is refused."""

import argparse

import pytest
from label_layer_cases import DRILL_LABELS, WITH_LABEL_NETWORK, build

from fairseq_plugins.output_layers.base import OUTPUT_LAYERS


def test_drill_needs_a_last_layer_as_wide_as_the_embedding():
    with pytest.raises(ValueError, match="drill compares hidden states, 9 wide.*embeddings, 8 wide.*--hidden-sizes"):
        build("drill", widths=[8, 9])


@pytest.mark.parametrize(
    "name, flags, told",
    [
        ("drill", dict(label_depth=-1), "--label-depth -1: give 0 or more"),
        ("mos", dict(label_depth=-1, **DRILL_LABELS), "--label-depth -1: give 0 or more"),
        ("dual", dict(label_width=0), "--label-width 0: give a value above 0"),
        ("dual", dict(label_width=-3), "--label-width -3: give a value above 0"),
        *(
            (name, dict(label_dropout=rate, **flags), f"--label-dropout {rate}: a dropout rate is")
            for rate in (1.0, -0.1)
            for name, flags in [("bilinear", {}), *WITH_LABEL_NETWORK]
        ),
    ],
)
def test_values_outside_their_range_are_refused(name, flags, told):
    with pytest.raises(ValueError, match=told):
        build(name, **flags)


@pytest.mark.parametrize(
    "name, trained, flags, told",
    [
        ("drill", {}, dict(label_activation="relu"), "--label-activation sigmoid, this model has .* relu"),
        ("drill", {}, dict(label_residual="off"), "--label-residual on, this model has .* off"),
        ("drill", dict(label_layer_residual="on"), {}, "--label-layer-residual on, this model has .* off"),
        ("dual", dict(label_activation="tanh"), {}, "--label-activation tanh, this model has .* sigmoid"),
        ("doc", DRILL_LABELS, dict(DRILL_LABELS, label_activation="relu"), "--label-activation sigmoid, this model"),
    ],
)
def test_label_networks_of_the_same_shapes_are_not_taken_for_each_other(name, trained, flags, told):
    with pytest.raises(ValueError, match=f"the checkpoint was trained with {told}"):
        build(name, **flags).load_state_dict(build(name, **trained).state_dict())


LABEL_FLAGS = dict(
    label_dropout=0.1,
    label_mask="standard",
    label_activation="relu",
    label_init="glorot",
    label_depth=1,
    label_residual="off",
    label_layer_residual="on",
    label_dropout_place="output",
)


@pytest.mark.parametrize("name", ["mos", "doc", "tied", "full"])
@pytest.mark.parametrize("encoder", [{}, {"label_encoder": "none"}])
def test_label_flags_without_a_label_network_are_refused(encoder, name):
    encoder = encoder if name in ("mos", "doc") else {}
    is_mixture = name in ("mos", "doc")
    told = f" has no effect on this .* {name}: .*add --label-encoder" if is_mixture else f": not a flag of .* {name}"
    for flag, value in LABEL_FLAGS.items():
        with pytest.raises(ValueError, match=f"^--{flag.replace('_', '-')}{told}"):
            build(name, **encoder, **{flag: value})
    with pytest.raises(
        ValueError, match="^--label-depth has no" if is_mixture else "^--label-depth, --label-init: not"
    ):
        build(name, **encoder, label_init="glorot", label_depth=1)


@pytest.mark.parametrize("name, flags", [("drill", {}), ("mos", DRILL_LABELS), ("doc", DRILL_LABELS)])
def test_label_flags_are_those_of_drill(name, flags):
    encoder = build(name, **flags, **LABEL_FLAGS).projection.label_encoder
    (layer,) = encoder.layers
    assert (encoder.residual, encoder.layer_residual) == (False, True)
    assert (layer.place, layer.mask, layer.dropout.rate) == ("output", "standard", 0.1)


@pytest.mark.parametrize(
    "name, flag, value",
    [
        ("bilinear", "label_depth", 2),
        ("bilinear", "label_activation", "relu"),
        ("bilinear", "label_width", 3),
        ("dual", "label_depth", 2),
        ("dual", "label_hidden_network", "on"),
        ("drill", "label_width", 3),
        ("drill", "label_encoder", "drill"),
        ("tied", "label_encoder", "drill"),
        ("mos", "label_hidden_network", "on"),
        ("mos", "label_width", 3),
    ],
)
def test_flags_of_other_layers_are_refused(name, flag, value):
    encoder = DRILL_LABELS if name == "mos" else {}
    with pytest.raises(ValueError, match=f"--{flag.replace('_', '-')}: not a flag of --output-layer {name}"):
        build(name, **encoder, **{flag: value})


@pytest.mark.parametrize(
    "flag",
    [
        "--label-mask",
        "--label-activation",
        "--label-init",
        "--label-residual",
        "--label-layer-residual",
        "--label-dropout-place",
        "--label-hidden-network",
        "--label-encoder",
    ],
)
def test_unknown_values_are_refused_with_the_choices(flag, capsys):
    parser = argparse.ArgumentParser()
    OUTPUT_LAYERS.add_args(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([flag, "swish"])
    assert f"argument {flag}: invalid choice: 'swish'" in capsys.readouterr().err
