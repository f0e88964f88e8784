"""Weight-drop LSTM against the recurrence written out and torch.nn.LSTM."""

import warnings

import pytest
import torch
from cell_cases import loss, run_steps
from lstm_cases import (
    LENGTHS,
    NAMES,
    RATE,
    B,
    C,
    D,
    T,
    by_hand,
    draw_inputs,
    leading_padding,
    make,
    run,
    zero_state,
)
from torch import nn

from fairseq_plugins.modules.lstm import WeightDropLSTM, WeightDropOptions


@pytest.fixture
def inputs():
    return draw_inputs()


def drawn_mask(seed):
    """The mask that a call draws after ``torch.manual_seed(seed)``."""
    torch.manual_seed(seed)
    return torch.rand(4 * D, D).lt(1 - RATE).double() / (1 - RATE)


@pytest.mark.parametrize("with_state", [False, True])
def test_evaluation_is_the_recurrence(inputs, with_state):
    layer, (x, state) = make(RATE).eval(), inputs
    found = run(layer, x, state if with_state else None)
    expected = by_hand(layer, x, state if with_state else zero_state(B), 1.0)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_training_is_the_recurrence_with_a_masked_recurrent_matrix(inputs):
    layer, (x, state) = make(RATE), inputs
    mask = drawn_mask(seed=5)
    torch.manual_seed(5)
    found = run(layer, x, state)
    assert set(mask.unique().tolist()) == {0.0, 1 / (1 - RATE)}
    torch.testing.assert_close(found, by_hand(layer, x, state, mask), rtol=1e-12, atol=1e-12)


def test_gradients_reach_the_raw_weights_through_the_mask(inputs):
    layer, (x, state) = make(RATE), inputs
    x.requires_grad_()
    wanted = [x, *layer.parameters()]
    mask = drawn_mask(seed=5)
    torch.manual_seed(5)
    ours = torch.autograd.grad(loss(*run(layer, x, state)), wanted)
    expected = torch.autograd.grad(loss(*by_hand(layer, x, state, mask)), wanted)
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)
    assert torch.equal(ours[2] == 0, mask == 0)


def test_every_call_draws_a_fresh_mask(inputs):
    layer, (x, _) = make(RATE), inputs
    assert not torch.equal(run(layer, x)[0], run(layer, x)[0])


def test_the_first_step_from_zero_knows_no_mask(inputs):
    layer, (x, _) = make(RATE), inputs
    assert torch.equal(run(layer, x)[0][:, 0], run(layer.eval(), x)[0][:, 0])


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


def test_evaluation_is_deterministic(inputs):
    layer = make(RATE).eval()
    assert torch.equal(run(layer, inputs[0])[0], run(layer, inputs[0])[0])


def test_state_dict_is_the_library_lstms_and_goes_round(inputs):
    layer, other = make(RATE), make(RATE)
    run(layer, inputs[0])
    state_dict = layer.state_dict()
    assert list(state_dict) == list(nn.LSTM(C, D).state_dict()) == NAMES
    other.load_state_dict(state_dict)
    assert torch.equal(run(other.eval(), inputs[0])[0], run(layer.eval(), inputs[0])[0])


def test_a_call_leaves_the_parameters_as_they_were(inputs):
    layer = make(RATE)
    before = {name: param.detach().clone() for name, param in layer.named_parameters()}
    run(layer, inputs[0])[0].sum().backward()
    assert all(torch.equal(param, before[name]) for name, param in layer.named_parameters())


