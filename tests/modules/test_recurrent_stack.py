"""A stack of layers: its outputs, where its dropouts act, and its state."""

import plain_formulas
import pytest
import torch

from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS
from fairseq_plugins.modules.recurrent_stack import RecurrentStack

B, T, C = 3, 8, 5
WIDTHS = [9, 8, 10]


@pytest.fixture
def x():
    return torch.randn(B, T, C, dtype=torch.float64)


def make(**rates):
    return RecurrentStack(C, WIDTHS, **rates).double()


def is_locked_mask(mask, rate):
    """Constant over time, values 0 and 1 / (1 - rate)."""
    values = torch.tensor([0.0, 1 / (1 - rate)], dtype=mask.dtype)
    distance = (mask.unsqueeze(-1) - values).abs().min(dim=-1).values
    return bool((distance < 1e-9).all()) and torch.allclose(mask, mask[:, :1].expand_as(mask))


def test_every_layers_output_is_returned(x):
    stack = make()
    outputs = stack(x)
    expected, layer_input = [], x
    for layer, width in zip(stack.layers, WIDTHS):
        zeros = torch.zeros(B, width, dtype=torch.float64)
        layer_input, h, c = plain_formulas.lstm(layer_input, zeros, zeros, *layer.parameters())
        expected.append((layer_input, (h, c)))
    torch.testing.assert_close(outputs.layers, [output for output, _ in expected], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(outputs.state, [state for _, state in expected], rtol=1e-12, atol=1e-12)
    assert torch.equal(outputs.top, outputs.layers[-1])


@pytest.mark.parametrize("cell", sorted(RECURRENT_CELLS))
def test_two_half_windows_with_carried_state_are_one_whole_window(x, cell):
    stack = RecurrentStack(C, WIDTHS, cell=cell).double()
    whole = stack(x)
    first = stack(x[:, :3])
    second = stack(x[:, 3:], first.state)
    for n in range(len(WIDTHS)):
        halves = torch.cat([first.layers[n], second.layers[n]], dim=1)
        torch.testing.assert_close(halves, whole.layers[n], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(second.state, whole.state, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("cell", sorted(RECURRENT_CELLS))
def test_state_parts_are_one_row_per_batch_row(x, cell):
    state = RecurrentStack(C, WIDTHS, cell=cell).double()(x).state
    assert [part.shape for layer in state for part in layer if part.size(0) != B or part.dim() != 2] == []
    assert len(state) == len(WIDTHS)


def test_output_dropout_acts_on_the_last_layer_and_spares_top(x):
    outputs = make(output_dropout=0.4)(x)
    mask = outputs.layers[-1] / outputs.top
    assert is_locked_mask(mask, 0.4) and (mask == 0).any()
    assert all((layer != 0).all() for layer in outputs.layers[:-1])


def test_hidden_dropout_acts_between_layers_and_the_next_layer_reads_it(x):
    stack = make(hidden_dropout=0.5)
    outputs = stack(x)
    assert torch.equal(outputs.layers[-1], outputs.top) and (outputs.top != 0).all()
    for n in (0, 1):
        plain = stack.layers[n](x if n == 0 else outputs.layers[n - 1])[0]
        mask = outputs.layers[n] / plain
        assert is_locked_mask(mask, 0.5) and (mask == 0).any()
    torch.testing.assert_close(stack.layers[2](outputs.layers[1])[0], outputs.top, rtol=1e-12, atol=1e-12)


def test_the_carried_state_is_not_dropped(x):
    outputs = make(hidden_dropout=0.5, output_dropout=0.5)(x)
    assert torch.equal(outputs.state[-1][0], outputs.top[:, -1])
    assert all((h != 0).all() for h, _ in outputs.state)


def test_weight_dropout_reaches_every_layer():
    assert [layer.weight_dropout for layer in make(weight_dropout=0.3).layers] == [0.3] * len(WIDTHS)


def test_standard_dropout_has_a_mask_for_every_element(x):
    outputs = make(hidden_dropout=0.5, output_dropout=0.5, shared_mask_dims=())(x)
    mask = outputs.layers[-1] / outputs.top
    assert set(mask.unique().tolist()) == {0.0, 2.0}
    assert all(len({tuple(step.tolist()) for step in row}) > T // 2 for row in outputs.layers[0].ne(0))
    assert len({tuple(row.flatten().tolist()) for row in mask}) == B


@pytest.mark.parametrize("cell", sorted(RECURRENT_CELLS))
def test_leading_padding_keeps_the_state_of_all_layers_zero(x, cell):
    stack = RecurrentStack(C, WIDTHS, cell=cell).double()
    padding = torch.arange(T) < torch.tensor([[0], [5], [T - 1]])
    outputs = stack(x, leading_padding=padding)
    assert all(not output[padding].any() and (output[~padding] != 0).all() for output in outputs.layers)
    for row in range(B):
        alone = stack(x[row : row + 1, padding[row].sum() :])
        rows = [layer[row : row + 1][:, padding[row].sum() :] for layer in outputs.layers]
        torch.testing.assert_close(rows, alone.layers, rtol=1e-12, atol=1e-12)
        state = [tuple(part[row : row + 1] for part in layer) for layer in outputs.state]
        torch.testing.assert_close(state, alone.state, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("cell", sorted(RECURRENT_CELLS))
def test_states_are_contiguous_as_a_gpus_kernel_demands(x, cell, monkeypatch):
    stack, library, found = RecurrentStack(C, WIDTHS, cell=cell).double(), torch.lstm, []

    def spy(x, state, *arguments):
        found.extend(part.is_contiguous() for part in state)
        return library(x, state, *arguments)

    monkeypatch.setattr(torch, "lstm", spy)
    stack(x, stack(x).state)
    assert len(found) >= 2 * 2 * len(WIDTHS) and all(found)


def test_evaluation_has_no_dropout(x):
    stack = make(weight_dropout=0.5, hidden_dropout=0.5, output_dropout=0.5).eval()
    plain = make().eval()
    plain.load_state_dict(stack.state_dict())
    assert torch.equal(stack(x).layers[-1], plain(x).layers[-1])


def test_an_unknown_cell_is_refused():
    with pytest.raises(ValueError, match="--rnn-cell gru7.*lstm"):
        RecurrentStack(C, WIDTHS, cell="gru7")


@pytest.mark.parametrize("widths", [[], [0], [4, 0], [4, -1]])
def test_widths_below_one_are_refused(widths):
    with pytest.raises(ValueError, match="--hidden-sizes"):
        RecurrentStack(C, widths)
