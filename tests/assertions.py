"""How near results are to exact ones. In 16 bits a bound on each number says nothing where these are small."""

import torch

ROUNDINGS = 8
"""Of bfloat16, 2**-9 of a number each, that a result may be off by."""


def assert_near(found, expected, *, roundings=ROUNDINGS):
    """A tensor's difference is a small share of it, by their norms, so that zeros or a shift are not near."""
    found, expected = found.double(), expected.double()
    error = (found - expected).norm() / expected.norm()
    assert error <= roundings * torch.finfo(torch.bfloat16).eps / 2, f"{error:.4f} of {expected.norm():.3g}"


def assert_scores(layer, states, scores, *, loss, nll, log_p):
    """Loss, NLL, log-probabilities and all gradients of an output layer are the given ones, from seed 5, in float64."""
    torch.testing.assert_close(scores.loss, loss, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(scores.nll, nll.detach(), rtol=1e-11, atol=1e-11)
    inputs = [*layer.parameters(), *states.layers]
    ours, theirs = (torch.autograd.grad(y, inputs, materialize_grads=True) for y in (scores.loss, loss))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
    for with_gradients in (True, False):
        torch.manual_seed(5)
        with torch.set_grad_enabled(with_gradients):
            log_probs = layer(states).log_probs
        torch.testing.assert_close(log_probs.detach(), log_p.detach(), rtol=1e-11, atol=1e-11)
