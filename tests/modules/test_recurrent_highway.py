"""Recurrent highway networks against the equations of Zilly et al. 2017, with their mask taken from the seed."""

import plain_formulas
import pytest
import torch
from builders import randomise
from cells_by_hand import assert_as_by_hand, drawn_mask

from fairseq_plugins.modules.recurrent_highway import TRANSFORM_INPUTS, RecurrentHighway, RecurrentHighwayOptions

B, T, C, D, DEPTH = 4, 6, 5, 7, 3
RATE, START = 0.4, -1.5


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
    return randomise(layer, 0.7)


def by_hand(layer, x, state, mask, transform_input):
    start = torch.cat([torch.zeros(D), torch.full((D,), START)]).double()
    micro_layers = [(micro_layer.weight, micro_layer.bias + start) for micro_layer in layer.micro_layers]
    output, s = plain_formulas.recurrent_highway(
        x, state["s"], layer.input.weight, micro_layers, mask=mask, transform_input=transform_input
    )
    return output, {"s": s}


@pytest.mark.parametrize("transform_input", TRANSFORM_INPUTS)
@pytest.mark.parametrize("depth", [1, DEPTH])
def test_values_and_gradients_are_those_of_the_equations(transform_input, depth, x, state):
    layer, mask = make(transform_input, depth=depth), drawn_mask(5, (B, D), rate=RATE)
    assert_as_by_hand(layer, x, state, lambda: by_hand(layer, x, state, mask, transform_input))
