"""Codes of subword-nmt where words are long or many."""

import io

import pytest
from subword_nmt.apply_bpe import BPE

from fairseq_plugins.evaluation.text import subwords
from fairseq_plugins.evaluation.text.subwords import LONGEST_WORD, SubwordNMT

CODES = "#version: 0.2\na b\nab ab</w>\n"


@pytest.fixture
def codes(tmp_path):
    (tmp_path / "bpe.codes").write_text(CODES)
    return SubwordNMT(tmp_path / "bpe.codes")


def test_words_up_to_the_limit_are_those_of_the_codes(codes):
    line = f"abab {'ab' * (LONGEST_WORD // 2)} c"
    assert codes.split(line) == BPE(io.StringIO(CODES)).segment(line).split()


def test_a_longer_word_is_split_in_stretches_and_joined_again(codes):
    word = "ab" * 500_000
    pieces = codes.split(f"abab {word} c")
    assert ["".join(word) for word in codes.group(pieces)] == ["abab", word, "c"]
    stretch = BPE(io.StringIO(CODES)).segment(word[:LONGEST_WORD]).split()
    first = len(codes.split("abab"))
    assert pieces[first : first + len(stretch)] == [*stretch[:-1], f"{stretch[-1]}@@"]


def test_remembered_words_are_bounded(codes, monkeypatch):
    monkeypatch.setattr(subwords, "MOST_CACHED_WORDS", 10)
    lines = [f"ab{'c' * number} abab" for number in range(1, 50)]
    expected = BPE(io.StringIO(CODES))
    for line in lines:
        assert codes.split(line) == expected.segment(line).split()
        assert len(codes.codes.cache) <= 12
