"""Length of common subsequences against rouge-score's table."""

import random

import pytest
from rouge_score import rouge_scorer

from fairseq_plugins.scoring import common_subsequence
from fairseq_plugins.scoring.common_subsequence import common_subsequence_length


@pytest.mark.parametrize("block", [1, 2, 7, 64])
def test_random_texts(block, monkeypatch):
    monkeypatch.setattr(common_subsequence, "BLOCK", block)
    generator = random.Random(block)
    for _ in range(200):
        words = [str(number) for number in range(generator.choice([1, 2, 5, 30]))]
        first, second = (generator.choices(words, k=generator.randint(0, 25)) for _ in range(2))
        table = rouge_scorer._lcs_table(first, second)
        assert common_subsequence_length(first, second) == table[-1][-1]
