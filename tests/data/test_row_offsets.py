"""Where rows begin: partial shuffle."""

import numpy as np
import pytest

from fairseq_plugins.data.row_offsets import random_row_offsets


def test_every_row_has_an_offset_of_its_own_uniform_over_the_row():
    """A chi-squared test at the 0.1 % level."""
    offsets = random_row_offsets(20_000, 10, seed=1)
    counts = np.bincount(offsets, minlength=10)
    assert len(offsets) == 20_000 and len(counts) == 10 and all(type(offset) is int for offset in offsets)
    assert np.sum((counts - 2000) ** 2 / 2000) < 27.9


def test_neighbouring_rows_are_independent():
    offsets = np.array(random_row_offsets(20_000, 1000, seed=(1, 2)))
    assert np.corrcoef(offsets[:-1], offsets[1:])[0, 1] == pytest.approx(0, abs=4 / np.sqrt(20_000))


def test_the_same_seed_gives_the_same_offsets_and_another_epoch_others():
    first = random_row_offsets(20, 5000, seed=(28, 3))
    assert first == random_row_offsets(20, 5000, seed=(28, 3))
    assert first != random_row_offsets(20, 5000, seed=(28, 4)) != random_row_offsets(20, 5000, seed=(29, 4))
