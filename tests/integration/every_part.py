"""Every output layer, cell and gate in a model trains, saves, loads, and decodes or scores, by host commands.

Each kind of model has a test file of its own, so that two processes share them.
"""

import math
import re

import example_gates
import pytest
from commands import load
from fairseq_cli import eval_lm, generate, train
from translation_commands import TRANSFORMER_SIZES

from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS
from fairseq_plugins.output_layers.gate import OUTPUT_GATES

RECURRENT = ["--embed-dim", "12", "--hidden-sizes", "16 12"]
MODELS = {
    "recurrent_lm": ["--arch", "lstm_lm_awd", *RECURRENT],
    "recurrent_encdec": ["--arch", "lstm_encdec", *RECURRENT, "--share-embeddings", "output"],
    "transformer_with_output_layer": [
        *("--arch", "transformer_full", "--share-decoder-input-output-embed"),
        *TRANSFORMER_SIZES,
    ],
}
SHARING = {"--share-embeddings", "output", "--share-decoder-input-output-embed"}


def cases(model):
    """Parameters "layer, cell, gate" of a model: each part beside the usual ones; slow are all but the first."""
    parts = [("doc", "lstm", "none")]
    parts += [(layer, "lstm", "none") for layer in sorted(set(OUTPUT_LAYERS) - {"doc"})]
    if model.startswith("recurrent_"):
        parts += [("doc", cell, "none") for cell in sorted(set(RECURRENT_CELLS) - {"lstm"})]
    parts += [("doc", "lstm", gate) for gate in sorted({*OUTPUT_GATES, *example_gates.EXAMPLES} - {"none"})]
    return [parts[0], *(pytest.param(*part, marks=pytest.mark.slow) for part in parts[1:])]


def check_part(model, layer, cell, gate, *, corpus, save_dir, run_here):
    """Two updates, a checkpoint and its use."""
    with example_gates.registered():
        _check_part(model, layer, cell, gate, corpus, save_dir, run_here)


def _check_part(model, layer, cell, gate, corpus, save_dir, run_here):
    is_lm = model == "recurrent_lm"
    task = "stateful_lm" if is_lm else "translation"
    flags = [flag for flag in MODELS[model] if not (layer == "full" and flag in SHARING)]
    training = ["--task", task, *flags, "--output-layer", layer, "--criterion", "regularized_cross_entropy"]
    training += ["--optimizer", "adam", "--lr", "0.01", "--batch-size", "4", "--num-workers", "0"]
    training += ["--rnn-cell", cell] if cell != "lstm" else []
    training += ["--output-gate", gate] if gate != "none" else []
    training += ["--max-update", "2", "--log-format", "simple", "--save-dir", save_dir]
    run_here(train, corpus, *training)
    checkpoint = save_dir / "checkpoint_last.pt"
    state = load(checkpoint)
    assert bytes(map(int, state["model"]["decoder.output.gate.gate_name"])).decode() == gate
    assert state["cfg"]["model"].output_layer == layer and state["optimizer_history"][-1]["num_updates"] == 2
    if is_lm:
        log = run_here(eval_lm, corpus, "--path", checkpoint, "--task", task, "--gen-subset", "valid")
        (perplexity,) = re.findall(r"Perplexity: ([\d.]+)", log)
        assert 1 < float(perplexity) < math.inf
    else:
        log = run_here(generate, corpus, "--path", checkpoint, "--task", task, "--beam", 2, "--max-len-b", 5)
        assert len(re.findall(r"^H-\d+", log, re.M)) == 40
