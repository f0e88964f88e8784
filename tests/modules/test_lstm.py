"""Weight-drop LSTM against the recurrence written out and torch.nn.LSTM."""

import warnings

import plain_formulas
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fairseq_plugins.modules.lstm import WeightDropLSTM

B, T, C, D = 3, 6, 5, 7
RATE = 0.5
NAMES = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]


@pytest.fixture
def inputs():
    return torch.randn(B, T, C, dtype=torch.float64), tuple(torch.randn(2, B, D, dtype=torch.float64))


def make(rate):
    return WeightDropLSTM(C, D, weight_dropout=rate).double()


def by_hand(layer, x, state, mask):
    w_x, w_h, b_x, b_h = (getattr(layer, name) for name in NAMES)
    output, h, c = plain_formulas.lstm(x, *state, w_x, w_h * mask, b_x, b_h)
    return output, (h, c)


def drawn_mask(seed):
    """The mask that a call draws after ``torch.manual_seed(seed)``."""
    torch.manual_seed(seed)
    return F.dropout(torch.ones(4 * D, D, dtype=torch.float64), RATE, True)


@pytest.mark.parametrize("with_state", [False, True])
def test_evaluation_is_the_recurrence(inputs, with_state):
    layer, (x, state) = make(RATE).eval(), inputs
    zeros = (torch.zeros(B, D, dtype=torch.float64),) * 2
    output, new_state = layer(x, state if with_state else None)
    expected, expected_state = by_hand(layer, x, state if with_state else zeros, 1.0)
    torch.testing.assert_close((output, new_state), (expected, expected_state), rtol=1e-12, atol=1e-12)


def test_training_is_the_recurrence_with_a_masked_recurrent_matrix(inputs):
    layer, (x, state) = make(RATE), inputs
    mask = drawn_mask(seed=5)
    torch.manual_seed(5)
    output, new_state = layer(x, state)
    assert set(mask.unique().tolist()) == {0.0, 1 / (1 - RATE)}
    torch.testing.assert_close((output, new_state), by_hand(layer, x, state, mask), rtol=1e-12, atol=1e-12)


def test_gradients_reach_the_raw_weights_through_the_mask(inputs):
    layer, (x, state) = make(RATE), inputs
    x.requires_grad_()
    wanted = [x, *layer.parameters()]
    mask = drawn_mask(seed=5)
    torch.manual_seed(5)
    output, (h, c) = layer(x, state)
    ours = torch.autograd.grad(output.pow(2).sum() + h.sum() + (c * h).sum(), wanted)
    output, (h, c) = by_hand(layer, x, state, mask)
    expected = torch.autograd.grad(output.pow(2).sum() + h.sum() + (c * h).sum(), wanted)
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)
    assert torch.equal(ours[2] == 0, mask == 0)


def test_every_call_draws_a_fresh_mask(inputs):
    layer, (x, _) = make(RATE), inputs
    assert not torch.equal(layer(x)[0], layer(x)[0])


def test_the_first_step_from_zero_knows_no_mask(inputs):
    layer, (x, _) = make(RATE), inputs
    assert torch.equal(layer(x)[0][:, 0], layer.eval()(x)[0][:, 0])


