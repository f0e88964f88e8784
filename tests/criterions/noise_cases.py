"""Models that learn from noise, their batches, and a text whose words are the noise."""

import math
from types import SimpleNamespace

import torch
from binarised_lines import write_split
from builders import build_tiny_encdec, build_tiny_lm, build_tiny_transformer, make_task

from fairseq_plugins.modules.cell import RECURRENT_CELLS

V, B, T, S = 20, 3, 4, 5
LOG_V = math.log(V)
SIZES = dict(vocab_size=V)
SOURCE = dict(SIZES, source_size=19)
LAYERS = ["full", "tied", "bilinear", "dual", "drill"]
MODELS = {
    **{layer: lambda layer=layer: build_tiny_lm(layer, **SIZES) for layer in LAYERS},
    **{f"no biases, {layer}": lambda layer=layer: build_tiny_lm(layer, output_bias="off", **SIZES) for layer in LAYERS},
    **{cell: lambda cell=cell: build_tiny_lm("full", rnn_cell=cell, **SIZES) for cell in sorted(RECURRENT_CELLS)},
    "encoder-decoder": lambda: build_tiny_encdec("full", **SOURCE),
    "encoder-decoder, shared": lambda: build_tiny_encdec("tied", share_embeddings="output", **SOURCE),
    "Transformer": lambda: build_tiny_transformer("transformer_drill", label_depth=2, label_dropout=0.0, **SOURCE),
    "Transformer, shared": lambda: build_tiny_transformer(
        "transformer_full", output_layer="tied", share_decoder_input_output_embed=True, **SOURCE
    ),
}


def make_counted_task(folder):
    """A task with a training text in which every second word occurs."""
    write_split(folder, "train", [[2 * (word % 5) + 4] * (word + 1) for word in range(10)], vocab_size=V)
    task = make_task(V)
    task.cfg = SimpleNamespace(data=str(folder))
    return task


def make_sample(model, *, padding=None):
    """Targets are words that occur or not; the last steps of two rows may be padding."""
    tokens = torch.randint(4, V, (B, T + 1))
    target = tokens[:, 1:].clone()
    if padding is not None:
        target[1, -1:] = target[2, 1:] = padding
    num_tokens = target.numel() if padding is None else int(target.ne(padding).sum())
    inputs = {"src_tokens": tokens[:, :-1]}
    if hasattr(model, "encoder"):
        source = torch.randint(4, 19, (B, S))
        inputs = {"src_tokens": source, "src_lengths": torch.tensor([S] * B), "prev_output_tokens": tokens[:, :-1]}
    return {"net_input": inputs, "target": target, "ntokens": num_tokens}
