"""Variational LSTM against the equations of Gal & Ghahramani 2016, with its mask taken from the seed."""

import plain_formulas
import pytest
import torch
from cell_cases import assert_as_by_hand, drawn_mask, run, run_steps

from fairseq_plugins.modules.lstm import LSTMLayer
from fairseq_plugins.modules.recurrent_cell import CellContext
from fairseq_plugins.modules.recurrent_stack import RecurrentStack
from fairseq_plugins.modules.variational_lstm import VariationalLSTM, VariationalOptions

B, T, C, D = 4, 6, 5, 7
RATE = 0.4
GATES = ("input", "forget", "cell", "output")

every_biases = pytest.mark.parametrize("biases", ["one", "two"])


@pytest.fixture
def x():
    return torch.randn(B, T, C, dtype=torch.float64)


@pytest.fixture
def state():
    return dict(zip("hc", torch.randn(2, B, D, dtype=torch.float64)))


def make(rate=RATE, biases="two", width=D):
    layer = VariationalLSTM(C, width, options=VariationalOptions(dropout_recurrent=rate, rnn_biases=biases)).double()
    with torch.no_grad():
        for param in layer.parameters():
            param.uniform_(-0.7, 0.7)
    return layer


def by_hand(layer, x, state, mask):
    output, h, c = plain_formulas.lstm(x, state["h"], state["c"], *layer.parameters(), mask=mask)
    return output, {"h": h, "c": c}


@every_biases
def test_values_are_those_of_the_equations(biases, x, state):
    layer, mask = make(biases=biases), drawn_mask(5, (B, D), rate=RATE)
    torch.manual_seed(5)
    assert set(mask.unique().tolist()) == {0.0, 1 / (1 - RATE)}
    torch.testing.assert_close(run(layer, x, state), by_hand(layer, x, state, mask), rtol=1e-12, atol=1e-12)


@every_biases
@pytest.mark.parametrize("num_known", [None, 0, 2, C])
def test_gradients_are_those_of_the_equations(biases, num_known, x, state):
    layer, mask = make(biases=biases), drawn_mask(5, (B, D), rate=RATE)
    assert_as_by_hand(layer, x, state, lambda: by_hand(layer, x, state, mask), num_known=num_known)


def test_the_carried_state_is_not_masked(x, state):
    output, new_state = run(make(0.9), x, state)
    assert torch.equal(new_state["h"], output[:, -1]) and (output != 0).all()


# the mask, read from what reaches the recurrent matrix


def masks_of(layer, x, state, monkeypatch):
    """Factors of the hidden state of every call of the recurrent matrix, (T, B, D)."""
    read, gates = [], LSTMLayer.gates
    monkeypatch.setattr(LSTMLayer, "gates", lambda self, p, t, late, h: read.append(h) or gates(self, p, t, late, h))
    output, _ = run_steps(layer, x, state, C)
    before = torch.cat([state["h"].unsqueeze(1), output[:, :-1]], dim=1).transpose(0, 1)
    return torch.stack(read) / before


def test_one_mask_serves_all_steps_of_a_window_and_each_row_has_its_own(x, state, monkeypatch):
    masks = masks_of(make(), x, state, monkeypatch)
    values = torch.tensor([0, 1 / (1 - RATE)], dtype=torch.float64)
    assert masks.shape == (T, B, D)
    assert ((masks.unsqueeze(-1) - values).abs().min(-1).values < 1e-9).all()
    assert torch.allclose(masks, masks[:1].expand_as(masks))
    assert len({tuple(row.ne(0).tolist()) for row in masks[0]}) == B


def test_every_window_draws_a_fresh_mask(x, state, monkeypatch):
    layer = make()
    windows = [masks_of(layer, x, state, monkeypatch)[0].ne(0) for _ in range(5)]
    assert len({tuple(mask.flatten().tolist()) for mask in windows}) == 5


