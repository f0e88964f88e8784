"""Dropout, embedding, linear layers, label networks, initialisation and settings in checkpoints."""

import math

import pytest
import torch
from builders import build_encdec
from plain_formulas import encoded
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fairseq_plugins.modules.cell import RECURRENT_CELLS
from fairseq_plugins.modules.layers import (
    ACTIVATIONS,
    MASKS,
    WORD_MASKS,
    BroadcastDropout,
    FeedForward,
    LabelNetwork,
    Linear,
    WordDropoutEmbedding,
    initialise_by_layer,
)
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS

B, T, D = 6, 5, 40


def make(rate, *, shared_dims=MASKS["locked"]):
    return BroadcastDropout(rate, flag="--dropout-input", shared_dims=shared_dims)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.65])
def test_the_rate_is_the_share_of_dropped_values(rate):
    n = 100_000
    dropped = make(rate)(torch.ones(1, 1, n)).eq(0).double().mean().item()
    assert dropped == pytest.approx(rate, abs=4 * (rate * (1 - rate) / n) ** 0.5)


def test_evaluation_and_rate_zero_leave_the_input_alone():
    x = torch.randn(B, T, D)
    for dropout in (make(0.5).eval(), make(0.0)):
        assert torch.equal(dropout(x), x) and dropout.mask(x, x.shape) is None


@pytest.mark.parametrize("shared_dims, num_masks", [((1,), B * 3), ((1, 2), B)])
def test_the_mask_of_latent_vectors_is_shared_or_per_expert(shared_dims, num_masks):
    out = make(0.5, shared_dims=shared_dims)(torch.ones(B, T, 3, D))
    assert torch.equal(out, out[:, :1].expand_as(out))
    assert len({tuple(mask.tolist()) for mask in out[:, 0].flatten(0, 1)}) == num_masks


