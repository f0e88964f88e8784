"""Discounts from counts of counts."""

import pytest
import torch

from fairseq_plugins.ngrams.discounts import FALLBACK, Discounts, estimate_discounts


def counts_with(*numbers):
    """Counts of which so many are one, two ..., and some zeros and large ones."""
    return torch.tensor([count for count, n in enumerate(numbers, 1) for _ in range(n)] + [0, 0, 9, 12])


def test_they_are_the_closed_form():
    discounts = estimate_discounts(counts_with(10, 5, 3, 2))
    y = 10 / 20
    assert discounts.source == "counts"
    assert discounts.values == pytest.approx((1 - 2 * y * 5 / 10, 2 - 3 * y * 3 / 5, 3 - 4 * y * 2 / 3))


def test_no_count_of_four_is_no_obstacle():
    assert estimate_discounts(counts_with(10, 5, 3, 0)).values == pytest.approx((0.5, 1.1, 3.0))


@pytest.mark.parametrize("numbers", [(0, 5, 3, 2), (10, 0, 3, 2), (10, 5, 0, 2), (10, 5, 9, 2), (1, 1, 2, 1), ()])
def test_undefined_and_negative_ones_fall_back(numbers):
    assert estimate_discounts(counts_with(*numbers)) == Discounts(FALLBACK, "fallback")


def test_each_count_has_its_own():
    discounts = Discounts((0.3, 0.7, 1.2), "counts")
    assert discounts.of(torch.tensor([[0, 1, 2], [3, 4, 100]])).tolist() == [[0, 0.3, 0.7], [1.2, 1.2, 1.2]]
