"""A corpus as parallel rows of text."""

import math
from collections import Counter
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from fairseq_plugins.data.streams import (
    ContiguousStreams,
    Window,
    fixed_windows,
    random_row_offsets,
    random_windows,
)


def make(num_tokens, num_rows, **own):
    return ContiguousStreams(torch.arange(num_tokens), name="text", num_rows=num_rows, **own)


def rotated_windows(streams, length, offsets):
    windows = fixed_windows(len(streams), length=length)
    return [replace(window, row_offsets=offsets) for window in windows]


def batches(streams, length, offsets=()):
    return [streams[window] for window in rotated_windows(streams, length, offsets)]


@pytest.mark.parametrize("num_tokens, num_rows, leftover", [(20, 4, 0), (23, 4, 3), (9, 1, 0), (929_589, 20, 9)])
def test_what_fills_no_row_is_left_over(num_tokens, num_rows, leftover):
    streams = make(num_tokens, num_rows)
    assert streams.num_leftover_tokens == leftover
    assert len(streams) == num_tokens // num_rows - 1


def test_targets_are_one_token_ahead_of_inputs():
    for batch in batches(make(103, 4), 7):
        inputs, target = batch["net_input"]["src_tokens"], batch["target"]
        assert inputs.shape == target.shape
        assert torch.equal(target, inputs + 1)


@pytest.mark.parametrize("length", [1, 7, 25, 1000])
def test_every_token_but_the_first_of_each_row_is_predicted_once(length):
    streams = make(103, 4)
    predicted = Counter(token for batch in batches(streams, length) for token in batch["target"].flatten().tolist())
    assert predicted == Counter(token for row in range(4) for token in range(25 * row + 1, 25 * row + 25))


def test_a_batch_states_its_counts_and_its_place_in_the_stream():
    found = batches(make(103, 4), 7)
    first, *others = found
    assert [batch["net_input"]["position"] for batch in found] == [0, 7, 14, 21]
    assert {batch["net_input"]["stream"] for batch in found} == {"text"}
    assert first["ntokens"] == 28 and first["nsentences"] == 4 and first["id"].tolist() == [0, 1, 2, 3]
    assert first["net_input"]["src_lengths"].tolist() == [7] * 4
    assert others[-1]["ntokens"] == 4 * 3 and others[-1]["nominal_length"] == 7


def test_the_description_counts_all_rows_together():
    expected = "text: 4 rows of 25 tokens, 96 predictions; 3 leftover tokens at the end of the corpus do not fill a row"
    assert make(103, 4).describe().startswith(expected)
    assert make(103, 4, own_rows=slice(2, 4)).describe() == make(103, 4).describe()


@pytest.mark.parametrize("num_tokens", [48, 103])
def test_shares_of_two_processes_are_the_rows_of_one(num_tokens):
    whole = make(num_tokens, 6)
    shares = [make(num_tokens, 6, own_rows=slice(first, first + 3)) for first in (0, 3)]
    assert torch.equal(torch.cat([share.rows for share in shares]), whole.rows)
    assert all(torch.equal(share.rows, whole.rows[share.own_rows]) and share.num_rows == 6 for share in shares)
    assert {len(share) for share in shares} == {len(whole)}
    for window in fixed_windows(len(whole), length=3):
        targets = torch.cat([share[window]["target"] for share in shares])
        assert torch.equal(targets, whole[window]["target"])


@pytest.mark.parametrize("num_tokens, num_rows", [(7, 4), (1, 1), (0, 1)])
def test_a_corpus_that_is_too_short_is_refused_with_the_remedy(num_tokens, num_rows):
    with pytest.raises(ValueError, match=rf"{num_tokens} tokens.*{num_rows} rows.*--batch-size"):
        make(num_tokens, num_rows)


# rows that begin elsewhere


@pytest.mark.parametrize("length", [1, 7, 24, 1000])
def test_every_token_but_the_one_that_a_rotated_row_begins_with_is_predicted_once(length):
    offsets = (0, 1, 13, 24)
    found = batches(make(103, 4), length, offsets)
    predicted = Counter(token for batch in found for token in batch["target"].flatten().tolist())
    firsts = {25 * row + offset for row, offset in enumerate(offsets)}
    assert predicted == Counter(set(range(100)) - firsts)


def test_after_its_last_token_a_rotated_row_goes_on_with_its_first():
    found = batches(make(103, 4), 7, (0, 1, 13, 24))
    inputs = torch.cat([batch["net_input"]["src_tokens"] for batch in found], dim=1)
    targets = torch.cat([batch["target"] for batch in found], dim=1)
    for row, offset in enumerate((0, 1, 13, 24)):
        expected = [25 * row + (offset + place) % 25 for place in range(25)]
        assert inputs[row].tolist() == expected[:-1] and targets[row].tolist() == expected[1:]


def test_loading_workers_serve_rotated_rows():
    streams = make(200, 2)
    windows = rotated_windows(streams, 7, (30, 99))
    loader = DataLoader(
        streams, batch_sampler=[[window] for window in windows], collate_fn=streams.collater, num_workers=2
    )
    served = torch.cat([batch["target"] for batch in loader], dim=1)
    rows = torch.arange(200).view(2, 100)
    assert torch.equal(served, torch.stack([rows[0].roll(-30)[1:], rows[1].roll(-99)[1:]]))


NUM_WINDOWS = 20_000


def assert_covers_in_order(windows, num_predictions):
    covered = [t for window in windows for t in range(window.start, window.start + window.length)]
    assert covered == list(range(num_predictions))


@pytest.fixture(scope="module")
def lengths():
    """Nominal lengths around 70 without a limit, the truncated last window left out."""
    windows = random_windows(68 * NUM_WINDOWS, length=70, max_length=None, seed=1)
    return np.array([window.nominal_length for window in windows[:-1]])


@pytest.mark.parametrize("num_predictions, length", [(5, 1), (1, 70), (69, 70), (70, 70), (71, 70), (1001, 70)])
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
    expected = [0.95 * NormalDist(70, 5).cdf(k + 1) + 0.05 * NormalDist(35, 5).cdf(k + 1) for k in values]
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
    share = 0.95 * NormalDist(8, 5).cdf(6) + 0.05 * NormalDist(4, 5).cdf(6)
    assert np.mean(np.equal(lengths, 5)) == pytest.approx(share, abs=0.04)


def test_the_half_of_an_odd_length_is_not_rounded_before_the_draw(monkeypatch):
    monkeypatch.setattr("fairseq_plugins.data.streams.FULL_WINDOW_PROBABILITY", 0)
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