@pytest.mark.parametrize("shared_dims, shape", [((), (B, T, D)), ((1,), (B, 1, D)), ((0, 1), (1, 1, D))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_mask_is_what_a_call_multiplies_by(shared_dims, shape, dtype):
    dropout, x = make(0.5, shared_dims=shared_dims), torch.randn(B, T, D, dtype=dtype)
    torch.manual_seed(3)
    mask = dropout.mask(x, x.shape)
    torch.manual_seed(3)
    assert torch.equal(dropout(x), x * mask)
    assert mask.shape == shape and mask.dtype == dtype


V, C = 200, 6

every_masks = pytest.mark.parametrize("word_masks", WORD_MASKS)


@pytest.fixture
def tokens():
    return torch.randint(V, (8, 30))


def make_embedding(rate, word_masks="window"):
    return WordDropoutEmbedding(V, C, word_dropout=rate, word_masks=word_masks)


def dropped_types(vectors, tokens):
    return set(tokens[vectors.eq(0).all(dim=-1)].tolist())


def dropped_types_of_rows(vectors, tokens):
    return [dropped_types(*row) for row in zip(vectors, tokens)]


def assert_types_are_dropped(embedding, vectors, tokens, dropped, rate):
    gone = torch.isin(tokens, torch.tensor(sorted(dropped), dtype=torch.long))
    assert torch.equal(vectors[gone], torch.zeros_like(vectors[gone]))
    torch.testing.assert_close(vectors[~gone], embedding.weight[tokens[~gone]] / (1 - rate), rtol=1e-6, atol=0)


@every_masks
def test_a_dropped_type_vanishes_at_all_its_places_and_the_others_are_scaled(word_masks):
    """In the window or in a row; each type is about three times in a row."""
    embedding, tokens = make_embedding(0.3, word_masks), torch.randint(20, (8, 60))
    vectors = embedding(tokens)
    parts = [(vectors, tokens)] if word_masks == "window" else list(zip(vectors, tokens))
    dropped = [dropped_types(*part) for part in parts]
    for part, types in zip(parts, dropped):
        assert_types_are_dropped(embedding, *part, types, 0.3)
    assert all(0 < len(types) < 20 for types in dropped)


def test_every_row_drops_types_of_its_own():
    tokens = torch.arange(20).expand(50, 20)
    dropped = make_embedding(0.5, "row")(tokens).eq(0).all(dim=-1)
    assert len({tuple(row.tolist()) for row in dropped}) == 50
    together = dropped.double().T.corrcoef()  # of the types over the rows
    assert together.fill_diagonal_(0).abs().max() < 0.7
    window = make_embedding(0.5)(tokens).eq(0).all(dim=-1)
    assert torch.equal(window, window[:1].expand_as(window)) and window.any() and not window.all()


@every_masks
def test_embedding_a_mask_is_what_a_call_multiplies_by(word_masks, tokens):
    embedding = make_embedding(0.3, word_masks)
    torch.manual_seed(5)
    mask = embedding.mask(tokens)
    torch.manual_seed(5)
    assert mask.shape == (8, 30, 1)
    assert torch.equal(embedding(tokens), embedding.weight[tokens] * mask)


@every_masks
def test_every_call_draws_fresh_types(word_masks, tokens):
    embedding = make_embedding(0.3, word_masks)
    first, second = (dropped_types_of_rows(embedding(tokens), tokens) for _ in range(2))
    assert all(a != b for a, b in zip(first, second))


@pytest.mark.parametrize("rate", [0.1, 0.3])
@every_masks
def test_the_rate_is_the_share_of_dropped_types(word_masks, rate):
    n = 6400
    embedding = WordDropoutEmbedding(n, 1, word_dropout=rate, word_masks=word_masks)
    tokens = torch.arange(n).view(64, 100) if word_masks == "window" else torch.arange(100).expand(64, 100)
    dropped = embedding.mask(tokens).eq(0).double().mean().item()
    assert dropped == pytest.approx(rate, abs=4 * (rate * (1 - rate) / n) ** 0.5)


@every_masks
@pytest.mark.parametrize("rate, training", [(0.3, False), (0.0, True)])
def test_evaluation_and_rate_zero_are_a_plain_look_up(tokens, rate, training, word_masks):
    embedding = make_embedding(rate, word_masks).train(training)
    assert torch.equal(embedding(tokens), embedding.weight[tokens])


# noise


def test_training_adds_noise_of_the_stated_deviation_to_every_feature():
    embedding = WordDropoutEmbedding(5, 400, noise=0.15)
    tokens = torch.tensor([[1, 1, 2], [1, 3, 0]])
    noise = (embedding(tokens) - embedding.weight[tokens]).detach()
    n = noise.numel()
    assert noise.mean().item() == pytest.approx(0, abs=4 * 0.15 / n**0.5)
    assert noise.std().item() == pytest.approx(0.15, rel=4 / (2 * n) ** 0.5)
    same_word = torch.corrcoef(torch.stack([noise[0, 0], noise[0, 1], noise[1, 0]]))
    assert (same_word - torch.eye(3)).abs().max() < 4 / 400**0.5


def test_noise_is_added_after_words_are_dropped(tokens):
    torch.manual_seed(1)
    dropped = WordDropoutEmbedding(V, C, word_dropout=0.5)
    noisy = WordDropoutEmbedding(V, C, word_dropout=0.5, noise=1e-3)
    noisy.load_state_dict(dropped.state_dict())
    results = []
    for embedding in (dropped, noisy):
        torch.manual_seed(2)
        results.append(embedding(tokens))
    assert results[0].eq(0).any() and results[1].ne(0).all()
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=6e-3)


@pytest.mark.parametrize("noise, training", [(0.0, True), (0.15, False)])
def test_no_noise_is_a_plain_look_up_that_draws_nothing(tokens, noise, training):
    embedding = WordDropoutEmbedding(V, C, noise=noise).train(training)
    before = torch.get_rng_state()
    assert torch.equal(embedding(tokens), embedding.weight[tokens])
    assert torch.equal(torch.get_rng_state(), before)


FF_B, FF_T, FF_C, FF_D = 3, 4, 5, 7


def test_it_is_the_rectified_sum_of_weighted_inputs_and_bias():
    layer, x = (
        FeedForward(FF_C, FF_D).double(),
        torch.randn(FF_B, FF_T, FF_C, dtype=torch.float64),
    )
    expected = torch.zeros(FF_B, FF_T, FF_D, dtype=torch.float64)
    for b, t, d in torch.cartesian_prod(*map(torch.arange, (FF_B, FF_T, FF_D))):
        total = sum(layer.linear.weight[d, c] * x[b, t, c] for c in range(FF_C)) + layer.linear.bias[d]
        expected[b, t, d] = max(total, torch.zeros(()))
    output = layer(x)
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)
    assert (output == 0).any() and (output > 0).any()


