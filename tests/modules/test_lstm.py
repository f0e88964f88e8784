"""LSTMs with weight drop and with variational dropout, against the recurrence written out and torch.nn.LSTM."""

import copy
import warnings

import plain_formulas
import pytest
import torch
from builders import randomise
from cells_by_hand import assert_as_by_hand, drawn_mask, loss, run_steps
from torch import nn

from fairseq_plugins.modules import lstm
from fairseq_plugins.modules.cell import CellContext
from fairseq_plugins.modules.lstm import (
    LSTMLayer,
    VariationalLSTM,
    VariationalOptions,
    WeightDropLSTM,
    WeightDropOptions,
)
from fairseq_plugins.ops import recurrence

B, T, C, D = 3, 6, 5, 7
RATE = 0.5
NAMES = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
LENGTHS = [T, 2, 0]
PADDING = torch.arange(T) < T - torch.tensor(LENGTHS).unsqueeze(1)
"""Which places are padding, (B, T), where the rows end at T."""


def make(rate, biases="two"):
    return WeightDropLSTM(C, D, options=WeightDropOptions(dropout_weight=rate, rnn_biases=biases)).double()


def run(layer, x, state=None, *, leading_padding=None):
    """Output and state, from zeros where there is no state before."""
    context = CellContext(stack_input=x, leading_padding=leading_padding)
    return layer(x, layer.initial_state(x) if state is None else state, context)


def by_hand(layer, x, state, mask):
    """Output and state of the recurrence; the mask is that of the recurrent matrix."""
    w_x, w_h, b_x, b_h = (getattr(layer, name) for name in NAMES)
    output, h, c = plain_formulas.lstm(x, state["h"], state["c"], w_x, w_h * mask, b_x, b_h)
    return output, {"h": h, "c": c}


@pytest.fixture
def inputs():
    """x (B, T, C) and a state before it."""
    h, c = torch.randn(2, B, D, dtype=torch.float64)
    return torch.randn(B, T, C, dtype=torch.float64), {"h": h, "c": c}


def make_variational(rate=RATE, biases="two"):
    return VariationalLSTM(C, D, options=VariationalOptions(dropout_recurrent=rate, rnn_biases=biases)).double()


def variational_by_hand(layer, x, state, mask):
    output, h, c = plain_formulas.lstm(x, state["h"], state["c"], *layer.parameters(), mask=mask)
    return output, {"h": h, "c": c}


@pytest.mark.parametrize(
    "make, formula, mask_shape, biases",
    [
        (make, by_hand, (4 * D, D), "two"),
        (make_variational, variational_by_hand, (B, D), "one"),
        (make_variational, variational_by_hand, (B, D), "two"),
    ],
)
def test_values_and_gradients_are_those_of_the_equations(make, formula, mask_shape, biases, inputs):
    """All steps share one mask, of the recurrent matrix or of the hidden states."""
    layer, (x, state) = make(RATE, biases), inputs
    randomise(layer, 0.7)
    mask = drawn_mask(5, mask_shape, rate=RATE)
    assert_as_by_hand(layer, x, state, lambda: formula(layer, x, state, mask))


@pytest.mark.parametrize("rate, training, num_calls", [(RATE, True, 0), (RATE, False, 1), (0.0, True, 1)])
def test_without_a_mask_of_the_states_the_kernel_runs(rate, training, num_calls, inputs, monkeypatch):
    library, calls = torch.lstm, []
    monkeypatch.setattr(torch, "lstm", lambda *arguments: calls.append(1) or library(*arguments))
    run(make_variational(rate).train(training), *inputs)
    assert len(calls) == num_calls


