"""The precision of output layers in the commands that have ``--output-precision``."""

import pytest
from binarised_data import copy_data
from paths import SMALL_MODELS
from typed_commands import parser_of

from fairseq_plugins.commands.app import COMMANDS
from fairseq_plugins.output_layers import base

MODELS = {"lm": SMALL_MODELS / "lstm_lm_doc.pt", "translation": SMALL_MODELS / "lstm_encdec_doc.pt"}
TYPED = {
    "lm eval": ("lm", ["--split", "valid"]),
    "lm score": ("lm", []),
    "lm generate": ("lm", ["--beam", 1, "--max-length", 4]),
    "translate": ("translation", []),
    "analyze attention": ("translation", ["--input", "lines", "--out", "out"]),
}
"""For each command the data and its flags."""


def test_all_commands_are_tested():
    assert {*TYPED} == {name for name in COMMANDS if "--output-precision" in parser_of(name)._option_string_actions}


@pytest.fixture
def taken(tmp_path, monkeypatch):
    """The precisions of output layers, in a folder with data, on a processor that has products in bfloat16."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(base, "has_native_bfloat16", lambda device: True)
    copy_data(SMALL_MODELS / "data/lm", "lm", tokenizer="blanks", case="kept")
    copy_data(SMALL_MODELS / "data/translation", "translation", subwords=True)
    (tmp_path / "lines").write_text("a b\n")
    precisions, score_in = [], base.OutputPrecision.score_in
    monkeypatch.setattr(
        base.OutputPrecision, "score_in", lambda own, given: precisions.append(given) or score_in(own, given)
    )
    return precisions


@pytest.mark.parametrize("name", TYPED)
def test_the_precision_is_float32_unless_another_is_asked_for(name, taken, printed_by):
    data, flags = TYPED[name]
    for asked in ([], ["--output-precision", "bfloat16"]):
        printed_by(name, data, "--path", MODELS[data], *flags, *asked, typed="a b\n")
    assert taken == ["float32", "bfloat16"]


def test_experts_are_those_of_translations_in_float32(taken, printed_by):
    given = ["translation", "--path", MODELS["translation"], "--input", "lines", "--out", "out"]
    printed_by("analyze experts", *given)
    assert {*taken} == {"float32"}
