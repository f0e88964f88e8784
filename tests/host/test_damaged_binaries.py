"""Binarised text whose index or words are damaged; what the host alone makes of it."""

import pytest
import torch
from binarised_lines import V, write_split
from builders import make_dictionary
from fairseq.data import data_utils, indexed_dataset

LINES = [[5, 6, 2], [7, 2], [8, 9, 10, 2]]
SECOND_LENGTH = 30  # its place in the index


@pytest.fixture
def split(tmp_path):
    return write_split(tmp_path / "data", "train", LINES)


def make_second_longer(split):
    """The second line's length in the index, from 2 to 3."""
    content = bytearray(split.with_suffix(".idx").read_bytes())
    content[SECOND_LENGTH] += 1
    split.with_suffix(".idx").write_bytes(content)


def test_whole_text_is_what_it_was(split):
    opened = data_utils.load_indexed_dataset(str(split), make_dictionary(V))
    assert [opened[n].tolist() for n in range(len(opened))] == LINES


@pytest.mark.parametrize("impl", ["mmap", "cached"])
def test_the_last_word_of_a_dictionary_is_one(impl, tmp_path):
    split = write_split(tmp_path / "data", "train", [[0, V - 1]], impl=impl)
    assert len(data_utils.load_indexed_dataset(str(split), make_dictionary(V))) == 1
    with pytest.raises(ValueError, match=f"train.bin has word {V - 1}, but the dictionary has {V - 1} words"):
        data_utils.load_indexed_dataset(str(split), make_dictionary(V - 1))


def test_the_host_alone_reads_another_text(split):
    make_second_longer(split)
    opened = indexed_dataset.make_dataset.__wrapped__(str(split), impl="mmap")
    assert torch.equal(opened[1], torch.tensor([7, 2, 8]))
    with pytest.raises(ValueError, match="train.idx is damaged: copy it again, or binarise the text again with"):
        indexed_dataset.make_dataset(str(split), impl="mmap")


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_a_folder_in_place_of_a_file_is_named(suffix, split):
    split.with_suffix(suffix).unlink()
    split.with_suffix(suffix).mkdir()
    with pytest.raises(ValueError, match=f"train{suffix}.*binarise the text again"):
        data_utils.load_indexed_dataset(str(split), make_dictionary(V))
