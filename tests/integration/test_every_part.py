"""Every output layer, cell, gate and way to copy trains, saves, loads, and decodes or scores, by fairseq's commands."""

import math
import re

import pytest
from builders import never_shares
from commands import load, updates_of
from example_parts import EXAMPLE_GATES
from fairseq.models import MODEL_REGISTRY
from fairseq_cli import eval_lm, generate, train
from translation_commands import TRANSFORMER_SIZES

from fairseq_plugins.modules.cell import RECURRENT_CELLS
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS
from fairseq_plugins.output_layers.copying import COPYING
from fairseq_plugins.output_layers.gates import OUTPUT_GATES

RECURRENT = ["--embed-dim", "12", "--hidden-sizes", "16 12"]
MODELS = {
    "recurrent_lm": ["--arch", "lstm_lm_awd", *RECURRENT],
    "recurrent_encdec": ["--arch", "lstm_encdec", *RECURRENT, "--share-embeddings", "output"],
    "transformer_with_output_layer": [
        *("--arch", "transformer_full", "--share-decoder-input-output-embed"),
        *TRANSFORMER_SIZES,
    ],
    "transformer_lm_with_output_layer": [
        *("--arch", "transformer_lm_full", "--share-decoder-input-output-embed"),
        *("--decoder-embed-dim", "8", "--decoder-ffn-embed-dim", "16", "--decoder-attention-heads", "2"),
    ],
}
SHARING = {"--share-embeddings", "output", "--share-decoder-input-output-embed"}


LANGUAGE_MODELS = {"recurrent_lm", "transformer_lm_with_output_layer"}


def cases():
    """In each case the next layer, gate, cell and way to copy: each layer in a language model and in a translator."""
    values = {"--output-layer": OUTPUT_LAYERS, "--output-gate": {*OUTPUT_GATES, *EXAMPLE_GATES}}
    values["--rnn-cell"] = RECURRENT_CELLS
    for number in range(max(map(len, values.values()))):
        part = {flag: sorted(names)[number % len(names)] for flag, names in values.items()}
        copying = {"--copying": sorted(COPYING)[number // 2 % len(COPYING)]}
        transformer = {flag: name for flag, name in part.items() if flag != "--rnn-cell"}
        if number % 2:
            pair = {"recurrent_lm": part, "transformer_with_output_layer": {**transformer, **copying}}
        else:
            pair = {"recurrent_encdec": {**part, **copying}, "transformer_lm_with_output_layer": transformer}
        for model, parts in pair.items():
            yield pytest.param(model, parts, id=" ".join((model, *parts.values())))


def test_all_models_are_tested():
    ours = {name for name, model in MODEL_REGISTRY.items() if model.__module__.startswith("fairseq_plugins.")}
    assert ours == {*MODELS, "gated_lm"}  # the last, which needs trained models, in test_gated_language_models.py


@pytest.mark.usefixtures("gates_of_the_examples")
@pytest.mark.parametrize("model, parts", cases())
def test_two_updates_a_checkpoint_and_its_use(model, parts, request, tmp_path, run_here):
    is_lm = model in LANGUAGE_MODELS
    corpus = request.getfixturevalue("data" if is_lm else "pair_data")
    layer, gate = parts["--output-layer"], parts["--output-gate"]
    task = "stateful_lm" if is_lm else "translation"
    flags = [flag for flag in MODELS[model] if not (never_shares(layer) and flag in SHARING)]
    training = ["--task", task, *flags, "--criterion", "regularized_cross_entropy"]
    training += ["--optimizer", "adam", "--lr", "0.01", "--batch-size", "4", "--num-workers", "0"]
    training += [word for flag_and_value in parts.items() for word in flag_and_value]
    training += ["--max-update", "2", "--log-format", "simple", "--save-dir", tmp_path]
    run_here(train, corpus, *training)
    checkpoint = tmp_path / "checkpoint_last.pt"
    state = load(checkpoint)
    saved = state["cfg"]["model"]
    assert (saved.output_layer, getattr(saved, "output_gate", "none")) == (layer, gate)
    assert updates_of(state) == 2
    if is_lm:
        log = run_here(eval_lm, corpus, "--path", checkpoint, "--task", task, "--gen-subset", "valid")
        (perplexity,) = re.findall(r"Perplexity: ([\d.]+)", log)
        assert 1 < float(perplexity) < math.inf
    else:
        log = run_here(generate, corpus, "--path", checkpoint, "--task", task, "--beam", 2, "--max-len-b", 5)
        assert len(re.findall(r"^H-\d+", log, re.M)) == 40
