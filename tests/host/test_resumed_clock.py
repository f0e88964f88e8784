"""The clock of a training that was resumed inside an epoch."""

import time

import pytest
from fairseq.logging import metrics


@pytest.fixture
def saved():
    """Meters of a training, as checkpoints have them; the process forgets its own."""
    metrics.reset()
    metrics.log_start_time("wall", priority=790, round=0)
    state = metrics.state_dict()
    yield state
    metrics.reset()


def seconds_after(load, state):
    load(state)
    time.sleep(0.01)
    return metrics.get_meter("default", "wall").elapsed_time


def test_the_clock_of_loaded_meters_runs_from_then_on(saved):
    assert 0.01 <= seconds_after(metrics.load_state_dict, saved) < 10


def test_meters_without_a_clock_are_loaded(saved):
    metrics.reset()
    metrics.load_state_dict(metrics.state_dict())
    assert metrics.get_meter("default", "wall") is None


def test_the_host_alone_lets_the_clock_stand(saved):
    assert seconds_after(metrics.load_state_dict.__wrapped__, saved) == 0
