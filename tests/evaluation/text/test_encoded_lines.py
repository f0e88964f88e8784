"""Lines of text as numbers of a dictionary."""

import pytest
import torch
from fairseq.data import Dictionary, data_utils
from fairseq_cli import preprocess

from fairseq_plugins.data.text_files import read_lines
from fairseq_plugins.evaluation.text.encoded_lines import encode_lines


@pytest.fixture
def dictionary():
    dictionary = Dictionary()
    for word in ("the", "cat", "sat"):
        dictionary.add_symbol(word)
    return dictionary


def test_words_become_their_numbers_and_each_line_has_its_end_mark(dictionary):
    encoded = encode_lines(["the cat sat", "  sat\tthe  ", "cat"], dictionary)
    assert [sequence.tolist() for sequence in encoded] == [[4, 5, 6, 2], [6, 4, 2], [5, 2]]
    assert all(sequence.dtype == torch.int64 for sequence in encoded)


def test_unknown_words_have_one_number_and_the_vocabulary_does_not_grow(dictionary):
    encoded = encode_lines(["the dog sat", "<unk> a cat"], dictionary)
    assert [sequence.tolist() for sequence in encoded] == [[4, 3, 6, 2], [3, 3, 5, 2]]
    assert len(dictionary) == 7


def test_a_blank_line_has_an_end_mark_alone(dictionary):
    assert [sequence.tolist() for sequence in encode_lines(["", "cat", " "], dictionary)] == [
        [2],
        [5, 2],
        [2],
    ]


def test_a_file_reads_as_the_host_binarises_it(dictionary, tmp_path):
    dictionary.save(str(tmp_path / "dict.txt"))
    text = tmp_path / "text"
    text.write_text("the cat\n\ncat\u00a0sat \u2028 the dog\n sat\tcat\nthe", encoding="utf-8")
    flags = ["--only-source", "--srcdict", tmp_path / "dict.txt", "--testpref", text, "--destdir", tmp_path / "bin"]
    preprocess.main(preprocess.options.get_preprocessing_parser().parse_args([str(flag) for flag in flags]))
    expected = data_utils.load_indexed_dataset(str(tmp_path / "bin/test"), dictionary)
    encoded = encode_lines(read_lines(text), dictionary)
    assert [line.tolist() for line in encoded] == [expected[i].tolist() for i in range(len(expected))]
    assert len(encoded) == 5


@pytest.mark.parametrize(
    "content, told",
    [
        (None, "does not exist"),
        (b"", "is empty"),
        (b"the\ncat \xff\n", "line 2: not UTF-8"),
    ],
)
def test_what_is_no_text_is_refused(content, told, dictionary, tmp_path):
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=told):
        encode_lines(read_lines(path), dictionary)
