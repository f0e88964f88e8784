"""Whether the embedding is shared: what layers allow against what the user asks for."""

from argparse import Namespace

import pytest

from fairseq_plugins.output_layers.base import OUTPUT_LAYERS, OutputLayer, Sharing
from fairseq_plugins.output_layers.sharing import SharingFlags, Wish

ERRORS = dict(cannot_share="{layer} cannot share", must_share="{layer} must share")
ONE_FLAG = SharingFlags(
    wishes={"share": {"no": Wish.SEPARATE, "yes": Wish.SHARED, "may": Wish.WHERE_POSSIBLE}}, **ERRORS
)
TWO_FLAGS = SharingFlags(
    wishes={flag: {True: Wish.SHARED, False: Wish.SEPARATE} for flag in ("share", "share_all")},
    substitute="required",
    **ERRORS,
)


@pytest.fixture(autouse=True)
def layers(monkeypatch):
    for sharing in Sharing:
        name = sharing.name.lower()
        monkeypatch.setitem(OUTPUT_LAYERS, name, type(name, (OutputLayer,), {"name": name, "sharing": sharing}))


def test_the_layers_of_the_package():
    others = set(OUTPUT_LAYERS) - {"never", "possible", "required"}
    assert {name: OUTPUT_LAYERS[name].sharing for name in others} == {
        **{name: Sharing.POSSIBLE for name in others},
        "full": Sharing.NEVER,
        "tied": Sharing.REQUIRED,
    }


def test_a_layer_that_says_nothing_never_shares():
    assert OutputLayer.sharing is Sharing.NEVER


@pytest.mark.parametrize(
    "layer, asked, expected",
    [
        ("never", "no", False),
        ("never", "may", False),
        ("never", "yes", "never cannot share"),
        ("possible", "no", False),
        ("possible", "may", True),
        ("possible", "yes", True),
        ("required", "no", "required must share"),
        ("required", "may", True),
        ("required", "yes", True),
    ],
)
def test_the_decision(layer, asked, expected):
    args = Namespace(output_layer=layer, share=asked)
    if isinstance(expected, bool):
        assert ONE_FLAG.shares(args) == expected
    else:
        with pytest.raises(ValueError, match=f"^{expected}$"):
            ONE_FLAG.shares(args)


@pytest.mark.parametrize("layer, expected", [("never", False), ("possible", True), ("required", True)])
def test_a_model_without_flags_shares_where_the_layer_allows_it(layer, expected):
    assert SharingFlags().shares(Namespace(output_layer=layer)) == expected


@pytest.mark.parametrize("first, second, expected", [(True, False, True), (False, True, True), (False, False, False)])
def test_one_of_several_flags_is_enough(first, second, expected):
    assert TWO_FLAGS.shares(Namespace(output_layer="possible", share=first, share_all=second)) == expected


@pytest.mark.parametrize(
    "given, preset, expected",
    [
        ({}, "possible", {}),
        ({}, "never", {"share": "no"}),
        ({}, "required", {"share": "yes"}),
        ({"output_layer": "required"}, "never", {"output_layer": "required", "share": "yes"}),
        ({"output_layer": "never"}, "required", {"output_layer": "never", "share": "no"}),
        ({"output_layer": "possible"}, "required", {"output_layer": "possible"}),
        ({"output_layer": "required", "share": "no"}, "never", {"output_layer": "required", "share": "no"}),
        ({"share": "yes"}, "never", {"share": "yes"}),
    ],
)
def test_what_the_layer_leaves_no_choice_about_is_set_where_it_is_open(given, preset, expected):
    args = Namespace(**given)
    ONE_FLAG.complete(args, {"output_layer": preset})
    assert vars(args) == expected


@pytest.mark.parametrize(
    "given, preset, layer",
    [
        ({"share": True}, "never", "required"),
        ({"share_all": True}, "never", "required"),
        ({"share": True}, "possible", None),
        ({"share": False}, "never", None),
        ({"share": True, "output_layer": "never"}, "never", "never"),
    ],
)
def test_a_preset_that_never_shares_gives_way_where_sharing_is_asked_for_and_no_layer_is_named(given, preset, layer):
    args = Namespace(**given)
    TWO_FLAGS.complete(args, {"output_layer": preset})
    assert getattr(args, "output_layer", None) == layer
