"""Errors of a mixture loss against float64: root mean squares over all elements and several seeds.

Which of two paths rounds a single number better is chance.
"""

from collections import defaultdict
from functools import lru_cache

import torch
from mixture_cases import draw, formula, outcome

EPS = torch.finfo(torch.float32).eps
NUM_SEEDS = 5


def rms_errors(
    function, shape, dtype, *, scale=1.0, with_bias=True, loss_scale=1.0, token_weight=None, gate_width=None, **options
):
    """Root mean squared error of the NLL and of each gradient, with ``loss_scale`` taken out again."""
    of_the_loss = {name: options.get(name, 0.0) for name in ("label_smoothing", "adversarial_epsilon")}
    drawn = dict(scale=scale, dtype=dtype, with_bias=with_bias, token_weight=token_weight, gate_width=gate_width)
    squares = defaultdict(list)
    for seed in range(NUM_SEEDS):
        case, exact = _case(seed, shape, **drawn, **of_the_loss)
        ours = outcome(scaled_by(loss_scale, function), case, dtype, **options)
        for name in ("nll", *case.learned):
            value = ours[name].double() / (1 if name == "nll" else loss_scale)
            squares[name].append((value - exact[name]).square().mean())
    return {name: torch.stack(values).mean().sqrt().item() for name, values in squares.items()}


@lru_cache(maxsize=NUM_SEEDS)
def _case(seed, shape, *, scale, dtype, with_bias, token_weight, gate_width, **of_the_loss):
    """Inputs and what they give in float64, kept for the next function that is measured on them."""
    torch.manual_seed(seed)
    case = draw(*shape, scale=scale, dtype=dtype, gate_width=gate_width)
    if not with_bias:
        case.bias.zero_()
    if token_weight is not None:
        case.token_weights.fill_(token_weight)
    return case, outcome(formula, case, **of_the_loss)


def scaled_by(factor, function):
    """Multiplies the loss."""

    def scaled(*args, **options):
        loss, nll = function(*args, **options)
        return loss * factor, nll

    return scaled


def under_autocast(dtype, function):
    def call(*args, **options):
        with torch.autocast("cpu", dtype):
            return function(*args, **options)

    return call