def test_all_gates_share_the_mask(x, state):
    """A feature that the mask drops has no gradient in the columns of any gate; one that it keeps has in all."""
    layer, x, state = make(), x[:1], {name: part[:1] for name, part in state.items()}
    run(layer, x, state)[0].sum().backward()
    columns = layer.weight_hh_l0.grad.abs().unflatten(0, (len(GATES), D)).sum(dim=1).ne(0)
    assert torch.equal(columns, columns[:1].expand_as(columns)) and 0 < columns[0].sum() < D


def test_every_layer_of_a_stack_has_a_mask_of_its_own(monkeypatch):
    drawn, hidden_mask = [], VariationalLSTM.hidden_mask

    def spy(self, x):
        drawn.append(hidden_mask(self, x))
        return drawn[-1]

    monkeypatch.setattr(VariationalLSTM, "hidden_mask", spy)
    RecurrentStack(C, [16, 16], cell="variational", cell_options=VariationalOptions(dropout_recurrent=0.5))(
        torch.randn(B, T, C)
    )
    first, second = drawn
    assert first.shape == second.shape == (B, 16) and not torch.equal(first, second)


@pytest.mark.parametrize("rate", [0.2, 0.3])
def test_the_rate_is_the_share_of_dropped_features(rate):
    layer = VariationalLSTM(1, 100, options=VariationalOptions(dropout_recurrent=rate))
    mask = layer.prepare(torch.randn(1000, 1, 1), CellContext(stack_input=torch.randn(1000, 1, 1))).mask
    n = mask.numel()
    assert mask.eq(0).double().mean().item() == pytest.approx(rate, abs=4 * (rate * (1 - rate) / n) ** 0.5)


# without a mask


@every_biases
@pytest.mark.parametrize("rate, training", [(RATE, False), (0.0, True), (0.0, False)])
def test_evaluation_and_rate_zero_have_no_mask(biases, rate, training, x, state):
    layer = make(rate, biases).train(training)
    torch.testing.assert_close(run(layer, x, state), by_hand(layer, x, state, 1.0), rtol=1e-12, atol=1e-12)
    assert torch.equal(run(layer, x, state)[0], run(layer, x, state)[0])
    torch.testing.assert_close(run_steps(layer, x, state, 2), by_hand(layer, x, state, 1.0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rate, training, num_calls", [(RATE, True, 0), (RATE, False, 1), (0.0, True, 1)])
def test_without_a_mask_the_kernel_runs(rate, training, num_calls, x, state, monkeypatch):
    library, calls = torch.lstm, []
    monkeypatch.setattr(torch, "lstm", lambda *arguments: calls.append(1) or library(*arguments))
    run(make(rate).train(training), x, state)
    assert len(calls) == num_calls


@every_biases
def test_leading_padding_goes_with_the_mask(biases, x):
    layer, lengths, mask = make(biases=biases), [T, 2, 0, 5], drawn_mask(5, (B, D), rate=RATE)
    padding = torch.arange(T) < T - torch.tensor(lengths).unsqueeze(1)
    torch.manual_seed(5)
    output, state = run(layer, x, layer.initial_state(x), leading_padding=padding)
    assert not output[padding].any()
    for row, length in enumerate(lengths):
        zeros = dict(zip("hc", torch.zeros(2, 1, D, dtype=torch.float64)))
        rows = slice(row, row + 1)
        if length == 0:
            assert not state["h"][row].any() and not state["c"][row].any()
            continue
        expected = by_hand(layer, x[rows, T - length :], zeros, mask[rows])
        found = output[rows, T - length :], {name: part[rows] for name, part in state.items()}
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_one_bias_vector_less():
    counts = {b: sum(param.numel() for param in make(biases=b).parameters()) for b in ("one", "two")}
    assert counts == {"one": 4 * D * (C + D + 1), "two": 4 * D * (C + D + 2)}


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_what_is_no_rate_is_refused(rate):
    with pytest.raises(ValueError, match=f"--dropout-recurrent {rate}"):
        make(rate)
