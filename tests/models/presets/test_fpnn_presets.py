"""Presets of impulse-response and rectifier networks against Pachitariu & Sahani 2013."""

import math
from argparse import Namespace

import pytest
import torch
from builders import build_model, make_task
from paper_tables import PTB

from fairseq_plugins.models.presets import LANGUAGE_MODELS, apply_preset

TEXT8_WORDS, TEXT8_CHARACTERS = 67_428, 27
FAMILIES = ("fpnn_lm", "rectifier_rnn_lm", "skipping_rnn_lm")
ARCHITECTURES = [arch for arch in LANGUAGE_MODELS if arch.startswith(FAMILIES)]

SKIPPING = [arch for arch in ARCHITECTURES if arch.startswith("skipping")]

every_architecture = pytest.mark.parametrize("arch", ARCHITECTURES)


@pytest.mark.parametrize(
    "arch, vocab_size, expected",
    [
        ("fpnn_lm_ptb", PTB, 10_240_512),
        ("rectifier_rnn_lm_ptb", PTB, 10_502_144),
        ("fpnn_lm_text8_words", TEXT8_WORDS, 2 * TEXT8_WORDS * 512 + 512),
        ("rectifier_rnn_lm_text8_chars", TEXT8_CHARACTERS, 2 * TEXT8_CHARACTERS * 2048 + 2048**2),
        ("skipping_rnn_lm_text8_chars", TEXT8_CHARACTERS, 2 * TEXT8_CHARACTERS * 2048 + 2 * 2048**2),
    ],
)
def test_parameter_count(arch, vocab_size, expected):
    with torch.device("meta"):
        model = build_model(arch, make_task(vocab_size), column_norm=0.0)
    assert sum(param.numel() for param in model.parameters()) == expected


@every_architecture
def test_nothing_stands_between_the_word_and_the_recurrence_and_words_have_no_biases(arch):
    preset = LANGUAGE_MODELS[arch].model
    assert preset["input_matrix"] == preset["output_bias"] == "off" and preset["output_layer"] == "full"
    assert str(preset["embed_dim"]) == preset["hidden_sizes"]


@pytest.mark.parametrize("arch", ["fpnn_lm_ptb", "rectifier_rnn_lm_ptb"])
def test_half_is_dropped_on_the_decoding_side_with_a_mask_for_each_prediction(arch):
    preset = LANGUAGE_MODELS[arch].model
    assert (preset["dropout_output"], preset["dropout_masks"]) == (0.5, "standard")
    assert preset["column_norm"] > 0 and preset["hidden_sizes"] == "512"
    dropped = {name for name, value in preset.items() if name.startswith("dropout_") and value not in (0.0, "standard")}
    assert dropped == {"dropout_output"}


@torch.no_grad()  # no task holds the columns here
def test_the_recurrence_stays_clean():
    """With half of the outputs dropped, the state is that of the model without dropout."""
    model = build_model("fpnn_lm_ptb", make_task(23)).double()
    tokens = torch.randint(4, 23, (2, 6))
    model.train()(tokens, stream="x")
    clean = model.eval()(tokens)[1]["states"].top[:, -1]
    (state,) = model.decoder.carried_state.get("x", 6)["layers"]
    torch.testing.assert_close(state["x"], clean, rtol=1e-12, atol=1e-12)


def test_characters_have_the_published_width_and_no_dropout():
    for arch in ARCHITECTURES:
        preset = LANGUAGE_MODELS[arch]
        if arch.endswith("_text8_chars"):
            assert preset.model["hidden_sizes"] == "2048" and preset.model["dropout_output"] == 0.0
            assert preset.training["clip-norm"] == 0


@pytest.mark.parametrize("arch", [arch for arch in ARCHITECTURES if arch.endswith("_text8_chars")])
def test_networks_of_characters_leave_their_start(arch):
    """Of 26 characters, each of which is followed by one of two."""
    sizes = dict(embed_dim=64, hidden_sizes="64")
    sizes.update({"word_skip": "w0"} if "skipping" in arch else {"output_hidden_size": 64} if "fpnn" in arch else {})
    torch.manual_seed(1)
    model, training = build_model(arch, make_task(30), **sizes).train(), LANGUAGE_MODELS[arch].training
    assert training["optimizer"] == "adagrad"
    optimizer = torch.optim.Adagrad(model.parameters(), lr=training["lr"])
    steps = torch.randint(1, 3, (80, 16, 21)).cumsum(dim=2) % 26 + 4
    found = []
    for window in steps:
        optimizer.zero_grad()
        loss, _ = model(window[:, :-1], target=window[:, 1:])
        (loss / window[:, 1:].numel()).backward()
        optimizer.step()
        found.append(loss.item() / window[:, 1:].numel())
    assert found[0] == pytest.approx(math.log(30), abs=0.02) and found[-1] < 2.5


@pytest.mark.parametrize("arch", SKIPPING)
@pytest.mark.parametrize("typed", [{}, {"word_skip": "_"}])
def test_another_cell_with_the_skip_of_the_preset_has_its_slow_matrices_too(arch, typed):
    args = Namespace(rnn_cell="diagonal", **typed)
    apply_preset(LANGUAGE_MODELS[arch], args)
    assert (args.word_skip, args.recurrent_scale) == ("_", LANGUAGE_MODELS[arch].model["recurrent_scale"])
