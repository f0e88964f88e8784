"""Reading binarised splits and dictionaries."""

import pytest
import torch
from builders import dictionary_of
from fairseq.data import Dictionary, indexed_dataset

from fairseq_plugins.data.text import (
    dictionary_fingerprint,
    load_dictionary,
    load_token_stream,
    load_training_stream,
    split_parts,
)

LINES = ["a b a", "", "c", "b z"]


@pytest.fixture
def dictionary():
    return dictionary_of("abc")


@pytest.fixture
def corpus_write_split(tmp_path, dictionary):
    """Write lines as ``fairseq-preprocess`` does."""

    def write(split, lines, *, impl="mmap"):
        builder = indexed_dataset.make_builder(f"{tmp_path}/{split}.bin", impl=impl, vocab_size=len(dictionary))
        for line in lines:
            builder.add_item(dictionary.encode_line(line, add_if_not_exist=False, append_eos=True))
        builder.finalize(f"{tmp_path}/{split}.idx")
        return str(tmp_path)

    return write


@pytest.mark.parametrize("impl", ["mmap", "lazy"])
def test_lines_are_joined_in_order_with_an_end_mark_each(impl, corpus_write_split, dictionary):
    tokens = load_token_stream(corpus_write_split("train", LINES, impl=impl), "train", dictionary)
    words = ["a", "b", "a", "</s>", "</s>", "c", "</s>", "b", "<unk>", "</s>"]
    assert tokens.dtype == torch.int64
    assert tokens.tolist() == [dictionary.index(word) for word in words]


def test_parts_of_a_split_are_numbered_from_1_on(corpus_write_split):
    for split in ("train", "train1", "train3"):
        data_dir = corpus_write_split(split, LINES)
    assert split_parts(data_dir, "train") == ["train", "train1"] and split_parts(data_dir, "valid") == ["valid"]


def test_the_training_text_has_all_parts(corpus_write_split, dictionary):
    for split, line in (("train", "a b"), ("train1", "c"), ("train3", "b")):
        data_dir = corpus_write_split(split, [line])
    tokens = load_training_stream(data_dir, dictionary)
    assert dictionary.string(tokens, include_eos=True) == "a b </s> c </s>"


def test_a_missing_split_is_named(corpus_write_split, dictionary):
    data_dir = corpus_write_split("train", LINES)
    with pytest.raises(ValueError, match="no split 'valid'.*valid.bin.*prepare the corpus"):
        load_token_stream(data_dir, "valid", dictionary)


@pytest.mark.parametrize("lines, told", [([], "split 'test'.*empty"), (["", "", ""], "split 'test'.*3 blank lines")])
def test_a_split_without_words_is_refused(lines, told, corpus_write_split, dictionary):
    with pytest.raises(ValueError, match=told):
        load_token_stream(corpus_write_split("test", lines), "test", dictionary)


def test_a_dictionary_is_read_with_its_numbers(tmp_path, dictionary):
    dictionary.save(f"{tmp_path}/dict.txt")
    assert load_dictionary(str(tmp_path)).symbols == dictionary.symbols


def test_a_missing_dictionary_is_named(tmp_path):
    with pytest.raises(ValueError, match="dict.txt does not exist.*fairseq-preprocess"):
        load_dictionary(str(tmp_path))


def test_fingerprints_tell_dictionaries_apart_that_number_words_otherwise(dictionary):
    same, swapped, longer = Dictionary(), Dictionary(), Dictionary()
    for word in "abc":
        same.add_symbol(word, n=7)
    for word in "acb":
        swapped.add_symbol(word)
    for word in "abcd":
        longer.add_symbol(word)
    assert dictionary_fingerprint(same) == dictionary_fingerprint(dictionary)
    assert len({dictionary_fingerprint(d) for d in (dictionary, swapped, longer)}) == 3
