"""Counting the words of a binarised training text."""

import numpy as np
import pytest
import torch
from binarised_lines import V, counts_of, random_lines, write_split
from fairseq.data import indexed_dataset

from fairseq_plugins.data import word_counts
from fairseq_plugins.data.word_counts import count_words


@pytest.mark.parametrize("vocab_size, dtype", [(V, np.uint16), (70_000, np.uint32), (2**32, np.int64)])
def test_every_word_is_counted_whatever_its_type_in_the_file(vocab_size, dtype, tmp_path):
    lines = random_lines()
    split = write_split(tmp_path, "train", lines, vocab_size=vocab_size)
    assert indexed_dataset.MMapIndexedDataset.Index(f"{split}.idx").dtype == dtype
    counts = count_words(split, V)
    assert counts.dtype == torch.int64 and counts.tolist() == counts_of(lines)


@pytest.mark.parametrize("tokens_at_once", [1, 7])
def test_pieces_are_added_up(tokens_at_once, tmp_path, monkeypatch):
    monkeypatch.setattr(word_counts, "TOKENS_AT_ONCE", tokens_at_once)
    lines = random_lines()
    assert count_words(write_split(tmp_path, "train", lines), V).tolist() == counts_of(lines)


def test_a_text_without_words_has_none(tmp_path):
    assert count_words(write_split(tmp_path, "train", []), V).tolist() == [0] * V


def test_a_word_that_the_dictionary_does_not_have_is_refused(tmp_path):
    with pytest.raises(ValueError, match="train.bin has word 17, but the dictionary has 17 words: binarise the text"):
        count_words(write_split(tmp_path, "train", [[3, 17], [4]]), 17)


def test_another_format_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(
        ValueError, match="train.bin: its words cannot be counted; .*fairseq-preprocess --dataset-impl mmap"
    ):
        count_words(write_split(tmp_path, "train", [[3, 4]], impl="cached"), V)
