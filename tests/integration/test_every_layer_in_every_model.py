"""Every output layer, cell and gate in every model trains, saves, loads, and decodes or scores, by host commands."""

import math
import re

import example_gates
import pytest
from commands import load
from fairseq.models import MODEL_REGISTRY
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


def test_all_models_are_tested():
    ours = {name for name, model in MODEL_REGISTRY.items() if model.__module__.startswith("fairseq_plugins.")}
    assert ours == set(MODELS)


CASES = [
    *((model, layer, "lstm", "none") for model in sorted(MODELS) for layer in sorted(OUTPUT_LAYERS)),
    *(
        (f"recurrent_{kind}", "doc", cell, "none")
        for kind in ("lm", "encdec")
        for cell in sorted(set(RECURRENT_CELLS) - {"lstm"})
    ),
    *(
        (model, "doc", "lstm", gate)
        for model in sorted(MODELS)
        for gate in sorted({*OUTPUT_GATES, *example_gates.EXAMPLES} - {"none"})
    ),
]


@pytest.fixture(autouse=True)
def gates():
    with example_gates.registered():
        yield


ESSENTIAL = {(model, "doc", "lstm", "none") for model in MODELS}


@pytest.mark.parametrize(
    "model, layer, cell, gate",
    [pytest.param(*case, marks=[] if case in ESSENTIAL else pytest.mark.slow) for case in CASES],
)
def test_two_updates_a_checkpoint_and_its_use(model, layer, cell, gate, data, pair_data, tmp_path, run_here):
    is_lm = model == "recurrent_lm"
    corpus, task = (data, "stateful_lm") if is_lm else (pair_data, "translation")
    flags = [flag for flag in MODELS[model] if not (layer == "full" and flag in SHARING)]
    training = ["--task", task, *flags, "--output-layer", layer, "--criterion", "regularized_cross_entropy"]
    training += ["--optimizer", "adam", "--lr", "0.01", "--batch-size", "4", "--num-workers", "0"]
    training += ["--rnn-cell", cell] if cell != "lstm" else []
    training += ["--output-gate", gate] if gate != "none" else []
    training += ["--max-update", "2", "--log-format", "simple", "--save-dir", tmp_path]
    run_here(train, corpus, *training)
    checkpoint = tmp_path / "checkpoint_last.pt"
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