@pytest.mark.parametrize("rate, training", [(RATE, False), (0.0, True), (0.0, False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_a_mask_it_is_the_library_lstm(inputs, rate, training, dtype):
    x = inputs[0].to(dtype)
    layer = make(rate).to(dtype).train(training)
    library = nn.LSTM(C, D, batch_first=True).to(dtype)
    library.load_state_dict(layer.state_dict())
    output, state = run(layer, x)
    expected, (expected_h, expected_c) = library(x)
    assert torch.equal(output, expected)
    assert torch.equal(state["h"], expected_h[0]) and torch.equal(state["c"], expected_c[0])


def test_no_warnings(inputs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = make(RATE)
        _, state = run(layer, inputs[0])
        run(layer, inputs[0], state)[0].sum().backward()
        run(layer.eval(), inputs[0])


# padding in front of a row


def test_leading_padding_goes_with_weight_drop_and_the_gradients_are_those_of_the_rows_alone(inputs):
    layer = randomise(make(RATE), 2)  # gates reach from closed to open
    x, mask = inputs[0].requires_grad_(), drawn_mask(5, (4 * D, D), rate=RATE)
    wanted = [x, *layer.parameters()]
    torch.manual_seed(5)
    output, state = run(layer, x, leading_padding=PADDING)
    ours = torch.autograd.grad(loss(output, state), wanted)
    total = 0
    for row, length in enumerate(LENGTHS[:2]):
        kept = x[row : row + 1, T - length :]
        alone, state = by_hand(layer, kept, layer.initial_state(kept), mask)
        torch.testing.assert_close(output[row : row + 1, T - length :], alone, rtol=1e-12, atol=1e-12)
        total = total + loss(alone, state)
    torch.testing.assert_close(ours, torch.autograd.grad(total, wanted), rtol=1e-10, atol=1e-12)
    assert not ours[0][PADDING].any()


# one bias vector


def make_pair(rate=0.0):
    """A layer with one bias vector, and one with two of which the second is zero, of equal weights."""
    one, two = make(rate, "one"), make(rate)
    with torch.no_grad():
        two.bias_hh_l0.zero_()
    assert not two.load_state_dict(one.state_dict(), strict=False).unexpected_keys
    return one, two


def test_one_bias_vector_is_the_second_less():
    one, two = make_pair()
    assert [name for name, _ in one.named_parameters()] == list(one.state_dict()) == NAMES[:3]
    sizes = [sum(param.numel() for param in layer.parameters()) for layer in (one, two)]
    assert sizes == [4 * D * (C + D + 1), 4 * D * (C + D + 2)]


@pytest.mark.parametrize("rate", [0.0, RATE])
@pytest.mark.parametrize("padded", [False, True])
def test_one_bias_vector_is_two_of_which_one_is_zero(inputs, rate, padded):
    x, state = inputs[0].requires_grad_(), None if padded else inputs[1]
    results = []
    for layer in make_pair(rate):
        torch.manual_seed(5)
        found = run(layer, x, state, leading_padding=PADDING if padded else None)
        gradients = torch.autograd.grad(loss(*found), [x, *(getattr(layer, name) for name in NAMES[:3])])
        results.append((found, gradients))
    torch.testing.assert_close(*results, rtol=0, atol=0)
    steps = [run_steps(layer.eval(), x, inputs[1], 2) for layer in make_pair()]
    torch.testing.assert_close(*steps, rtol=0, atol=0)


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.float().double(),
        lambda layer: copy.deepcopy(layer).to(dtype=torch.float32),
        lambda layer: layer.share_memory(),
    ],
)
@pytest.mark.parametrize("biases", ["one", "two"])
def test_a_layer_moves_and_is_copied_whole(change, biases, inputs):
    layer, (x, state) = make(RATE, biases), inputs
    expected = run(layer.eval(), x, state)
    changed = change(layer)
    dtype = changed.weight_ih_l0.dtype
    assert {getattr(changed, name).dtype for name in NAMES} == {dtype}
    found = run(changed, x.to(dtype), {name: part.to(dtype) for name, part in state.items()})
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, check_dtype=False)
    with torch.no_grad():
        changed.bias_ih_l0.add_(1)  # the kernel reads the parameter itself, no copy of it
    again, _ = run(changed, x.to(dtype), {name: part.to(dtype) for name, part in state.items()})
    assert not torch.allclose(again, found[0])


# a step of a search


@pytest.mark.parametrize("layer_class", [LSTMLayer, WeightDropLSTM])
def test_a_step_of_a_search_is_the_recurrence(layer_class, inputs, monkeypatch):
    layer = layer_class(C, D, options=WeightDropOptions()).eval()
    x, state = inputs[0][:, :1].float(), {name: one.float() for name, one in inputs[1].items()}
    with torch.no_grad():
        kernel = run(layer, x.expand(-1, 2, -1), state)  # torch's kernel takes two steps
        monkeypatch.setattr(torch, "lstm", None)  # it takes no part
        found = run(layer, x, state)
    layer.double()
    expected = by_hand(layer, x.double(), {name: one.double() for name, one in state.items()}, 1.0)
    torch.testing.assert_close(found[0].double(), expected[0], rtol=0, atol=1e-6)
    torch.testing.assert_close({k: v.double() for k, v in found[1].items()}, expected[1], rtol=0, atol=1e-6)
    torch.testing.assert_close(found[0], kernel[0][:, :1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("rows_begin_late", [False, True])
def test_a_step_with_gradients_or_padding_is_torchs(rows_begin_late, inputs, monkeypatch):
    library, calls = torch.lstm, []
    monkeypatch.setattr(torch, "lstm", lambda *args: calls.append(args) or library(*args))
    layer, x = make(0.0).float(), inputs[0][:, :1].float()
    state = {name: one.float() for name, one in inputs[1].items()}
    with torch.set_grad_enabled(not rows_begin_late):
        run(layer, x, state, leading_padding=torch.ones(B, 1, dtype=torch.bool) if rows_begin_late else None)
    assert len(calls) == 1


# gradients in evaluation


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("with_gradient", [True, False])
def test_the_kernel_keeps_what_a_backward_pass_needs_where_there_can_be_one(
    inputs, training, with_gradient, monkeypatch
):
    library, flags = torch.lstm, []

    def spy(x, state, weights, has_biases, num_layers, dropout, train, bidirectional, batch_first):
        flags.append(train)
        return library(x, state, weights, has_biases, num_layers, dropout, train, bidirectional, batch_first)

    monkeypatch.setattr(torch, "lstm", spy)
    layer = make(0.0).train(training)
    with torch.set_grad_enabled(with_gradient):
        run(layer, *inputs)
    assert flags == [with_gradient]


def test_a_step_on_a_gpu_is_that_on_a_cpu():
    gates, c = torch.randn(B, 4, D, dtype=torch.float64), torch.randn(D, dtype=torch.float64).expand(B, D)
    found = recurrence.lstm_cell(gates.flatten(1).clone(), c)[:2]
    torch.testing.assert_close(found, lstm.update(gates, c), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("cell, state, num_results", [("lstm", "cx", 3), ("gru", "hx", 2)])
def test_torch_has_the_kernels_that_a_step_takes_on_a_gpu(cell, state, num_results):
    schema = getattr(torch.ops.aten, f"_thnn_fused_{cell}_cell").default._schema
    assert [(argument.name, str(argument.type)) for argument in schema.arguments] == [
        *((name, "Tensor") for name in ("input_gates", "hidden_gates", state)),
        *((name, "Optional[Tensor]") for name in ("input_bias", "hidden_bias")),
    ]
    assert len(schema.returns) == num_results
