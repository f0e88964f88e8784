"""Averaged SGD against torch.optim.ASGD, and what the model holds when."""

import copy

import pytest
import torch
from torch import nn

from fairseq_plugins.optim.averaged_sgd import AveragedSGD

LR, NUM_STEPS = 0.3, 10


@pytest.fixture(autouse=True)
def float64():
    """The library keeps step sizes and averaging weights in the default type."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def batch(step):
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(step))


def backward(model, step):
    model(batch(step)).pow(2).sum().mul(0.1).backward()


def update(model, optimizer, step):
    """One update as the host makes it; returns the raw weights before it."""
    optimizer.zero_grad()
    raw = weights(model)
    backward(model, step)
    optimizer.step()
    return raw


def weights(model):
    return [param.detach().clone() for param in model.parameters()]


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b))


@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_averages_and_iterates_are_those_of_the_librarys_asgd(weight_decay):
    model, reference = make_model(), make_model()
    ours = AveragedSGD(model.parameters(), lr=LR, weight_decay=weight_decay)
    theirs = torch.optim.ASGD(reference.parameters(), lr=LR, lambd=0, t0=0, weight_decay=weight_decay)
    ours.start_averaging()
    for step in range(NUM_STEPS):
        raw = update(model, ours, step)
        torch.testing.assert_close(raw, weights(reference), rtol=1e-13, atol=1e-14)
        theirs.zero_grad()
        backward(reference, step)
        theirs.step()
        means = [theirs.state[param]["ax"] for param in reference.parameters()]
        torch.testing.assert_close(weights(model), means, rtol=1e-13, atol=1e-14)


def test_the_average_is_the_mean_of_all_iterates_from_the_second_on():
    model = make_model()
    optimizer = AveragedSGD(model.parameters(), lr=LR)
    optimizer.start_averaging()
    start, *iterates = [update(model, optimizer, step) for step in range(NUM_STEPS)]
    optimizer.zero_grad()
    iterates.append(weights(model))
    held = [optimizer.state[param]["exchanged"] for param in model.parameters()]
    expected = [torch.stack(history[1:]).mean(0) for history in zip(*iterates)]
    torch.testing.assert_close(held, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_before_averaging_it_is_plain_sgd(weight_decay):
    model, reference = make_model(), make_model()
    ours = AveragedSGD(model.parameters(), lr=LR, weight_decay=weight_decay)
    theirs = torch.optim.SGD(reference.parameters(), lr=LR, weight_decay=weight_decay)
    for step in range(NUM_STEPS):
        update(model, ours, step)
        update(reference, theirs, step)
        assert equal(weights(model), weights(reference))
    assert not ours.is_averaging


def test_averaging_can_start_in_mid_training():
    model, reference = make_model(), make_model()
    ours = AveragedSGD(model.parameters(), lr=LR)
    theirs = torch.optim.SGD(reference.parameters(), lr=LR)
    iterates = []
    for step in range(NUM_STEPS):
        if step == 4:
            ours.start_averaging()
        update(model, ours, step)
        update(reference, theirs, step)
        iterates.append(weights(reference))
    expected = [torch.stack(history).mean(0) for history in zip(*iterates[5:])]
    assert ours.is_averaging
    torch.testing.assert_close(weights(model), expected, rtol=1e-12, atol=1e-14)


def test_the_model_holds_the_average_except_from_zero_grad_to_step():
    model, reference = make_model(), make_model()
    optimizer = AveragedSGD(model.parameters(), lr=LR)
    raw_optimizer = torch.optim.SGD(reference.parameters(), lr=LR)
    optimizer.start_averaging()
    for step in range(4):
        update(model, optimizer, step)
        update(reference, raw_optimizer, step)
    average, raw = weights(model), weights(reference)
    assert not equal(average, raw)
    optimizer.zero_grad()
    assert equal(weights(model), raw)
    assert equal([optimizer.state[param]["exchanged"] for param in model.parameters()], average)
    backward(model, 4)
    assert equal(weights(model), raw)


def test_before_the_first_averaged_update_the_weights_are_shown_as_they_are():
    model = make_model()
    optimizer = AveragedSGD(model.parameters(), lr=LR)
    optimizer.start_averaging()
    before = weights(model)
    optimizer.show_average()
    assert equal(weights(model), before)


def test_zero_grad_can_be_called_again():
    model = make_model()
    optimizer = AveragedSGD(model.parameters(), lr=LR)
    optimizer.start_averaging()
    for step in range(4):
        update(model, optimizer, step)
    optimizer.zero_grad()
    raw = weights(model)
    backward(model, 4)
    optimizer.zero_grad()
    assert equal(weights(model), raw)
    assert all(param.grad is None for param in model.parameters())


def test_a_step_on_the_average_is_a_programming_error():
    model = make_model()
    optimizer = AveragedSGD(model.parameters(), lr=LR)
    optimizer.start_averaging()
    update(model, optimizer, 0)
    with pytest.raises(AssertionError, match="zero_grad"):
        optimizer.step()


@pytest.mark.parametrize("start, stop", [(0, 1), (0, 2), (0, 5), (3, 2), (3, 4), (3, 5)])
def test_a_saved_state_goes_on_bit_for_bit(start, stop):
    def run(model, optimizer, steps):
        for step in steps:
            if step == start:
                optimizer.start_averaging()
            update(model, optimizer, step)

    model = make_model()
    optimizer = AveragedSGD(model.parameters(), lr=LR, weight_decay=0.05)
    run(model, optimizer, range(stop))
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    run(model, optimizer, range(stop, NUM_STEPS))

    resumed = make_model(seed=9)
    resumed_optimizer = AveragedSGD(resumed.parameters(), lr=LR, weight_decay=0.05)
    resumed.load_state_dict(saved[0])
    resumed_optimizer.load_state_dict(saved[1])
    run(resumed, resumed_optimizer, range(stop, NUM_STEPS))
    assert equal(weights(resumed), weights(model))
    optimizer.zero_grad(), resumed_optimizer.zero_grad()
    assert equal(weights(resumed), weights(model))


def test_a_learning_rate_acts_on_the_update_it_is_set_for():
    model, reference = make_model(), make_model()
    ours = AveragedSGD(model.parameters(), lr=LR)
    theirs = torch.optim.SGD(reference.parameters(), lr=LR)
    ours.start_averaging()
    for step, lr in enumerate([0.3, 0.1, 0.5]):
        for optimizer in (ours, theirs):
            optimizer.param_groups[0]["lr"] = lr
        update(model, ours, step)
        update(reference, theirs, step)
    ours.zero_grad()
    assert equal(weights(model), weights(reference))


def test_several_groups_are_averaged():
    model, reference = make_model(), make_model()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.1}]
    reference_groups = [{"params": reference[0].parameters()}, {"params": reference[2].parameters(), "lr": 0.1}]
    ours, theirs = AveragedSGD(groups, lr=LR), torch.optim.ASGD(reference_groups, lr=LR, lambd=0, t0=0)
    ours.start_averaging()
    for step in range(5):
        update(model, ours, step)
        update(reference, theirs, step)
    means = [theirs.state[param]["ax"] for param in reference.parameters()]
    torch.testing.assert_close(weights(model), means, rtol=1e-13, atol=1e-14)
