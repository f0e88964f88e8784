"""Recurrent highway networks against the equations of Zilly et al. 2017, with their mask taken from the seed."""

import plain_formulas
import pytest
import torch
from cell_cases import assert_as_by_hand, drawn_mask, run, run_steps

from fairseq_plugins.modules.cell import CellContext
from fairseq_plugins.modules.recurrent_highway import (
    TRANSFORM_INPUTS,
    RecurrentHighway,
    RecurrentHighwayOptions,
)
from fairseq_plugins.modules.stack import RecurrentStack
from fairseq_plugins.ops.recurrence import StepProducts

B, T, C, D, DEPTH = 4, 6, 5, 7, 3
RATE, START = 0.4, -1.5

every_transform_input = pytest.mark.parametrize("transform_input", TRANSFORM_INPUTS)


@pytest.fixture
def x():
    return torch.randn(B, T, C, dtype=torch.float64)


@pytest.fixture
def state():
    return {"s": torch.randn(B, D, dtype=torch.float64)}


def make(transform_input="state", *, rate=RATE, depth=DEPTH, start=START):
    options = RecurrentHighwayOptions(
        dropout_recurrent=rate, recurrence_depth=depth, transform_input=transform_input, transform_bias=start
    )
    layer = RecurrentHighway(C, D, options=options).double()
    with torch.no_grad():
        for param in layer.parameters():
            param.uniform_(-0.7, 0.7)
    return layer


def by_hand(layer, x, state, mask, transform_input):
    start = torch.cat([torch.zeros(D), torch.full((D,), START)]).double()
    micro_layers = [(micro_layer.weight, micro_layer.bias + start) for micro_layer in layer.micro_layers]
    output, s = plain_formulas.recurrent_highway(
        x, state["s"], layer.input.weight, micro_layers, mask=mask, transform_input=transform_input
    )
    return output, {"s": s}


@every_transform_input
@pytest.mark.parametrize("depth", [1, DEPTH])
@pytest.mark.parametrize("num_known", [None, 0, 2, C])
def test_values_and_gradients_are_those_of_the_equations(transform_input, depth, num_known, x, state):
    layer, mask = make(transform_input, depth=depth), drawn_mask(5, (B, D), rate=RATE)
    assert_as_by_hand(layer, x, state, lambda: by_hand(layer, x, state, mask, transform_input), num_known=num_known)


@every_transform_input
@pytest.mark.parametrize("rate, training", [(RATE, False), (0.0, True)])
def test_evaluation_and_rate_zero_have_no_mask(transform_input, rate, training, x, state):
    layer = make(transform_input, rate=rate).train(training)
    expected = by_hand(layer, x, state, 1.0, transform_input)
    torch.testing.assert_close(run(layer, x, state), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(run_steps(layer, x, state, 2), expected, rtol=1e-12, atol=1e-12)


@every_transform_input
def test_leading_padding_goes_with_the_mask(transform_input, x):
    layer, lengths, mask = make(transform_input), [T, 2, 0, 5], drawn_mask(5, (B, D), rate=RATE)
    padding = torch.arange(T) < T - torch.tensor(lengths).unsqueeze(1)
    torch.manual_seed(5)
    output, state = run(layer, x, layer.initial_state(x), leading_padding=padding)
    assert not output[padding].any() and not state["s"][2].any()
    for row, length in enumerate(lengths):
        if length:
            rows, zeros = slice(row, row + 1), {"s": torch.zeros(1, D, dtype=torch.float64)}
            expected = by_hand(layer, x[rows, T - length :], zeros, mask[rows], transform_input)
            found = output[rows, T - length :], {"s": state["s"][rows]}
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


# the mask, read from what reaches the recurrent matrices


def read_of_steps(layer, x, state, monkeypatch):
    """Operands of the recurrent matrices, (T, DEPTH, B, D)."""
    read, call = [], StepProducts.__call__
    with monkeypatch.context() as patch:
        patch.setattr(StepProducts, "__call__", lambda self, t, operand: read.append(operand) or call(self, t, operand))
        run_steps(layer, x, state, C)
    return torch.stack(read).unflatten(0, (T, -1))


def test_one_mask_serves_all_micro_layers_and_steps_of_a_window_and_each_row_has_its_own(x, state, monkeypatch):
    kept = read_of_steps(make(), x, state, monkeypatch).ne(0)
    assert kept.shape == (T, DEPTH, B, D)
    assert torch.equal(kept, kept[:1, :1].expand_as(kept))
    assert len({tuple(row.tolist()) for row in kept[0, 0]}) == B


def test_gates_that_read_candidates_have_no_mask(x, state, monkeypatch):
    kept = read_of_steps(make("candidate"), x, state, monkeypatch).ne(0)
    masked, candidates = kept.unflatten(1, (DEPTH, 2)).unbind(2)
    assert torch.equal(masked, masked[:1, :1].expand_as(masked)) and not masked.all()
    assert candidates.all()


def test_every_window_draws_a_fresh_mask(x, state, monkeypatch):
    layer = make()
    masks = [read_of_steps(layer, x, state, monkeypatch)[0, 0].ne(0) for _ in range(5)]
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) == 5


def test_the_carried_state_is_not_masked(x, state):
    output, new_state = run(make(rate=0.9), x, state)
    assert torch.equal(new_state["s"], output[:, -1]) and (output != 0).all()


def test_every_layer_of_a_stack_has_a_mask_of_its_own():
    options = RecurrentHighwayOptions(dropout_recurrent=0.5)
    stack = RecurrentStack(C, [16, 16], cell="rhn", cell_options=options)
    x = torch.randn(B, T, C)
    first, second = (layer.prepare(x, CellContext(stack_input=x)).mask for layer in stack.layers)
    assert first.shape == second.shape == (B, 16) and not torch.equal(first, second)


@pytest.mark.parametrize("rate", [0.25, 0.6])
def test_the_rate_is_the_share_of_dropped_features(rate):
    rows = torch.randn(1000, 1, 1)
    layer = RecurrentHighway(1, 100, options=RecurrentHighwayOptions(dropout_recurrent=rate))
    mask = layer.prepare(rows, CellContext(stack_input=rows)).mask
    error = 4 * (rate * (1 - rate) / mask.numel()) ** 0.5
    assert mask.eq(0).double().mean().item() == pytest.approx(rate, abs=error)


# parameters


@every_transform_input
def test_each_micro_layer_has_two_matrices_and_one_bias_vector_for_each(transform_input):
    count = sum(param.numel() for param in make(transform_input).parameters())
    assert count == 2 * D * C + DEPTH * 2 * (D * D + D)


def test_gates_start_at_the_given_bias_and_carry_the_state_on(x, state):
    for start, is_closed in ((-30.0, True), (0.0, False)):
        layer = make(start=start, rate=0.0)
        before, after = state["s"], run(layer, x, state)[1]["s"]
        assert torch.allclose(after, before) == is_closed


def test_a_checkpoint_of_other_gates_is_refused():
    for name, other in (("transform-input", make("candidate")), ("transform-bias", make(start=0.5))):
        with pytest.raises(ValueError, match=f"trained with --{name} .*, this model has --{name}"):
            make().load_state_dict(other.state_dict())


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"depth": 0}, "--recurrence-depth 0: give at least 1"),
        ({"rate": 1.0}, "--dropout-recurrent 1.0"),
    ],
)
def test_what_does_not_fit_is_refused(flags, message):
    with pytest.raises(ValueError, match=message):
        make(**flags)
