"""Every cell but the Major-Minor LSTM against its equations, with its mask taken from the seed."""

import plain_formulas
import pytest
import torch
from builders import randomise
from cell_contract import loss, steps_of_layer

from fairseq_plugins.modules.cell import RECURRENT_CELLS, CellContext, map_state
from fairseq_plugins.modules.recurrent_highway import TRANSFORM_INPUTS

B, T, C, D = 4, 6, 5, 7
RATE = 0.4
DROPPED = {"dropout_recurrent": RATE}

# a cell, its flags, and those of them that its formula needs to know
CASES = [
    *(("lstm", {"dropout_weight": RATE, "rnn_biases": biases}, {}) for biases in ("one", "two")),
    *(("variational", {**DROPPED, "rnn_biases": biases}, {}) for biases in ("one", "two")),
    *(
        ("rhn", {**DROPPED, "recurrence_depth": depth}, {"transform_bias": -1.5, "transform_input": name})
        for depth in (1, 3)
        for name in TRANSFORM_INPUTS
    ),
    *(
        ("mogrifier", {**DROPPED, "mogrifier_rounds": rounds, "mogrifier_rank": rank}, {})
        for rounds, rank in [(0, 0), (1, 0), (2, 3), (5, 0), (5, 3), (6, 2)]
    ),
    *(
        (cell, {**flags, "input_matrix": input_matrix}, of_formula)
        for input_matrix in ("on", "off")
        for cell, flags, of_formula in [
            ("diagonal", {}, {}),
            ("diagonal", {"transition": "full"}, {}),
            ("rectifier", {}, {}),
            ("rectifier", {}, {"recurrent_scale": 0.3}),
            ("smooth-rectifier", {}, {"rectifier_smoothing": 0.7}),
        ]
    ),
]


@pytest.mark.parametrize("num_known", [None, 2])
@pytest.mark.parametrize("cell, flags, of_formula", CASES)
def test_values_and_gradients_are_those_of_the_equations(cell, flags, of_formula, num_known):
    """Of a whole run, or of steps that know so many columns of the input in advance."""
    cell_class, input_size = RECURRENT_CELLS[cell], D if flags.get("input_matrix") == "off" else C
    layer = randomise(cell_class(input_size, D, options=cell_class.Options(**flags, **of_formula)).double(), 0.7)
    x = torch.randn(B, T, input_size, dtype=torch.float64)
    state, context = map_state(torch.randn_like, layer.initial_state(x)), CellContext(stack_input=x)
    wanted = [tensor.requires_grad_() for tensor in (x, *state.values(), *layer.parameters())]
    torch.manual_seed(5)
    if num_known is None:
        found = layer(x, state, context)
    else:
        found = steps_of_layer(layer, x, state, context, num_known=num_known, num_stack_known=0)
    torch.manual_seed(5)
    mask = torch.rand((4 * D, D) if cell == "lstm" else (B, D)).lt(1 - RATE).double() / (1 - RATE)
    masks = [mask] if "dropout_weight" in flags or "dropout_recurrent" in flags else []
    expected = plain_formulas.recurrent(layer, x, state, x, *masks, **of_formula)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(loss(*result), wanted) for result in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)
    assert all(gradient.any() for gradient in gradients[0])
