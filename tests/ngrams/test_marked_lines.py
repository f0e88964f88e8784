"""Sentence starts in a stream."""

import pytest
import torch

from fairseq_plugins.ngrams.marked_lines import mark_lines

S, E = 0, 2


@pytest.mark.parametrize(
    "stream, words",
    [
        ([5, 6, E, 7, E], [S, 5, 6, E, S, 7, E]),
        ([E, E, 5, E], [S, E, S, E, S, 5, E]),
        ([5, 6], [S, 5, 6]),
        ([5, E, 6], [S, 5, E, S, 6]),
        ([], []),
    ],
)
def test_each_line_has_one_before_it(stream, words, make_dictionary):
    lines = mark_lines(torch.tensor(stream, dtype=torch.int64), make_dictionary(10))
    assert lines.words.tolist() == words and lines.words.dtype == torch.int64
    assert lines.words[lines.places].tolist() == stream
