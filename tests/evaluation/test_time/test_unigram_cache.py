"""The unigram cache against counts by hand."""

import pytest
import torch

from fairseq_plugins.evaluation.test_time.flags import read_methods
from fairseq_plugins.evaluation.test_time.methods import EvaluatedText


@pytest.mark.parametrize("length", [1, 8, 500])
@pytest.mark.parametrize("num_rows, window", [(1, 1000), (3, 7), (2, 1)])
def test_it_is_the_count_over_the_last_words(length, num_rows, window, build_tiny_lm, tokens, score_text):
    model = build_tiny_lm("tied").double()
    static = score_text([model], tokens, num_rows=num_rows)
    found = score_text([model], tokens, num_rows=num_rows, window=window, unigram_cache=f"{length},0.4")
    for row, words in enumerate(tokens[: len(tokens) // num_rows * num_rows].view(num_rows, -1).tolist()):
        for t in range(1, len(words)):
            last = words[max(0, t - length) : t]
            share = last.count(words[t]) / len(last)
            expected = torch.log(0.6 * static[row, t - 1].exp() + 0.4 * share)
            torch.testing.assert_close(found[row, t - 1], expected, rtol=1e-12, atol=1e-12)


def test_a_cache_makes_room_for_a_row(make_dictionary):
    text = EvaluatedText(torch.zeros(1000, dtype=torch.long), dictionary=make_dictionary(9), num_rows=10)
    for flags in ({"unigram-cache": "1000000,0.1"}, {"cache": "1000000,0.1,1"}):
        (options,) = read_methods(flags).components
        assert options.build(text).window == 100


def test_in_long_windows(build_tiny_lm, score_text):
    model, tokens = build_tiny_lm("tied").double(), torch.randint(23, (700,))
    found = [score_text([model], tokens, window=window, unigram_cache="200,0.4") for window in (1000, 150, 3)]
    torch.testing.assert_close(found[1:], [found[0]] * 2, rtol=1e-10, atol=1e-10)
