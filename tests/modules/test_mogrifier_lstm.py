"""Mogrifier LSTM against the equations of Melis et al. 2020, with its mask taken from the seed."""

from argparse import Namespace

import plain_formulas
import pytest
import torch
from builders import randomise
from cells_by_hand import assert_as_by_hand, drawn_mask

from fairseq_plugins.modules.cell import RECURRENT_CELLS
from fairseq_plugins.modules.mogrifier_lstm import MogrifierLSTM, MogrifierOptions

B, T, C, D = 4, 6, 5, 7
RATE = 0.4


@pytest.fixture
def x():
    return torch.randn(B, T, C, dtype=torch.float64)


@pytest.fixture
def state():
    return dict(zip("hc", torch.randn(2, B, D, dtype=torch.float64)))


def make(rounds=5, rank=3, rate=RATE):
    options = MogrifierOptions(dropout_recurrent=rate, mogrifier_rounds=rounds, mogrifier_rank=rank)
    layer = MogrifierLSTM(C, D, options=options).double()
    return randomise(layer, 0.9)


def full_matrix(mogrifier):
    """Q of a round."""
    first, *others = (factor.weight for factor in mogrifier.factors)
    return others[0] @ first if others else first


def by_hand(layer, x, state, mask):
    rounds = [(full_matrix(mogrifier), mogrifier.factors[-1].bias) for mogrifier in layer.rounds]
    weights = layer.input.weight, layer.recurrent.weight, layer.input.bias
    output, h, c = plain_formulas.mogrifier(x, state["h"], state["c"], rounds, *weights, mask=mask)
    return output, {"h": h, "c": c}


@pytest.mark.parametrize("rounds, rank", [(0, 0), (1, 0), (2, 3), (5, 0), (5, 3), (6, 2)])
def test_values_and_gradients_are_those_of_the_equations(rounds, rank, x, state):
    layer, mask = make(rounds, rank), drawn_mask(5, (B, D), rate=RATE)
    assert_as_by_hand(layer, x, state, lambda: by_hand(layer, x, state, mask))


# parameters


def test_a_rank_is_that_of_rounds():
    args = Namespace(rnn_cell="mogrifier", mogrifier_rank=3)
    assert RECURRENT_CELLS.read_options(args).mogrifier_rank == 3
    args.mogrifier_rounds = 0
    told = "^--mogrifier-rank has no effect .*: leave it out, or give --mogrifier-rounds"
    with pytest.raises(ValueError, match=told):
        RECURRENT_CELLS.read_options(args)
