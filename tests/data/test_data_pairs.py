"""Folders of binarised pairs."""

import shutil

import pytest
from binarised_data import copy_data
from paths import SMALL_MODELS

from fairseq_plugins.data.pairs import check_split, num_sentences, split_languages


@pytest.fixture
def data(tmp_path):
    return copy_data(SMALL_MODELS / "data/translation", tmp_path / "data")


def add(data, split, pair):
    """Sets of another pair of languages, beside ``src-tgt``."""
    for path in list(data.glob(f"{split}.src-tgt.*")):
        side = dict(zip(("src", "tgt"), pair.split("-")))[path.name.split(".")[2]]
        shutil.copy(path, data / f"{split}.{pair}.{side}{path.suffix}")


def test_language_and_number_of_sentences(data):
    add(data, "valid", "tgt-src")  # another split's pairs are its own
    assert split_languages(data, "test") == ("src", "tgt")
    for languages in (("src", "tgt"), ("tgt", "src")):
        assert num_sentences(data, "test", languages) == 12


@pytest.mark.parametrize("pair", ["other-tgt", "tgt-src"])
def test_of_several_pairs_of_languages_one_must_be_named(pair, data):
    add(data, "test", pair)
    with pytest.raises(ValueError, match=f"has test sets of several pairs of languages, .*{pair}.*: keep them apart"):
        split_languages(data, "test")
    check_split(data, "test", ("src", "tgt"))


def test_a_pair_that_the_split_lacks_is_told(data):
    with pytest.raises(ValueError, match="has no test set of de and tgt, which the model translates, but of src-tgt:"):
        num_sentences(data, "test", ("de", "tgt"))


def test_a_split_that_is_missing_is_told_with_those_that_are_there(data):
    with pytest.raises(ValueError, match="has no dev set: take one of test, train, valid"):
        split_languages(data, "dev")
