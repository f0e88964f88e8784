"""How near results in 16 bits are to exact ones; a bound on each number says nothing where these are small."""

import torch

ROUNDINGS = 8
"""Of bfloat16, 2**-9 of a number each, that a result may be off by."""


def assert_near(found, expected, *, roundings=ROUNDINGS):
    """A tensor's difference is a small share of it, by their norms, so that zeros or a shift are not near."""
    found, expected = found.double(), expected.double()
    error = (found - expected).norm() / expected.norm()
    assert error <= roundings * torch.finfo(torch.bfloat16).eps / 2, f"{error:.4f} of {expected.norm():.3g}"
