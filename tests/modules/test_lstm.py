"""Weight-drop LSTM against the recurrence written out and torch.nn.LSTM."""

import copy
import warnings

import plain_formulas
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fairseq_plugins.modules.lstm import LSTMLayer, WeightDropLSTM, WeightDropOptions
from fairseq_plugins.modules.recurrent_cell import CellContext, Late

B, T, C, D = 3, 6, 5, 7
RATE = 0.5
NAMES = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]


@pytest.fixture
def inputs():
    h, c = torch.randn(2, B, D, dtype=torch.float64)
    return torch.randn(B, T, C, dtype=torch.float64), {"h": h, "c": c}


def make(rate, biases="two"):
    return WeightDropLSTM(C, D, options=WeightDropOptions(dropout_weight=rate, rnn_biases=biases)).double()


def run(layer, x, state=None, *, leading_padding=None):
    """Output and state, from zeros where there is no state before."""
    context = CellContext(stack_input=x, leading_padding=leading_padding)
    return layer(x, layer.initial_state(x) if state is None else state, context)


def by_hand(layer, x, state, mask):
    w_x, w_h, b_x, b_h = (getattr(layer, name) for name in NAMES)
    output, h, c = plain_formulas.lstm(x, state["h"], state["c"], w_x, w_h * mask, b_x, b_h)
    return output, {"h": h, "c": c}


def zero_state(num_rows):
    zeros = torch.zeros(num_rows, D, dtype=torch.float64)
    return {"h": zeros, "c": zeros}


def loss(output, state):
    return output.pow(2).sum() + state["h"].sum() + (state["c"] * state["h"]).sum()


def drawn_mask(seed):
    """The mask that a call draws after ``torch.manual_seed(seed)``."""
    torch.manual_seed(seed)
    return F.dropout(torch.ones(4 * D, D, dtype=torch.float64), RATE, True)


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

LENGTHS = [T, 2, 0]


def leading_padding(lengths=LENGTHS):
    return torch.arange(T) < T - torch.tensor(lengths).unsqueeze(1)


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


def run_steps(layer, x, state, num_known):
    prepared, outputs = layer.prepare(x[..., :num_known], CellContext(stack_input=x[..., :0])), []
    for t in range(T):
        output, state = layer.step(prepared, t, Late(x[:, t, num_known:], x[:, t]), state)
        outputs.append(output)
    return torch.stack(outputs, dim=1), state


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
        found = run(layer, x, state, leading_padding=leading_padding() if padded else None)
        gradients = torch.autograd.grad(loss(*found), [x, *(getattr(layer, name) for name in NAMES[:3])])
        results.append((found, gradients))
    torch.testing.assert_close(*results, rtol=0, atol=0)
    steps = [run_steps(layer.eval(), x, inputs[1], 2) for layer in make_pair()]
    torch.testing.assert_close(*steps, rtol=0, atol=0)


def test_one_bias_vector_against_the_recurrence(inputs):
    layer, (x, state) = make(0.0, "one"), inputs
    expected = by_hand(layer, x, state, 1.0)
    torch.testing.assert_close(run(layer, x, state), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(run_steps(layer, x, state, 2), expected, rtol=1e-12, atol=1e-12)
    assert not layer.bias_hh_l0.requires_grad and not layer.bias_hh_l0.any()


def test_a_state_dict_with_one_bias_vector_goes_round(inputs):
    layer, other = make(0.0, "one"), make(0.0, "one")
    assert not torch.equal(run(layer, inputs[0])[0], run(other, inputs[0])[0])
    other.load_state_dict(layer.state_dict())
    assert torch.equal(run(layer, inputs[0])[0], run(other, inputs[0])[0])
    with pytest.raises(RuntimeError, match="bias_hh_l0"):
        other.load_state_dict(make(0.0).state_dict())


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.to(torch.float32).to("cpu"),
        lambda layer: layer.float().double(),
        lambda layer: copy.deepcopy(layer),
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


def test_a_copy_has_weights_of_its_own(inputs):
    layer = make(0.0, "one")
    expected = run(layer, inputs[0])[0]
    with torch.no_grad():
        for param in copy.deepcopy(layer).parameters():
            param.zero_()
    assert torch.equal(run(layer, inputs[0])[0], expected)


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
