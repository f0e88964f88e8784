"""Which of torch's LSTM kernels a layer takes, and what each gives."""

import pytest
import torch
from cell_cases import loss
from lstm_cases import B, C, D, by_hand, draw_inputs, make, run

from fairseq_plugins.modules import lstm
from fairseq_plugins.modules.lstm import LSTMLayer, WeightDropLSTM, WeightDropOptions


@pytest.fixture
def inputs():
    return draw_inputs()


# a step of a search


@pytest.mark.parametrize("layer_class", [LSTMLayer, WeightDropLSTM])
def test_a_step_of_a_search_is_the_recurrence(layer_class, inputs, monkeypatch):
    layer = layer_class(C, D, options=WeightDropOptions()).eval()
    x, state = inputs[0][:, :1].float(), {name: one.float() for name, one in inputs[1].items()}
    with torch.no_grad():
        kernel = run(layer, *inputs_of_two(x, state))
        monkeypatch.setattr(torch, "lstm", None)  # its kernel takes no part
        found = run(layer, x, state)
    layer.double()
    expected = by_hand(layer, x.double(), {name: one.double() for name, one in state.items()}, 1.0)
    torch.testing.assert_close(found[0].double(), expected[0], rtol=0, atol=1e-6)
    torch.testing.assert_close({k: v.double() for k, v in found[1].items()}, expected[1], rtol=0, atol=1e-6)
    torch.testing.assert_close(found[0], kernel[0][:, :1], rtol=0, atol=1e-6)


def inputs_of_two(x, state):
    """The same step with another one after it, which torch's kernel takes."""
    return torch.cat([x, torch.zeros_like(x)], dim=1), state


@pytest.mark.parametrize("rows_begin_late", [False, True])
def test_a_step_with_gradients_or_padding_is_torchs(rows_begin_late, inputs, monkeypatch):
    library, calls = torch.lstm, []
    monkeypatch.setattr(torch, "lstm", lambda *args: calls.append(args) or library(*args))
    layer, x = make(0.0).float(), inputs[0][:, :1].float()
    state = {name: one.float() for name, one in inputs[1].items()}
    with torch.set_grad_enabled(not rows_begin_late):
        run(layer, x, state, **({"leading_padding": torch.ones(B, 1, dtype=torch.bool)} if rows_begin_late else {}))
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


@pytest.mark.parametrize("layer_class", [LSTMLayer, WeightDropLSTM])
def test_gradients_in_evaluation_are_those_of_training_without_dropout(layer_class, inputs):
    layer = layer_class(C, D, options=WeightDropOptions()).double()
    wanted = [inputs[0].requires_grad_(), *layer.parameters()]
    gradients = [torch.autograd.grad(loss(*run(layer.train(mode), *inputs)), wanted) for mode in (True, False)]
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
    assert all(gradient.abs().sum() > 0 for gradient in gradients[1])


def one_kernel(input_gates, hidden_gates, c):
    """What torch's kernel computes, which no CPU has: gates in its order, products added."""
    i, f, g, o = (input_gates + hidden_gates).chunk(4, dim=1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c, None


def test_a_step_on_a_gpu_is_that_on_a_cpu(monkeypatch):
    monkeypatch.setattr(torch.ops.aten, "_thnn_fused_lstm_cell", one_kernel)
    gates, c = torch.randn(B, 4, D, dtype=torch.float64), torch.randn(D, dtype=torch.float64).expand(B, D)
    assert all(map(torch.equal, lstm._update_on_cuda(gates.flatten(1), c), lstm.update(gates, c)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_torchs_kernel_is_that_formula():
    gates = torch.randn(B, 4, D, dtype=torch.float64, device="cuda", requires_grad=True)
    c = torch.randn(B, D, dtype=torch.float64, device="cuda", requires_grad=True)
    found, expected = lstm.update(gates, c), one_kernel(gates.flatten(1), 0, c)[:2]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    results = [torch.autograd.grad((h.sin() + new).sum(), [gates, c]) for h, new in (found, expected)]
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


def test_torch_has_the_kernel_that_a_step_takes_on_a_gpu():
    schema = torch.ops.aten._thnn_fused_lstm_cell.default._schema
    assert [(argument.name, str(argument.type)) for argument in schema.arguments] == [
        *((name, "Tensor") for name in ("input_gates", "hidden_gates", "cx")),
        *((name, "Optional[Tensor]") for name in ("input_bias", "hidden_bias")),
    ]
    assert len(schema.returns) == 3
