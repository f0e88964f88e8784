"""The learning rate follows the windows of an update."""

import pytest
import torch
from builders import build_tiny_lm
from fairseq.distributed import utils as distributed_utils
from stateful_training import BASE_LENGTH, LR, Training, make_optimizer

from fairseq_plugins.tasks.accumulated_windows import AccumulatedWindows, agreed_scale, scaled_learning_rate


@pytest.fixture
def training():
    return Training(build_tiny_lm("tied").train())


def test_learning_rate_follows_the_nominal_window_length(training):
    lengths = set()
    for sample in training.windows:
        gradients, steps = training.update([sample])
        lengths.add(sample["nominal_length"])
        rate = LR * sample["nominal_length"] / BASE_LENGTH
        for gradient, step in zip(gradients, steps, strict=True):
            torch.testing.assert_close(step, rate * gradient, rtol=1e-4, atol=1e-6)
        assert training.optimizer.get_lr() == LR
    assert len(lengths) > 2, "the windows must differ for the test to mean anything"
    assert sample["nominal_length"] > sample["target"].size(1), "the last window must be cut short"


def test_learning_rate_of_accumulated_windows_is_their_mean(training):
    first, second = next(training.windows), next(training.windows)
    gradients, steps = training.update([first, second])
    rate = LR * (first["nominal_length"] + second["nominal_length"]) / (2 * BASE_LENGTH)
    for gradient, step in zip(gradients, steps, strict=True):
        torch.testing.assert_close(step, rate * gradient, rtol=1e-4, atol=1e-6)


def test_a_skipped_update_leaves_nothing_behind(training):
    first, second = next(training.windows), next(training.windows)
    training.optimizer.zero_grad()
    training.accumulate(first)
    gradients, steps = training.update([second])
    for gradient, step in zip(gradients, steps, strict=True):
        torch.testing.assert_close(step, LR * second["nominal_length"] / BASE_LENGTH * gradient, rtol=1e-4, atol=1e-6)


def test_without_a_window_the_learning_rate_stays():
    scale = AccumulatedWindows(base_length=BASE_LENGTH).learning_rate_scale
    assert scale is None and agreed_scale(scale, device=torch.device("cpu")) == 1
    assert agreed_scale(0.7, device=torch.device("cpu")) == 0.7


@pytest.mark.parametrize("own, others, agreed", [(0.3, 0.7, 0.7), (None, 0.7, 0.7), (0.7, 0.0, 0.7), (None, 0.0, 1)])
def test_processes_agree_on_the_largest_scale(own, others, agreed, monkeypatch):
    monkeypatch.setattr(distributed_utils, "get_data_parallel_world_size", lambda: 2)
    monkeypatch.setattr(distributed_utils, "get_data_parallel_group", lambda: "all")
    reduced = []

    def all_reduce(tensor, group, op):
        assert (group, op, tensor.dtype) == ("all", "max", torch.double)
        reduced.append(tensor.item())
        return tensor.clamp_min(others)

    monkeypatch.setattr(distributed_utils, "all_reduce", all_reduce)
    assert agreed_scale(own, device=torch.device("cpu")) == agreed
    assert reduced == [own or 0.0]


def test_windows_add_up_until_the_gradients_are_cleared():
    model, windows = torch.nn.Linear(2, 1), AccumulatedWindows(base_length=10)
    for expected in (0, 1, 2):
        windows.begin(model)
        assert len(windows) == expected
        model(torch.ones(1, 2)).sum().backward()
        windows.add(7)
    model.zero_grad()
    windows.begin(model)
    assert len(windows) == 0


def test_the_schedule_keeps_its_learning_rate_also_after_a_failure():
    optimizer = make_optimizer(torch.nn.Linear(2, 1))
    with pytest.raises(FloatingPointError), scaled_learning_rate(optimizer, 0.5):
        assert optimizer.get_lr() == LR / 2
        raise FloatingPointError
    assert optimizer.get_lr() == LR