LABEL_V, LABEL_C = 11, 6
RATE = 0.6

every_mask = pytest.mark.parametrize("mask", ["variational", "standard"])
every_place = pytest.mark.parametrize("place", ["input", "output"])


def build(in_width=LABEL_C, out_width=LABEL_C, **options):
    defaults = dict(
        depth=2,
        residual=True,
        layer_residual=False,
        activation="sigmoid",
        dropout=0.0,
        mask="variational",
        place="input",
        initialisation="uniform",
    )
    network = LabelNetwork(in_width, out_width, **{**defaults, **options}).double()
    for param in network.parameters():
        nn.init.uniform_(param, -0.7, 0.7)
    return network


def draw_labels(width=LABEL_C):
    return torch.randn(LABEL_V, width, dtype=torch.float64, requires_grad=True)


@pytest.fixture
def masks(monkeypatch):
    """Every 0-1 mask that is drawn, in order."""
    drawn = []

    def spy(draw):
        return lambda x, p: drawn.append(draw(x, p).double()) or x

    for name in ("bernoulli_", "lt_"):  # of features, and of single values
        monkeypatch.setattr(torch.Tensor, name, spy(getattr(torch.Tensor, name)))
    return drawn


def assert_same(result, expected, network, e):
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)
    inputs, upstream = [e, *network.parameters()], torch.randn_like(result)
    ours, theirs = (torch.autograd.grad(y, inputs, upstream) for y in (result, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "depth, activation, residual, layer_residual",
    [
        *((n, "sigmoid", n % 2 == 0, n > 2) for n in range(5)),
        *((3, "tanh", residual, other) for residual in (False, True) for other in (False, True)),
        *((2, activation, True, False) for activation in sorted(ACTIVATIONS)),
    ],
)
def test_labels_and_gradients_are_those_of_the_equation(depth, activation, residual, layer_residual):
    network = build(depth=depth, activation=activation, residual=residual, layer_residual=layer_residual)
    e = draw_labels()
    assert (network.residual, network.layer_residual) == (residual, layer_residual)
    assert_same(network(e), encoded(network, e, activation), network, e)


def test_without_layers_labels_stay_as_they_are():
    e = draw_labels()
    assert build(depth=0, dropout=RATE)(e) is e


# dropout


@every_mask
@every_place
@pytest.mark.parametrize(
    "depth, activation, residual, layer_residual",
    [(1, "sigmoid", True, False), (2, "relu", False, False), (4, "tanh", True, True), (3, "linear", True, False)],
)
def test_dropped_labels_and_gradients_are_those_of_the_masks(
    depth, activation, residual, layer_residual, place, mask, masks
):
    options = dict(depth=depth, activation=activation, residual=residual, layer_residual=layer_residual)
    network, e = build(dropout=RATE, mask=mask, place=place, **options), draw_labels()
    result = network(e)
    assert len(masks) == depth
    scaled = {f"{place}_masks": [m / (1 - RATE) for m in masks]}
    assert_same(result, encoded(network, e, activation, **scaled), network, e)


@every_mask
@every_place
def test_masks_are_fresh_in_each_layer_and_each_pass(place, mask, masks):
    network = build(64, 64, depth=3, dropout=RATE, mask=mask, place=place)
    for _ in range(2):
        network(draw_labels(64))
    assert len({tuple(m.flatten().tolist()) for m in masks}) == 2 * 3


@every_mask
@every_place
def test_evaluation_drops_nothing(place, mask, masks):
    network, e = build(dropout=RATE, mask=mask, place=place).eval(), draw_labels()
    assert_same(network(e), encoded(network, e), network, e)
    assert masks == []


def products(network, e):
    """Multiply-adds of a forward and backward pass."""
    with FlopCounterMode(display=False) as counter:
        network(e).sum().backward()
    return counter.get_total_flops() / 2


def test_dropped_features_are_not_multiplied(masks):
    network, e = build(100, 100, depth=3, dropout=RATE), draw_labels(100)
    assert products(network, e) == 3 * LABEL_V * 100 * sum(m.sum().item() for m in masks)
    assert 0.2 * 300 < sum(m.sum().item() for m in masks) < 0.6 * 300
    assert products(network.eval(), e) == 3 * LABEL_V * 100 * 300


# precision, initialisation, errors


@pytest.mark.parametrize("how", ["float32", "bfloat16", "autocast"])
def test_narrow_types(how):
    network, e = build(depth=4), draw_labels()
    expected = encoded(network, e)
    dtype = torch.bfloat16 if how == "bfloat16" else torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=how == "autocast"):
        result = network.to(dtype)(e.to(dtype))
    assert result.dtype == dtype
    tolerance = 1e-6 if how == "float32" else 3e-2
    torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)
    result.sum().backward()
    assert all(param.grad.dtype == dtype and param.grad.isfinite().all() for param in network.parameters())


