"""Initial values of parameters by layer, and their flags."""

import pytest
import torch
from builders import build_encdec
from torch import nn

from fairseq_plugins.modules.cell import RECURRENT_CELLS
from fairseq_plugins.modules.initialisation import initialise_by_layer
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS

SIZES = dict(embed_dim=32, hidden_sizes="40 32")
EMBEDDING_STD = 0.3

LSTM = {"weight_hh_l0": 4}
# matrices in the recurrent parameters of each cell, by the ends of their names
RECURRENT = {
    "lstm": LSTM,
    "variational": LSTM,
    "mmlstm": LSTM,
    "rhn": {f"micro_layers.{n}.weight": 2 for n in range(4)},
    "mogrifier": {"recurrent.weight": 4},
    "diagonal": {"recurrent.weight": 1},
    "rectifier": {"recurrent.weight": 1, "skip.weight": 1},
    "smooth-rectifier": {"recurrent.weight": 1},
}
# those in other parameters where there are several
STACKED = {"weight_ih_l0": 4}
STACKED_IN = {"rhn": {"input.weight": 2}, "mogrifier": {"input.weight": 4}}
FLAGS = {"diagonal": {"transition": "full"}, "rectifier": {"word_skip": "w0"}}


def build_by_layer(**flags):
    shared = "output" if flags.get("output_layer") == "tied" else "none"
    torch.manual_seed(3)
    flags = {"init": "by-layer", "embedding_std": EMBEDDING_STD, "share_embeddings": shared, **SIZES, **flags}
    return build_encdec("lstm_encdec", 200, 210, **flags)


def number_of(names, key, *, otherwise):
    return next((number for name, number in names.items() if key.endswith(name)), otherwise)


def assert_orthogonal(matrix):
    product = matrix.double() @ matrix.double().t()
    torch.testing.assert_close(product, torch.eye(len(matrix), dtype=torch.float64), rtol=0, atol=1e-5)


def assert_glorot(matrix):
    limit = (6 / sum(matrix.shape)) ** 0.5
    assert matrix.abs().max() <= limit
    if matrix.numel() > 500:
        assert matrix.abs().max() > 0.95 * limit
        assert matrix.std().item() == pytest.approx(limit / 3**0.5, rel=0.1)


def test_every_cell_is_described():
    missing = sorted(RECURRENT_CELLS.keys() - RECURRENT.keys())
    assert not missing, f"name the recurrent matrices of --rnn-cell {', '.join(missing)} in RECURRENT of this file"


@pytest.mark.parametrize("cell", sorted(RECURRENT))
def test_recurrent_matrices_are_orthogonal_and_others_of_unit_gain_gate_by_gate(cell):
    model = build_by_layer(rnn_cell=cell, **FLAGS.get(cell, {}))
    found = []
    for key, parameter in model.named_parameters():
        if parameter.dim() == 1 or "embedding" in key:
            continue
        num_gates = number_of(RECURRENT[cell], key, otherwise=0)
        if num_gates:
            found.append(key)
            for matrix in parameter.chunk(num_gates):
                assert matrix.size(0) == matrix.size(1), key
                assert_orthogonal(matrix)
        else:
            for matrix in parameter.chunk(number_of({**STACKED, **STACKED_IN.get(cell, {})}, key, otherwise=1)):
                assert_glorot(matrix)
    num_parts = 2 if cell == "mmlstm" else 1
    per_layer = {"rhn": 4, "rectifier": 2}.get(cell, 1)
    assert len(found) == 3 * 2 * num_parts * per_layer  # two directions and the decoder, two layers each


@pytest.mark.parametrize("cell", sorted(RECURRENT_CELLS))
def test_forget_gates_start_open_and_other_biases_at_zero(cell):
    model = build_by_layer(rnn_cell=cell, output_layer="drill", output_gate="iog-lstm")
    for key, parameter in model.named_parameters():
        if parameter.dim() > 1:
            continue
        expected = torch.zeros_like(parameter)
        if key.endswith("bias_ih_l0") or (cell == "mogrifier" and key.endswith(".input.bias")):
            expected.view(4, -1)[1] = 1
        assert torch.equal(parameter, expected), key


@pytest.mark.parametrize("name", sorted(OUTPUT_LAYERS))
def test_output_layers_and_attention_have_unit_gain_and_embeddings_their_deviation(name):
    experts = {
        "mos": {"latent_projections.0.weight": 3},
        "doc": {"latent_projections.0.weight": 2, "latent_projections.1.weight": 3},
    }.get(name, {})
    flags = {"experts_per_layer": "0 0 0 3" if name == "mos" else "0 0 2 3"} if experts else {}
    model = build_by_layer(output_layer=name, output_gate="iog", attention="mlp", **flags)
    embeddings = {id(part.weight): part.weight for part in model.modules() if isinstance(part, nn.Embedding)}
    assert len(embeddings) == 3  # of source, target and gate
    for weight in embeddings.values():
        assert weight.std().item() == pytest.approx(EMBEDDING_STD, rel=0.05)
        assert weight.mean().abs() < 5 * EMBEDDING_STD / weight.numel() ** 0.5
    for key, parameter in model.named_parameters():
        if parameter.dim() > 1 and id(parameter) not in embeddings and not key.endswith("weight_hh_l0"):
            for matrix in parameter.chunk(number_of({**STACKED, **experts}, key, otherwise=1)):
                assert_glorot(matrix)


def test_a_part_that_says_nothing_starts_as_others_do():
    model = nn.Sequential(nn.Linear(40, 50), nn.GRUCell(40, 40))
    initialise_by_layer(model, embedding_std=1.0)
    for parameter in model.parameters():
        assert not parameter.any() if parameter.dim() == 1 else assert_glorot(parameter) is None


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"init": "by-layer", "init_range": 0.1}, "--init by-layer has no --init-range: leave out --init-range"),
        ({"init": "by-layer", "init_biases": "zero"}, "--init by-layer has no --init-biases"),
        ({"embedding_std": 0.1}, "--init uniform has no --embedding-std"),
        ({"init": "by-layer", "embedding_std": 0.0}, "--embedding-std 0.0: give a value above 0"),
    ],
)
def test_flags_of_the_other_start_are_refused(flags, message):
    with pytest.raises(ValueError, match=message):
        build_encdec("lstm_encdec_doc", 20, 21, **flags)
