"""How a stream is cut into windows."""

import math

import numpy as np
import pytest

from fairseq_plugins.data.windows import Window, fixed_windows, random_windows

NUM_WINDOWS = 20_000


def assert_covers_in_order(windows, num_predictions):
    covered = [t for window in windows for t in range(window.start, window.start + window.length)]
    assert covered == list(range(num_predictions))


def normal_cdf(x, mean, deviation):
    return 0.5 * (1 + math.erf((x - mean) / (deviation * math.sqrt(2))))


@pytest.fixture(scope="module")
def lengths():
    """Nominal lengths around 70 without a limit, the truncated last window left out."""
    windows = random_windows(68 * NUM_WINDOWS, length=70, max_length=None, seed=1)
    return np.array([window.nominal_length for window in windows[:-1]])


@pytest.mark.parametrize("num_predictions", [1, 69, 70, 71, 140, 1001])
@pytest.mark.parametrize("length", [1, 7, 70])
def test_fixed_windows_cover_every_prediction_once_in_order(num_predictions, length):
    windows = fixed_windows(num_predictions, length=length)
    assert_covers_in_order(windows, num_predictions)
    assert all(window.length == length for window in windows[:-1])
    assert all(window.nominal_length == length for window in windows)


def test_the_last_fixed_window_is_cut_but_keeps_its_nominal_length():
    assert fixed_windows(25, length=10) == [Window(0, 10, 10), Window(10, 10, 10), Window(20, 5, 10)]


@pytest.mark.parametrize("num_predictions", [1, 5, 100, 5000])
@pytest.mark.parametrize("max_length", [None, 40])
def test_random_windows_cover_every_prediction_once_in_order(num_predictions, max_length):
    windows = random_windows(num_predictions, length=70, max_length=max_length, seed=(1, 2))
    assert_covers_in_order(windows, num_predictions)
    assert all(window.length == window.nominal_length for window in windows[:-1])
    assert windows[-1].length <= windows[-1].nominal_length


def test_no_predictions_no_windows():
    assert fixed_windows(0, length=5) == random_windows(0, length=5, max_length=None, seed=0) == []


def test_one_window_in_twenty_has_half_the_base(lengths):
    share = np.mean(lengths < 52)
    assert share == pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / len(lengths)))


def test_lengths_follow_the_stated_distribution(lengths):
    """Kolmogorov-Smirnov at the 0.1 % level against the whole part of 0.95 N(70, 5) + 0.05 N(35, 5)."""
    values = np.arange(10, 100)
    expected = [0.95 * normal_cdf(k + 1, 70, 5) + 0.05 * normal_cdf(k + 1, 35, 5) for k in values]
    observed = [np.mean(lengths <= k) for k in values]
    assert np.max(np.abs(np.subtract(observed, expected))) < 1.95 / math.sqrt(len(lengths))


@pytest.mark.parametrize("low, high, mean", [(52, 200, 69.5), (0, 52, 34.5)])
def test_both_parts_have_a_standard_deviation_of_five(lengths, low, high, mean):
    part = lengths[(lengths >= low) & (lengths < high)]
    assert part.mean() == pytest.approx(mean, abs=4 * 5 / math.sqrt(len(part)))
    assert part.std() == pytest.approx(math.sqrt(25 + 1 / 12), abs=4 * 5 / math.sqrt(2 * len(part)))


def test_windows_have_at_least_five_tokens():
    lengths = [window.nominal_length for window in random_windows(20_000, length=8, max_length=None, seed=0)]
    assert min(lengths) == 5
    assert np.mean(np.equal(lengths, 5)) == pytest.approx(
        0.95 * normal_cdf(6, 8, 5) + 0.05 * normal_cdf(6, 4, 5), abs=0.04
    )


def test_the_half_of_an_odd_length_is_not_rounded_before_the_draw(monkeypatch):
    monkeypatch.setattr("fairseq_plugins.data.windows.FULL_WINDOW_PROBABILITY", 0)
    lengths = [window.nominal_length for window in random_windows(1_000_000, length=35, max_length=None, seed=1)]
    assert np.mean(lengths) == pytest.approx(35 / 2 - 0.5, abs=0.15)


def test_the_limit_caps_windows_and_nothing_else(lengths):
    assert lengths.max() > 85
    windows = random_windows(68 * NUM_WINDOWS, length=70, max_length=80, seed=1)
    capped = [window.nominal_length for window in windows[:-1]][: len(lengths)]
    assert max(capped) == 80
    assert capped == np.minimum(lengths, 80)[: len(capped)].tolist()


def test_the_same_seed_gives_the_same_windows_and_another_epoch_others():
    def windows(seed):
        return random_windows(5000, length=70, max_length=None, seed=seed)

    assert windows((28, 3)) == windows((28, 3))
    assert windows((28, 3)) != windows((28, 4))
    assert windows((28, 3)) != windows((29, 3))
