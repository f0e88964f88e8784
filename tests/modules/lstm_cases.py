"""Weight-drop LSTMs for the tests: how they are built and run, and the recurrence written out."""

import plain_formulas
import torch

from fairseq_plugins.modules.cell import CellContext
from fairseq_plugins.modules.lstm import WeightDropLSTM, WeightDropOptions

B, T, C, D = 3, 6, 5, 7
RATE = 0.5
NAMES = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
LENGTHS = [T, 2, 0]


def draw_inputs():
    """x (B, T, C) and a state before it."""
    h, c = torch.randn(2, B, D, dtype=torch.float64)
    return torch.randn(B, T, C, dtype=torch.float64), {"h": h, "c": c}


def leading_padding(lengths=LENGTHS):
    """Which places are padding, (B, T), where the rows end at T."""
    return torch.arange(T) < T - torch.tensor(lengths).unsqueeze(1)


def make(rate, biases="two"):
    return WeightDropLSTM(C, D, options=WeightDropOptions(dropout_weight=rate, rnn_biases=biases)).double()


def run(layer, x, state=None, *, leading_padding=None):
    """Output and state, from zeros where there is no state before."""
    context = CellContext(stack_input=x, leading_padding=leading_padding)
    return layer(x, layer.initial_state(x) if state is None else state, context)


def by_hand(layer, x, state, mask):
    """Output and state of the recurrence; the mask is that of the recurrent matrix."""
    w_x, w_h, b_x, b_h = (getattr(layer, name) for name in NAMES)
    output, h, c = plain_formulas.lstm(x, state["h"], state["c"], w_x, w_h * mask, b_x, b_h)
    return output, {"h": h, "c": c}


def zero_state(num_rows):
    zeros = torch.zeros(num_rows, D, dtype=torch.float64)
    return {"h": zeros, "c": zeros}