@pytest.mark.parametrize("initialisation, bound", [("uniform", 0.1), ("glorot", math.sqrt(6 / (300 + 100)))])
def test_matrices_and_biases_start_within_their_bounds(initialisation, bound):
    network = LabelNetwork(
        300,
        100,
        depth=2,
        residual=False,
        layer_residual=False,
        activation="relu",
        dropout=0.0,
        mask="standard",
        place="input",
        initialisation=initialisation,
    )
    first = network.layers[0]
    for param, limit in ((first.weight, bound), (first.bias, 1 / math.sqrt(300))):
        assert 0.9 * limit < param.max() <= limit and -limit <= param.min() < -0.9 * limit
        assert abs(param.mean()) < 0.2 * limit
    assert 0.09 < network.layers[1].bias.abs().max() <= 0.1


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
    experts = {"mos": {"latents.0.weight": 3}, "doc": {"latents.0.weight": 2, "latents.1.weight": 3}}.get(name, {})
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
    "build, named",
    [(lambda: WordDropoutEmbedding(V, C, noise=-0.1), "--embedding-noise -0.1")]
    + [(lambda size=size: FeedForward(FF_C, size), f"--output-hidden-size {size}") for size in (0, -3)],
)
def test_values_that_do_not_fit_are_refused(build, named):
    with pytest.raises(ValueError, match=named):
        build()


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


every_bias = pytest.mark.parametrize("bias", [True, False])


def make_linear(bias, dtype=torch.float64):
    ours, plain = Linear(5, 7, bias=bias).to(dtype), nn.Linear(5, 7, bias=bias).to(dtype)
    plain.load_state_dict(ours.state_dict())
    return ours, plain


@every_bias
@pytest.mark.parametrize(
    "shape, dtype, tolerance",
    [
        *((shape, torch.float64, 0) for shape in [(5,), (4, 5), (2, 3, 5), (2, 1, 3, 5), (0, 5), (2, 0, 5)]),
        *(((2, 3, 5), dtype, tolerance) for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0))),
    ],
)
def test_values_and_gradients_are_those_of_torchs_layer(bias, shape, dtype, tolerance):
    x, results = torch.randn(shape, dtype=dtype, requires_grad=True), []
    for layer in make_linear(bias, dtype):
        output = layer(x)
        results.append([output, *torch.autograd.grad(output.square().sum(), [x, *layer.parameters()])])
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)


@every_bias
def test_autocast_is_torchs(bias):
    x, results = torch.randn(4, 5, requires_grad=True), []
    for layer in make_linear(bias, torch.float32):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = layer(x)
        assert output.dtype == torch.bfloat16
        results.append([output, *torch.autograd.grad(output.float().square().sum(), [x, *layer.parameters()])])
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_in_float64_there_is_a_second_derivative():
    layer, x = make_linear(True)[0], torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(layer, x)
