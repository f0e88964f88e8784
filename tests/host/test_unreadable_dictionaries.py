"""Dictionaries with damaged rows; what the host alone says of them."""

import pytest
from fairseq.data import Dictionary


@pytest.mark.parametrize(
    "rows, told",
    [
        (b"a 1\nb 2\na 3\n", "line 3: its word stands there twice: take the file of the training, or run fairseq-"),
        (b"a 1\n\nb 2\n", "line 2: not a word and its count"),
        (b"a 1\nb\xff 2\n", "line 2: not UTF-8"),
    ],
)
def test_a_damaged_row_is_told_by_file_and_number(rows, told, tmp_path):
    path = tmp_path / "dict.txt"
    path.write_bytes(rows)
    with pytest.raises(ValueError) as error:
        Dictionary.load(str(path))
    assert str(error.value).startswith(f"{path}, {told}")


def test_the_host_alone_names_no_row(tmp_path):
    path = tmp_path / "dict.txt"
    path.write_bytes(b"a 1\nb 2\na 3\n")
    with pytest.raises(RuntimeError, match="^Duplicate word found when loading Dictionary: 'a'") as error:
        Dictionary.add_from_file.__wrapped__(Dictionary(), str(path))
    assert "line" not in str(error.value) and str(path) not in str(error.value)


def test_an_overwritten_word_is_the_hosts(tmp_path):
    (tmp_path / "dict.txt").write_text("a 1\n<unk> 2 #fairseq:overwrite\n")
    assert Dictionary.load(str(tmp_path / "dict.txt")).symbols[-2:] == ["a", "<unk>"]


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()], ids=["missing", "a folder"])
def test_a_dictionary_that_cannot_be_opened_is_named(make, tmp_path):
    path = tmp_path / "dict.txt"
    make(path)
    with pytest.raises(ValueError, match=f"{path}: .*: take the file of the training"):
        Dictionary.load(str(path))