@pytest.mark.parametrize("rate, training", [(RATE, False), (0.0, True), (0.0, False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_a_mask_it_is_the_library_lstm(inputs, rate, training, dtype):
    x = inputs[0].to(dtype)
    layer = make(rate).to(dtype).train(training)
    library = nn.LSTM(C, D, batch_first=True).to(dtype)
    library.load_state_dict(layer.state_dict())
    output, (h, c) = layer(x)
    expected, (expected_h, expected_c) = library(x)
    assert torch.equal(output, expected)
    assert torch.equal(h, expected_h[0]) and torch.equal(c, expected_c[0])


def test_evaluation_is_deterministic(inputs):
    layer = make(RATE).eval()
    assert torch.equal(layer(inputs[0])[0], layer(inputs[0])[0])


def test_state_dict_is_the_library_lstms_and_goes_round(inputs):
    layer, other = make(RATE), make(RATE)
    layer(inputs[0])
    state_dict = layer.state_dict()
    assert list(state_dict) == list(nn.LSTM(C, D).state_dict()) == NAMES
    other.load_state_dict(state_dict)
    assert torch.equal(other.eval()(inputs[0])[0], layer.eval()(inputs[0])[0])


def test_a_call_leaves_the_parameters_as_they_were(inputs):
    layer = make(RATE)
    before = {name: param.detach().clone() for name, param in layer.named_parameters()}
    layer(inputs[0])[0].sum().backward()
    assert all(torch.equal(param, before[name]) for name, param in layer.named_parameters())


def test_no_warnings(inputs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = WeightDropLSTM(C, D, weight_dropout=RATE).double()
        output, state = layer(inputs[0])
        layer(inputs[0], state)[0].sum().backward()
        layer.eval()(inputs[0])


def test_weights_start_uniform_within_one_over_the_root_of_the_width():
    layer = WeightDropLSTM(30, 64)
    for param in layer.parameters():
        assert 0.9 / 8 < param.abs().max().item() <= 1 / 8


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_what_is_no_rate_is_refused(rate):
    with pytest.raises(ValueError, match="--dropout-weight"):
        WeightDropLSTM(C, D, weight_dropout=rate)


# padding in front of a row

LENGTHS = [T, 2, 0]


def leading_padding(lengths=LENGTHS):
    return torch.arange(T) < T - torch.tensor(lengths).unsqueeze(1)


def make_wide(rate=0.0, dtype=torch.float64):
    """A layer whose gates, biases included, reach from closed to open."""
    layer = WeightDropLSTM(C, D, weight_dropout=rate).to(dtype)
    with torch.no_grad():
        for param in layer.parameters():
            param.uniform_(-2, 2)
    return layer


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_state_is_zero_at_leading_padding_whatever_stands_there(inputs, dtype):
    layer, x, padding = make_wide(dtype=dtype), inputs[0].to(dtype), leading_padding()
    x[padding] *= 100
    output, (h, c) = layer(x, leading_padding=padding)
    assert torch.equal(output[padding], torch.zeros_like(output[padding]))
    assert (output[~padding] != 0).all()
    assert not h[2].any() and not c[2].any()


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_a_row_after_leading_padding_is_the_row_alone(inputs, dtype, tolerance):
    layer, x, padding = make_wide(dtype=dtype), inputs[0].to(dtype), leading_padding()
    output, (h, c) = layer(x, leading_padding=padding)
    for row, length in enumerate(LENGTHS[:2]):
        expected, expected_state = layer(x[row : row + 1, T - length :])
        found = output[row : row + 1, T - length :], (h[row : row + 1], c[row : row + 1])
        torch.testing.assert_close(found, (expected, expected_state), rtol=tolerance, atol=tolerance)


def test_leading_padding_goes_with_weight_drop_and_the_gradients_are_those_of_the_rows_alone(inputs):
    layer, x, mask = make_wide(RATE), inputs[0].requires_grad_(), drawn_mask(seed=5)
    wanted = [x, *layer.parameters()]
    torch.manual_seed(5)
    output, (h, c) = layer(x, leading_padding=leading_padding())
    ours = torch.autograd.grad(output.pow(2).sum() + (h * c).sum(), wanted)
    total = 0
    for row, length in enumerate(LENGTHS[:2]):
        zeros = (torch.zeros(1, D, dtype=torch.float64),) * 2
        alone, (h, c) = by_hand(layer, x[row : row + 1, T - length :], zeros, mask)
        torch.testing.assert_close(output[row : row + 1, T - length :], alone, rtol=1e-12, atol=1e-12)
        total = total + alone.pow(2).sum() + (h * c).sum()
    torch.testing.assert_close(ours, torch.autograd.grad(total, wanted), rtol=1e-10, atol=1e-12)
    assert not ours[0][leading_padding()].any()


def test_rows_without_padding_are_as_without_the_argument(inputs):
    layer = make_wide()
    found = layer(inputs[0], leading_padding=torch.zeros(B, T, dtype=torch.bool))
    torch.testing.assert_close(found, layer(inputs[0]), rtol=1e-12, atol=1e-12)


# step by step


def run_steps(layer, x, state, num_known):
    run = layer.steps(x[..., :num_known] if num_known else None)
    outputs = []
    for t in range(T):
        state = run(t, x[:, t, num_known:], state)
        outputs.append(state[0])
    return torch.stack(outputs, dim=1), state


@pytest.mark.parametrize("num_known", [0, 2, C])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_steps_are_the_whole_call(inputs, num_known, dtype, tolerance):
    layer, x, state = make(0.0).to(dtype), inputs[0].to(dtype), tuple(part.to(dtype) for part in inputs[1])
    torch.testing.assert_close(run_steps(layer, x, state, num_known), layer(x, state), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("num_known", [0, 2])
def test_all_steps_share_one_mask_and_gradients_pass_through_it(inputs, num_known):
    layer, (x, state) = make(RATE), inputs
    wanted = [x.requires_grad_(), *layer.parameters()]
    mask = drawn_mask(seed=5)
    torch.manual_seed(5)
    found = run_steps(layer, x, state, num_known)
    expected = by_hand(layer, x, state, mask)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradients = [
        torch.autograd.grad(output.pow(2).sum() + (h * c).sum(), wanted) for output, (h, c) in (found, expected)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


def test_every_sequence_of_steps_draws_a_fresh_mask_and_evaluation_none(inputs):
    layer, (x, state) = make(RATE), inputs
    assert not torch.equal(run_steps(layer, x, state, 2)[0], run_steps(layer, x, state, 2)[0])
    layer.eval()
    torch.testing.assert_close(run_steps(layer, x, state, 2), layer(x, state), rtol=1e-12, atol=1e-12)


def test_the_initial_state_is_zero_for_each_row(inputs):
    layer, (x, _) = make(0.0), inputs
    h, c = layer.initial_state(x)
    assert h.shape == c.shape == (B, D) and h.dtype == torch.float64 and not h.any() and not c.any()
    assert torch.equal(layer(x, (h, c))[0], layer(x)[0])
