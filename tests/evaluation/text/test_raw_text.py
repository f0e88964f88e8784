"""Raw lines as words, by what data-prep tells of them."""

import json

import pytest
from sacremoses import MosesTokenizer

from fairseq_plugins.evaluation.text.raw_text import load_side_text


@pytest.fixture
def load(tmp_path):
    """``load(tokenizer=..., case=..., ...)``: text of a folder with that record."""

    def load(**record):
        (tmp_path / "text.json").write_text(json.dumps({"case": "kept", **record}))
        return load_side_text(tmp_path)

    return load


def test_words_between_blanks(load):
    text = load(tokenizer="blanks")
    assert text.split(" The\tcat,  <unk> N ") == ["The", "cat,", "<unk>", "N"] and text.split(" \n") == []
    assert text.join(["The", "cat,", "N"]) == "The cat, N"


def test_what_is_no_kind_of_text_is_refused(tmp_path):
    with pytest.raises(ValueError, match="text tokenized: give one of raw, tokenised"):
        load_side_text(tmp_path, kind="tokenized")


def test_words_of_moses(load):
    text, line = load(tokenizer="moses", language="en"), "Tom's house, isn't it?"
    assert text.split(line) == MosesTokenizer(lang="en").tokenize(line, escape=True)
    assert text.join(text.split(line)) == line


def test_a_language_of_three_letters_is_taken_as_data_prep_takes_it(load):
    text = load(tokenizer="moses", language="epo")
    assert text.split("Mi vidas.") == ["Mi", "vidas", "."] and text.join(["Mi", "vidas", "."]) == "Mi vidas."


@pytest.mark.parametrize("case, words", [("lower tokens", "i see . and then no. 5 ."), ("lower lines", None)])
def test_case(case, words, load):
    found = load(tokenizer="moses", language="en", case=case).split("I see. And then No. 5.")
    assert found == (words or "i see. and then no . 5 .").split()


def test_characters_with_a_mark_between_words(load):
    text = load(tokenizer="characters")
    assert text.split("ab  c\t") == ["a", "b", "_", "c"] and text.join(["a", "b", "_", "c"]) == "ab c"


def test_words_are_split_by_the_codes_that_lie_there(load, tmp_path):
    (tmp_path / "bpe.codes").write_text("#version: 0.2\nh a\nha u\nhau s</w>\n", encoding="utf-8")
    text = load(tokenizer="moses", language="de", case="lower tokens")
    assert text.split("Haus,") == ["haus", ","]
    pieces = text.split("Haushalt.")
    assert len(pieces) > 3 and text.words(pieces) == ["haushalt", "."] and text.join(pieces) == "haushalt."
    assert [len(word) for word in text.group(pieces)] == [len(pieces) - 1, 1]


def test_tokenised_text_needs_no_record(tmp_path):
    text = load_side_text(tmp_path, kind="tokenised")
    assert text.split("ha@@ us .") == ["ha@@", "us", "."] == text.words(["ha@@", "us", "."])


def test_a_folder_without_the_record_is_refused_with_its_name_and_the_remedy(tmp_path):
    with pytest.raises(ValueError, match="text.json is missing, which tells .*run its .*prepare.sh again.*--tokenised"):
        load_side_text(tmp_path)


@pytest.mark.parametrize(
    "record",
    [
        "",
        "[]",
        "null",
        '{"tokenizer": "moses", "language": "xx", "case": "kept"}',
        '{"tokenizer": "moses", "case": "kept"}',
        '{"tokenizer": "icu", "case": "kept"}',
    ]
    + ['{"tokenizer": "blanks"}', '{"tokenizer": "blanks", "case": "upper"}', '{"tokenizer": [], "case": "kept"}'],
)
def test_a_record_that_tells_something_else_is_refused(record, tmp_path):
    (tmp_path / "text.json").write_text(record)
    with pytest.raises(ValueError, match="text.json is not as data-prep writes it: tokenizer is one of blanks, moses"):
        load_side_text(tmp_path)
