"""The kernels of LSTMs, padding and steps of a search. test_cell_equations.py has their equations."""

import warnings

import plain_formulas
import pytest
import torch
from builders import randomise
from cell_contract import loss

from fairseq_plugins.modules import lstm
from fairseq_plugins.modules.cell import CellContext
from fairseq_plugins.modules.lstm import VariationalLSTM, VariationalOptions, WeightDropLSTM, WeightDropOptions
from fairseq_plugins.ops import recurrence

B, T, C, D = 3, 6, 5, 7
RATE = 0.5
LENGTHS = [T, 2, 0]
PADDING = torch.arange(T) < T - torch.tensor(LENGTHS).unsqueeze(1)
"""Which places are padding, (B, T), where the rows end at T."""


def make(rate):
    return WeightDropLSTM(C, D, options=WeightDropOptions(dropout_weight=rate)).double()


def run(layer, x, state=None, *, leading_padding=None):
    """Output and state, from zeros where there is no state before."""
    context = CellContext(stack_input=x, leading_padding=leading_padding)
    return layer(x, layer.initial_state(x) if state is None else state, context)


@pytest.fixture
def inputs():
    """x (B, T, C) and a state before it."""
    h, c = torch.randn(2, B, D, dtype=torch.float64)
    return torch.randn(B, T, C, dtype=torch.float64), {"h": h, "c": c}


@pytest.fixture
def calls(monkeypatch):
    """Arguments of every call of torch's kernel."""
    library, calls = torch.lstm, []
    monkeypatch.setattr(torch, "lstm", lambda *arguments: calls.append(arguments) or library(*arguments))
    return calls


@pytest.mark.parametrize("rate, training, num_calls", [(RATE, True, 0), (RATE, False, 1), (0.0, True, 1)])
def test_without_a_mask_of_the_states_the_kernel_runs(rate, training, num_calls, inputs, calls):
    layer = VariationalLSTM(C, D, options=VariationalOptions(dropout_recurrent=rate)).double()
    run(layer.train(training), *inputs)
    assert len(calls) == num_calls


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
    x = inputs[0].requires_grad_()
    wanted = [x, *layer.parameters()]
    torch.manual_seed(5)
    mask = torch.rand(4 * D, D).lt(1 - RATE).double() / (1 - RATE)
    torch.manual_seed(5)
    output, state = run(layer, x, leading_padding=PADDING)
    ours = torch.autograd.grad(loss(output, state), wanted)
    total = 0
    for row, length in enumerate(LENGTHS[:2]):
        kept = x[row : row + 1, T - length :]
        alone, state = plain_formulas.recurrent(layer, kept, layer.initial_state(kept), kept, mask)
        torch.testing.assert_close(output[row : row + 1, T - length :], alone, rtol=1e-12, atol=1e-12)
        total = total + loss(alone, state)
    torch.testing.assert_close(ours, torch.autograd.grad(total, wanted), rtol=1e-10, atol=1e-12)
    assert not ours[0][PADDING].any()


# a step of a search


def test_a_step_of_a_search_is_the_recurrence(inputs, monkeypatch):
    layer, (x, state) = make(0.0).eval(), inputs
    expected = plain_formulas.recurrent(layer, x[:, :1], state, x)
    monkeypatch.setattr(torch, "lstm", None)  # it takes no part
    with torch.no_grad():
        output, after = run(layer.float(), x[:, :1].float(), {name: one.float() for name, one in state.items()})
    found = output.double(), {name: one.double() for name, one in after.items()}
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rows_begin_late", [False, True])
def test_a_step_with_gradients_or_padding_is_torchs(rows_begin_late, inputs, calls):
    layer, x = make(0.0).float(), inputs[0][:, :1].float()
    state = {name: one.float() for name, one in inputs[1].items()}
    with torch.set_grad_enabled(not rows_begin_late):
        run(layer, x, state, leading_padding=torch.ones(B, 1, dtype=torch.bool) if rows_begin_late else None)
    assert len(calls) == 1


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("with_gradient", [True, False])
def test_the_kernel_keeps_what_a_backward_pass_needs_where_there_can_be_one(training, with_gradient, inputs, calls):
    with torch.set_grad_enabled(with_gradient):
        run(make(0.0).train(training), *inputs)
    x, state, weights, has_biases, num_layers, dropout, train, *_ = calls[0]
    assert train == with_gradient


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
