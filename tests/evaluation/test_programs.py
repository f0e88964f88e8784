"""Programs of torch.export give what the model gives, with torch alone."""

from functools import partial
from pathlib import Path

import pytest
import torch
from builders import (
    SOURCE_SIZE,
    VOCAB_SIZE,
    build_tiny_encdec,
    build_tiny_gated_lm,
    build_tiny_lm,
    build_tiny_transformer,
    tiny_transformer_lm_flags,
)
from paths import ROOT

from fairseq_plugins.evaluation.programs import write_programs
from fairseq_plugins.modules.cell import RECURRENT_CELLS, pack_state
from fairseq_plugins.options import UserError
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS
from fairseq_plugins.output_layers.gates import OUTPUT_GATES

LAYERS, CELLS, GATES = sorted(OUTPUT_LAYERS), sorted(RECURRENT_CELLS), sorted(OUTPUT_GATES)


def build_of_parts(layer, cell, gate):
    flags = {} if gate == "none" else {"gate_dim": 5}
    return build_tiny_lm(layer, rnn_cell=cell, output_gate=gate, **flags)


NUM_MODELS = max(len(LAYERS), len(CELLS), len(GATES))
PARTS = [(LAYERS[n % len(LAYERS)], CELLS[n % len(CELLS)], GATES[n % len(GATES)]) for n in range(NUM_MODELS)]
LANGUAGE_MODELS = {
    **{" ".join(parts): partial(build_of_parts, *parts) for parts in PARTS},
    "two models under a gate": lambda: build_tiny_gated_lm("mos", "tied"),
    "16 bits": lambda: build_tiny_lm("mos", output_precision="bfloat16"),
}
TRANSLATORS = {
    "no attention": {"output_layer": "mos", "rnn_cell": "rhn", "attention": "none", "input_feeding": "off"},
    "copying by the attention to merged layers": {
        **{"output_layer": "doc", "rnn_cell": "mogrifier", "attention": "mlp", "copying": "attention"},
        **{"encoder_merge": "layer", "hidden_sizes": "8 8"},
    },
}


def programs_of(model, folder, dtype=torch.float64):
    """The programs of a model, which do not tell where this project lies."""
    write_programs(model.to(dtype).eval(), folder, origin=Path("model.pt"))
    files = sorted(folder.glob("*.pt2"), reverse=True)  # the encoder before the decoder
    assert not any(str(ROOT).encode() in path.read_bytes() for path in files)
    return [torch.export.load(path).module() for path in files]


@pytest.mark.slow
@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_step_of_a_language_model(name, tmp_path):
    dtype = torch.float32 if name == "16 bits" else torch.float64
    (step,) = programs_of(LANGUAGE_MODELS[name](), tmp_path, dtype)
    model = LANGUAGE_MODELS[name]().to(dtype).eval()
    for num_rows in (1, 3):
        after, state = model.decoder.initial_state(num_rows), step.start.repeat(num_rows, 1)
        for tokens in torch.randint(4, VOCAB_SIZE, (3, num_rows)):
            with torch.no_grad():
                _, scores, after = model.decoder.score(tokens.unsqueeze(1), after, incremental=False)
            log_probs, state = step(tokens, state)
            torch.testing.assert_close(log_probs, scores.output.squeeze(1))
            torch.testing.assert_close(state, pack_state(after))
            assert not log_probs.requires_grad


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSLATORS)
def test_encoder_and_step_of_a_translator(name, tmp_path):
    encode, step = programs_of(build_tiny_encdec(**TRANSLATORS[name]), tmp_path)
    model = build_tiny_encdec(**TRANSLATORS[name]).double().eval()
    for num_rows, length in ((1, 1), (2, 6)):
        source = torch.randint(4, SOURCE_SIZE, (num_rows, length))
        source[:, -1] = 2
        source[1:, :2] = 1
        tokens = torch.randint(4, VOCAB_SIZE, (num_rows, 4))
        with torch.no_grad():
            encoded = model.encoder(source)
            expected, _ = model.decoder(tokens, encoder_out=encoded)
        annotations, state = encode(source)
        torch.testing.assert_close(annotations, encoded["encoder_out"][0])
        for t in range(4):
            log_probs, state = step(tokens[:, t], state, source, annotations)
            torch.testing.assert_close(log_probs, expected[:, t])


def test_models_without_such_a_step_are_refused(tmp_path):
    cases = [
        build_tiny_transformer("transformer_doc", experts_per_layer="0 1 2"),
        build_tiny_gated_lm(tiny_transformer_lm_flags("full")),
    ]
    for model in cases:
        with pytest.raises(UserError, match="model.pt holds a .*, which has no recurrent step: leave --torch-export"):
            programs_of(model, tmp_path)
    model = build_tiny_encdec("tied", rnn_cell="diagonal")
    with pytest.raises(UserError, match="model.pt: torch.export cannot trace encoder.pt2: .*; leave --torch-export"):
        programs_of(model, tmp_path)
    assert not list(tmp_path.iterdir())
