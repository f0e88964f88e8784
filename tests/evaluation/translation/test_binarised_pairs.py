"""What a folder of binarised pairs says of them."""

import shutil
from pathlib import Path

import pytest

from fairseq_plugins.evaluation.translation.binarised_pairs import num_sentences, target_language

PAIRS = Path(__file__).parents[2] / "fixtures/older_checkpoints/data/translation"
NUM_SENTENCES = 12


@pytest.fixture
def data(tmp_path):
    return shutil.copytree(PAIRS, tmp_path / "data")


def add(data, split, pair):
    """Sets of another pair of languages, beside ``src-tgt``."""
    for path in list(data.glob(f"{split}.src-tgt.*")):
        side = dict(zip(("src", "tgt"), pair.split("-")))[path.name.split(".")[2]]
        shutil.copy(path, data / f"{split}.{pair}.{side}{path.suffix}")


def test_language_and_number_of_sentences(data):
    add(data, "valid", "tgt-src")  # another split's pairs are its own
    assert target_language(data, "test") == "tgt"
    assert num_sentences(data, "test") == NUM_SENTENCES


@pytest.mark.parametrize("pair", ["other-tgt", "tgt-src"])
def test_several_pairs_of_languages_are_refused(pair, data):
    add(data, "test", pair)
    for ask in (target_language, num_sentences):
        with pytest.raises(
            ValueError, match=f"has test sets of several pairs of languages, .*{pair}.*: keep them apart"
        ):
            ask(data, "test")


def test_a_split_that_is_missing_is_told_with_those_that_are_there(data):
    with pytest.raises(ValueError, match="has no dev set: take one of test, train, valid"):
        target_language(data, "dev")
