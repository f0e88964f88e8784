"""Reading binarised splits and dictionaries."""

import pytest
import torch
from binarised_data import write_split
from builders import dictionary_of
from fairseq.data import Dictionary

from fairseq_plugins.data.text import (
    dictionary_fingerprint,
    load_dictionary,
    load_token_stream,
    load_training_stream,
    split_parts,
)

ABC = dictionary_of("abc")
END, UNKNOWN, A, B, C = (ABC.index(word) for word in ("</s>", "<unk>", "a", "b", "c"))


@pytest.mark.parametrize("impl", ["mmap", "lazy"])
def test_lines_are_joined_in_order_with_an_end_mark_each(impl, tmp_path):
    write_split(tmp_path, "train", [[A, B, A, END], [END], [C, END], [B, UNKNOWN, END]], impl=impl)
    tokens = load_token_stream(str(tmp_path), "train", ABC)
    assert tokens.dtype == torch.int64
    assert tokens.tolist() == [A, B, A, END, END, C, END, B, UNKNOWN, END]


def test_parts_of_a_split_are_numbered_from_1_on_and_are_all_read(tmp_path):
    for split, word in (("train", A), ("train1", C), ("train3", B)):
        write_split(tmp_path, split, [[word, END]])
    assert split_parts(tmp_path, "train") == ["train", "train1"] and split_parts(tmp_path, "valid") == ["valid"]
    assert load_training_stream(str(tmp_path), ABC).tolist() == [A, END, C, END]


def test_a_missing_split_is_named(tmp_path):
    with pytest.raises(ValueError, match="no split 'valid'.*valid.bin.*prepare the corpus"):
        load_token_stream(str(tmp_path), "valid", ABC)


@pytest.mark.parametrize(
    "lines, told", [([], "split 'test'.*empty"), ([[END], [END], [END]], "split 'test'.*3 blank lines")]
)
def test_a_split_without_words_is_refused(lines, told, tmp_path):
    write_split(tmp_path, "test", lines)
    with pytest.raises(ValueError, match=told):
        load_token_stream(str(tmp_path), "test", ABC)


def test_a_dictionary_is_read_with_its_numbers_and_a_missing_one_is_named(tmp_path):
    with pytest.raises(ValueError, match="dict.txt does not exist.*fairseq-preprocess"):
        load_dictionary(str(tmp_path))
    ABC.save(f"{tmp_path}/dict.txt")
    assert load_dictionary(str(tmp_path)).symbols == ABC.symbols


def test_fingerprints_tell_dictionaries_apart_that_number_words_otherwise():
    same = Dictionary()
    for word in "abc":
        same.add_symbol(word, n=7)
    assert dictionary_fingerprint(same) == dictionary_fingerprint(ABC)
    others = [ABC, dictionary_of("acb"), dictionary_of("abcd")]
    assert len(set(map(dictionary_fingerprint, others))) == 3
