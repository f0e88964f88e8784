"""An update by the host's optimisers with sparse gradients is that with dense ones."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from fairseq import optim
from fairseq.optim import FairseqOptimizer
from torch import nn

import fairseq_plugins  # noqa: F401

SETTINGS = dict(lr=[0.5], momentum=0.0, weight_decay=0.0)


def make_optimizer(name, weights, **flags):
    settings = SimpleNamespace(**{**SETTINGS, **flags}, _name=name)
    return optim.OPTIMIZER_REGISTRY[name](settings, weights)


def make_weights():
    torch.manual_seed(0)
    return nn.Parameter(torch.randn(9, 4)), nn.Parameter(torch.randn(4))


def differentiate(weights, *, sparse):
    """Gradients of an embedding that is read in two places, some rows more than once, and of a dense weight."""
    matrix, vector = weights
    first, second = (F.embedding(torch.tensor(rows), matrix, sparse=sparse) for rows in ([1, 2, 2], [2, 5]))
    (torch.sin(first @ vector).sum() + second.square().sum()).backward()
    assert matrix.grad.is_sparse == sparse


def update(name, max_norm, *, sparse, num_updates=3):
    """The gradient norms of some updates, and the weights after them."""
    weights = make_weights()
    optimizer = make_optimizer(name, weights)
    norms = []
    for _ in range(num_updates):
        optimizer.zero_grad()
        differentiate(weights, sparse=sparse)
        optimizer.multiply_grads(torch.tensor(0.25))
        norms.append(optimizer.clip_grad_norm(max_norm).clone())
        optimizer.step()
    return norms, [weight.detach() for weight in weights]


@pytest.mark.filterwarnings("error:Sparse invariant checks")
@pytest.mark.parametrize("max_norm", [0, 0.3])
@pytest.mark.parametrize("name", ["sgd", "adagrad"])
def test_updates_are_those_of_dense_gradients(name, max_norm):
    torch.testing.assert_close(update(name, max_norm, sparse=True), update(name, max_norm, sparse=False))


@pytest.mark.parametrize(
    "name, flags",
    [("sgd", dict(momentum=0.9)), ("sgd", dict(weight_decay=1e-5)), ("nag", {}), ("adagrad", dict(weight_decay=0.1))],
)
def test_what_changes_all_rows_is_refused(name, flags):
    weights = make_weights()
    optimizer = make_optimizer(name, weights, **flags)
    differentiate(weights, sparse=True)
    with pytest.raises(ValueError, match="--sparse-gradients on: .* changes all rows; give off, or --optimizer sgd"):
        optimizer.multiply_grads(0.5)
    optimizer.zero_grad()
    differentiate(weights, sparse=False)
    optimizer.multiply_grads(0.5)


def test_the_host_alone_neither_scales_nor_clips_sparse_gradients():
    weights = make_weights()
    optimizer = make_optimizer("sgd", weights)
    differentiate(weights, sparse=True)
    before = weights[0].grad.to_dense()
    FairseqOptimizer.multiply_grads.__wrapped__(optimizer, 0.5)
    assert torch.equal(weights[0].grad.to_dense(), before)
    with pytest.raises(RuntimeError, match="norm_sparse"):
        FairseqOptimizer.clip_grad_norm.__wrapped__(optimizer, 1.0)
