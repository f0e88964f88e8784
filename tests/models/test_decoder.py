"""The state that is carried along streams."""

import pytest
import torch

from fairseq_plugins.models.decoder import CarriedState


def decoder_state(value=0.0):
    return {"layers": [{"h": torch.full((3, 4), value), "c": torch.full((3, 4), value)}, {"h": torch.zeros(3, 7)}]}


def value(state):
    """The value that :func:`decoder_state` was given."""
    return state["layers"][0]["h"][0, 0].item()


def read(carried, stream, *, windows):
    """Go over windows (start, end); the state after each is its end."""
    for start, end in windows:
        state = carried.get(stream, start)
        assert (state is None) == (start == 0) and (state is None or value(state) == start)
        carried.set(stream, end, decoder_state(float(end)))


@pytest.fixture
def carried():
    return CarriedState()


@pytest.mark.parametrize("stream, position", [("valid", -1), ("valid", 1), ("valid", 3), ("other", 4)])
def test_a_position_before_which_no_window_ended_is_refused_with_the_stream(carried, stream, position):
    carried.set("valid", 4, decoder_state())
    with pytest.raises(ValueError, match=f"stream '{stream}' cannot continue at token {position}: "):
        carried.get(stream, position)
    assert carried.get(stream, 0) is None


def test_after_a_window_that_was_passed_over_the_state_before_it_goes_on(carried):
    carried.set("train", 4, decoder_state(1.0))
    carried.set("train", 9, decoder_state(2.0))
    assert value(carried.get("train", 15)) == 2
    carried.set("train", 20, decoder_state(3.0))
    assert value(carried.get("train", 20)) == 3


def test_after_a_first_window_that_was_passed_over_the_stream_goes_on_from_zeros(carried):
    assert carried.get("train", 0) is None
    assert carried.get("train", 70) is None
    carried.set("train", 140, decoder_state(1.0))
    assert value(carried.get("train", 140)) == 1


def test_what_an_earlier_epoch_left_is_gone_when_the_next_one_starts(carried):
    carried.num_repeatable = 3
    read(carried, "train", windows=[(0, 50), (50, 70), (70, 90)])
    carried.get("train", 0)
    assert [carried.get("train", position) for position in (50, 70, 90, 1000)] == [None] * 4


def test_interleaved_streams_do_not_know_of_each_other(carried):
    for step in range(3):
        for n, stream in enumerate(("train", "valid", "train, for statistics")):
            start, end = 4 * step, 4 * step + 4
            state = carried.get(stream, start)
            assert state is None if step == 0 else value(state) == 100 * n + start
            carried.set(stream, end, decoder_state(100.0 * n + end))


@pytest.mark.parametrize("num_repeatable", [1, 2, 4])
def test_the_last_windows_can_be_read_again_and_no_others(carried, num_repeatable):
    carried.num_repeatable = num_repeatable
    ends = [3, 7, 9, 15, 20, 22, 30]
    read(carried, "train", windows=list(zip([0, *ends], ends)))
    starts = ends[-1 - num_repeatable : -1]
    for first in range(len(starts)):
        again = [*starts[first:], ends[-1]]
        read(carried, "train", windows=list(zip(again, again[1:])))
        assert value(carried.get("train", 30)) == 30
    with pytest.raises(ValueError, match="token"):
        carried.get("train", ends[-2 - num_repeatable])


def test_a_window_that_is_read_again_takes_the_place_of_what_came_after(carried):
    carried.set("train", 4, decoder_state(1.0))
    carried.set("train", 8, decoder_state(2.0))
    carried.set("train", 4, decoder_state(3.0))
    assert value(carried.get("train", 4)) == 3
    assert value(carried.get("train", 8)) == 3