def test_no_warnings(inputs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = make(RATE)
        _, state = run(layer, inputs[0])
        run(layer, inputs[0], state)[0].sum().backward()
        run(layer.eval(), inputs[0])


def test_weights_start_uniform_within_one_over_the_root_of_the_width():
    layer = WeightDropLSTM(30, 64, options=WeightDropOptions())
    for param in layer.parameters():
        assert 0.9 / 8 < param.abs().max().item() <= 1 / 8


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_what_is_no_rate_is_refused(rate):
    with pytest.raises(ValueError, match="--dropout-weight"):
        make(rate)


# padding in front of a row


def make_wide(rate=0.0, dtype=torch.float64):
    """A layer whose gates, biases included, reach from closed to open."""
    layer = make(rate).to(dtype)
    with torch.no_grad():
        for param in layer.parameters():
            param.uniform_(-2, 2)
    return layer


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_state_is_zero_at_leading_padding_whatever_stands_there(inputs, dtype):
    layer, x, padding = make_wide(dtype=dtype), inputs[0].to(dtype), leading_padding()
    x[padding] *= 100
    output, state = run(layer, x, leading_padding=padding)
    assert torch.equal(output[padding], torch.zeros_like(output[padding]))
    assert (output[~padding] != 0).all()
    assert not state["h"][2].any() and not state["c"][2].any()


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_a_row_after_leading_padding_is_the_row_alone(inputs, dtype, tolerance):
    layer, x, padding = make_wide(dtype=dtype), inputs[0].to(dtype), leading_padding()
    output, state = run(layer, x, leading_padding=padding)
    for row, length in enumerate(LENGTHS[:2]):
        expected = run(layer, x[row : row + 1, T - length :])
        found = output[row : row + 1, T - length :], {name: part[row : row + 1] for name, part in state.items()}
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_leading_padding_goes_with_weight_drop_and_the_gradients_are_those_of_the_rows_alone(inputs):
    layer, x, mask = make_wide(RATE), inputs[0].requires_grad_(), drawn_mask(seed=5)
    wanted = [x, *layer.parameters()]
    torch.manual_seed(5)
    output, state = run(layer, x, leading_padding=leading_padding())
    ours = torch.autograd.grad(loss(output, state), wanted)
    total = 0
    for row, length in enumerate(LENGTHS[:2]):
        alone, state = by_hand(layer, x[row : row + 1, T - length :], zero_state(1), mask)
        torch.testing.assert_close(output[row : row + 1, T - length :], alone, rtol=1e-12, atol=1e-12)
        total = total + loss(alone, state)
    torch.testing.assert_close(ours, torch.autograd.grad(total, wanted), rtol=1e-10, atol=1e-12)
    assert not ours[0][leading_padding()].any()


def test_rows_without_padding_are_as_without_the_argument(inputs):
    layer = make_wide()
    found = run(layer, inputs[0], leading_padding=torch.zeros(B, T, dtype=torch.bool))
    torch.testing.assert_close(found, run(layer, inputs[0]), rtol=1e-12, atol=1e-12)


# step by step


@pytest.mark.parametrize("num_known", [0, 2, C])
def test_all_steps_share_one_mask_and_gradients_pass_through_it(inputs, num_known):
    layer, (x, state) = make(RATE), inputs
    wanted = [x.requires_grad_(), *layer.parameters()]
    mask = drawn_mask(seed=5)
    torch.manual_seed(5)
    found = run_steps(layer, x, state, num_known)
    expected = by_hand(layer, x, state, mask)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(loss(*result), wanted) for result in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


def test_every_sequence_of_steps_draws_a_fresh_mask_and_evaluation_none(inputs):
    layer, (x, state) = make(RATE), inputs
    assert not torch.equal(run_steps(layer, x, state, 2)[0], run_steps(layer, x, state, 2)[0])
    layer.eval()
    torch.testing.assert_close(run_steps(layer, x, state, 2), run(layer, x, state), rtol=1e-12, atol=1e-12)


def test_the_initial_state_is_zero_for_each_row(inputs):
    layer, (x, _) = make(0.0), inputs
    state = layer.initial_state(x)
    assert list(state) == ["h", "c"]
    assert all(part.shape == (B, D) and part.dtype == torch.float64 and not part.any() for part in state.values())
