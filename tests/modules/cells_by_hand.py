"""Cells compared with their equations: how they are run, and the mask that they draw."""

import torch
from cell_contract import loss, steps_of_layer

from fairseq_plugins.modules.cell import CellContext


def run(layer, x, state, **context):
    """Output and state of a whole run."""
    return layer(x, state, CellContext(stack_input=x, **context))


def run_steps(layer, x, state, num_known, **context):
    """As ``run``, step by step, with so many columns of x known in advance."""
    return steps_of_layer(
        layer, x, state, CellContext(stack_input=x, **context), num_known=num_known, num_stack_known=0
    )


def drawn_mask(seed, shape, *, rate):
    """The mask that a call draws after ``torch.manual_seed(seed)``."""
    torch.manual_seed(seed)
    return torch.rand(shape).lt(1 - rate).double() / (1 - rate)


def assert_as_by_hand(layer, x, state, by_hand, *, num_known=None):
    """Values and gradients by input, state and parameters are those of the equations, with the mask of seed 5.

    ``by_hand`` takes no arguments and returns output and state of the equations; ``num_known`` is None for a whole run,
    or the columns of x that its steps know in advance.
    """
    wanted = [x, *state.values(), *layer.parameters()]
    for tensor in wanted:
        tensor.requires_grad_()
    torch.manual_seed(5)
    found = run(layer, x, state) if num_known is None else run_steps(layer, x, state, num_known)
    expected = by_hand()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(loss(*result), wanted) for result in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)
    assert all(gradient.abs().sum() > 0 for gradient in gradients[0])
