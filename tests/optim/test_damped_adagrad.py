"""Adagrad that starts damped, as the host drives it."""

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from fairseq.optim.adagrad import Adagrad as HostAdagrad
from torch import nn

from fairseq_plugins.optim.damped_adagrad import DampedAdagrad

NUM_STEPS, LR, START = 6, 0.2, 0.03


def make(*, start=START, weight_decay=0.0, lr=LR, dtype=torch.float64):
    torch.manual_seed(3)
    model = nn.Embedding(6, 3).to(dtype)
    cfg = SimpleNamespace(lr=[lr], initial_accumulator=start, weight_decay=weight_decay)
    return model, DampedAdagrad(cfg, model.parameters())


def backward(model, step, *, sparse=False):
    words = torch.tensor([[0, 1, 1], [2, 0, 4]][step % 2])
    (F.embedding(words, model.weight, sparse=sparse).cos() * (step + 1)).sum().backward()


def update(model, optimizer, step, **flags):
    optimizer.zero_grad()
    backward(model, step, **flags)
    optimizer.step()


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("start", [0.0, START, 5.0])
def test_updates_are_those_of_the_equation(start, weight_decay):
    model, optimizer = make(start=start, weight_decay=weight_decay)
    expected = copy.deepcopy(model)
    squares = torch.full_like(expected.weight, start)
    for step in range(NUM_STEPS):
        update(model, optimizer, step)
        expected.zero_grad()
        backward(expected, step)
        with torch.no_grad():
            gradient = expected.weight.grad + weight_decay * expected.weight
            squares += gradient**2
            expected.weight -= LR * gradient / (squares.sqrt() + 1e-10)
    torch.testing.assert_close(model.weight, expected.weight, rtol=1e-12, atol=1e-12)


def test_from_zero_it_is_the_hosts():
    (model, ours), (other, _) = make(start=0.0), make()
    theirs = HostAdagrad(SimpleNamespace(lr=[LR], weight_decay=0.0), other.parameters())
    for step in range(NUM_STEPS):
        update(model, ours, step)
        update(other, theirs, step)
    assert torch.equal(model.weight, other.weight)


def test_a_weight_with_small_gradients_moves_little():
    moved = {}
    for start in (0.0, 1.0):
        weight = nn.Parameter(torch.zeros(2))
        optimizer = DampedAdagrad(SimpleNamespace(lr=[LR], initial_accumulator=start, weight_decay=0.0), [weight])
        weight.grad = torch.tensor([100.0, 1e-3])
        optimizer.step()
        moved[start] = -weight.detach() / LR
    torch.testing.assert_close(moved[0.0], torch.tensor([1.0, 1.0]))
    torch.testing.assert_close(moved[1.0], torch.tensor([1.0, 1e-3]), rtol=1e-3, atol=0)


def test_sparse_gradients_change_their_rows_as_dense_ones_do():
    (model, optimizer), (other, dense) = make(), make()
    start = model.weight.detach().clone()
    for step in range(NUM_STEPS):
        update(model, optimizer, step, sparse=True)
        assert model.weight.grad.is_sparse
        update(other, dense, step)
    torch.testing.assert_close(model.weight, other.weight, rtol=1e-12, atol=1e-12)
    assert torch.equal(model.weight[[3, 5]], start[[3, 5]])


def test_a_training_that_is_resumed_goes_on_bit_for_bit():
    model, optimizer = make(dtype=torch.float32)
    for step in range(3):
        update(model, optimizer, step)
    other, resumed = make(start=1.0, lr=1.0, weight_decay=0.5, dtype=torch.float32)
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()), optimizer.optimizer_config)
    for step in range(3, NUM_STEPS):
        update(model, optimizer, step)
        update(other, resumed, step)
    assert torch.equal(model.weight, other.weight)


def test_weights_may_lie_in_one_tensor_as_in_16_bit_training():
    model, optimizer = make()
    flat = nn.Parameter(model.weight.detach().flatten().clone())
    joined = DampedAdagrad(optimizer.cfg, [flat])
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        backward(model, step)
        flat.grad = model.weight.grad.flatten().clone()
        optimizer.step()
        joined.step()
    assert optimizer.supports_flat_params and torch.equal(flat, model.weight.flatten())


@pytest.mark.parametrize("name, flag", [("start", "initial-accumulator"), ("weight_decay", "weight-decay")])
@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
def test_what_is_no_coefficient_is_refused(name, flag, value):
    with pytest.raises(ValueError, match=f"--{flag} {value}: give"):
        make(**{name: value})
