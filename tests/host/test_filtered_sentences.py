"""Data sets whose sentences are too long."""

from types import SimpleNamespace

import pytest
from fairseq.tasks import FairseqTask

import fairseq_plugins  # noqa: F401


def keep(filter_indices, *lengths, ignore_invalid_inputs=True):
    """Indices of the sentences of at most five tokens."""

    def filter_indices_by_size(indices, max_positions):
        short = [number for number in indices if lengths[number] <= 5]
        return short, [number for number in indices if number not in short]

    dataset = SimpleNamespace(filter_indices_by_size=filter_indices_by_size)
    return filter_indices(None, range(len(lengths)), dataset, (5, 5), ignore_invalid_inputs=ignore_invalid_inputs)


def test_what_is_short_enough_is_kept():
    assert keep(FairseqTask.filter_indices_by_size, 3, 9, 5) == [0, 2]
    assert keep(FairseqTask.filter_indices_by_size) == []


def test_nothing_left_is_refused_with_the_limits():
    told = r"all 2 sentences are longer than \(5, 5\) tokens, the least of --max-tokens, --max-source-positions"
    with pytest.raises(ValueError, match=told):
        keep(FairseqTask.filter_indices_by_size, 6, 9)


def test_one_that_may_not_be_left_out_is_refused_with_the_limits():
    told = r"^2 of 3 sentences are longer than \(5, 5\) tokens, .*, or give --skip-invalid-size-inputs-valid-test"
    with pytest.raises(ValueError, match=told):
        keep(FairseqTask.filter_indices_by_size, 6, 3, 9, ignore_invalid_inputs=False)
    with pytest.raises(ValueError, match="all 2 sentences are longer"):
        keep(FairseqTask.filter_indices_by_size, 6, 9, ignore_invalid_inputs=False)
    assert keep(FairseqTask.filter_indices_by_size, 5, 3, ignore_invalid_inputs=False) == [0, 1]


def test_the_host_alone_leaves_nothing():
    assert keep(FairseqTask.filter_indices_by_size.__wrapped__, 6, 9) == []
