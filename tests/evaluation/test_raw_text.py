"""Raw lines as words and pieces, by the records of data-prep."""

import gzip
import io
import json
import sys
from pathlib import Path

import pytest
import sentencepiece
import torch
from builders import dictionary_of
from fairseq.data import data_utils
from fairseq_cli import preprocess
from subword_nmt.apply_bpe import BPE

from fairseq_plugins.evaluation import raw_text
from fairseq_plugins.evaluation.raw_text import (
    compared_case,
    encode_lines,
    load_detokenizer,
    load_pair_texts,
    load_side_text,
    load_subwords,
    stream_lines,
)
from fairseq_plugins.evaluation.tokenizers import LONGEST_WORD
from fairseq_plugins.files import read_lines


@pytest.fixture
def record(tmp_path):
    """``record(tokenizer=..., case=..., ...)`` writes the record of a folder."""

    def write(**values):
        (tmp_path / "text.json").write_text(json.dumps({"case": "kept", **values}))

    return write


@pytest.fixture
def load(record, tmp_path):
    """``load(tokenizer=..., case=..., ...)``: text of a folder with that record."""

    def load(**values):
        record(**values)
        return load_side_text(tmp_path)

    return load


def test_tokenised_text_needs_no_record(tmp_path):
    text = load_side_text(tmp_path, kind="tokenised")
    assert text.split("ha@@ us .") == ["ha@@", "us", "."] == text.words(["ha@@", "us", "."])


def test_a_folder_without_the_record_is_refused_with_its_name_and_the_remedy(tmp_path):
    with pytest.raises(ValueError, match="text.json is missing, so it is.*prepare.sh makes it.*--tokenised"):
        load_side_text(tmp_path)


@pytest.mark.parametrize(
    "record",
    [
        *("", "[]", "null", '{"tokenizer": [], "case": "kept"}', '{"tokenizer": "icu", "case": "kept"}'),
        *('{"tokenizer": "blanks"}', '{"tokenizer": "blanks", "case": "upper"}'),
        '{"tokenizer": "moses", "language": "xx", "case": "kept"}',
    ],
)
def test_a_record_that_tells_something_else_is_refused(record, tmp_path):
    (tmp_path / "text.json").write_text(record)
    with pytest.raises(ValueError, match="text.json is not as data-prep writes it: tokenizer is one of blanks, moses"):
        load_side_text(tmp_path)


CODES = "#version: 0.2\nh a\nha u\nhau s</w>\n&a p\n&ap o\n&apo s;</w>\nT ü\nTü r</w>\n"
WORDS = "Das Haus hat eine Tür und ein Dach , und Tom &apos;s Hund ist im Haus ."


@pytest.fixture
def data(tmp_path):
    (tmp_path / "bpe.codes").write_text(CODES, encoding="utf-8")
    return tmp_path


def test_lines_are_tokenised_escaped_and_split_by_the_codes(data, load):
    expected = BPE(io.StringIO(CODES)).segment("Tom &apos;s haus , haus !").split()
    for text in (load(tokenizer="moses", language="en"), load_pair_texts(data, source="en", target="de")[0]):
        pieces = text.split("Tom's haus, haus!")
        assert pieces == expected and pieces.count("haus") == 2 and "T@@" in pieces
        assert [len(word) for word in text.group(pieces)][2:] == [1, 1, 1, 1]


def test_a_folder_that_does_not_tell_its_preparation_is_warned_of(data, record, caplog):
    load_pair_texts(data, source="en", target="de")
    assert [one.getMessage() for one in caplog.records] == [
        f"{data} has no text.json of data-prep: its text is taken as tokens of Moses in their own case"
    ]
    caplog.clear()
    record(tokenizer="moses")
    load_pair_texts(data, source="en", target="de")
    assert not caplog.records


@pytest.mark.parametrize(
    "tokenizer, case, line, words, back",
    [
        ("blanks", "kept", " The\tap, <unk>  & u.s. ", "The ap, <unk> & u.s.", "The ap, <unk> & u.s."),
        ("moses", "kept", "Tom's, isn't it?", "Tom &apos;s , isn &apos;t it ?", "Tom's, isn't it?"),
        ("moses", "kept", "scho\u0308n.", "sch\u00f6n .", "sch\u00f6n."),  # Unicode's composed form
        ("moses", "lower tokens", "I see. No. 5.", "i see . no. 5 .", "i see. no. 5."),
        ("moses", "lower lines", "I see. And No. 5.", "i see. and no . 5 .", "i see. and no. 5."),
        ("characters", "lower tokens", "Ab  c\t", "a b _ c", "ab c"),
    ],
)
@pytest.mark.parametrize("subwords", ["bpe.codes", None])
def test_text_follows_its_record(tokenizer, case, line, words, back, subwords, data, load):
    if subwords is None:
        (data / "bpe.codes").unlink()
    of_one_side = load(tokenizer=tokenizer, case=case, language="en", **({"subwords": subwords} if subwords else {}))
    for text in (of_one_side, *load_pair_texts(data, source="en", target="de")):
        pieces = text.split(line)
        assert text.words(pieces) == words.split()
        assert (pieces == words.split()) == (subwords is None or tokenizer == "characters")
        assert text.join(pieces) == load_detokenizer(data, language="de").join(words.split()) == back
        assert text.split(" \n") == []
    assert compared_case(data) == ("kept" if case == "kept" else "ignored")


def test_subwords_that_are_recorded_and_missing_are_named(data, record):
    record(tokenizer="moses", subwords="sentencepiece.bpe.model")
    with pytest.raises(ValueError, match="lacks sentencepiece.bpe.model, by which its text was split: copy the whole"):
        load_pair_texts(data, source="de", target="en")


@pytest.fixture
def hugging_face(tmp_path):
    """A byte-level BPE in ``tokenizer.json`` beside the record."""
    tokenizers = pytest.importorskip("tokenizers", reason="the library tokenizers is not installed")
    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator([WORDS] * 5, vocab_size=290, show_progress=False)
    bpe.save(str(tmp_path / "tokenizer.json"))
    return bpe


def test_a_tokenizer_of_hugging_face_splits_and_joins(hugging_face, record, data, load):
    (data / "bpe.codes").unlink()
    line, expected = "Das Haus hat Türen, Tom's.", hugging_face.encode("Das Haus hat Türen, Tom's.").tokens
    record(tokenizer="hf:tokenizer.json")
    for text in (load(tokenizer="hf:tokenizer.json"), *load_pair_texts(data, source="de", target="en")):
        assert text.split(line) == expected and text.join([*expected, "<unk>"]) == line and text.split(" ") == []


def test_a_tokenizer_of_hugging_face_neither_cuts_nor_fills_lines(hugging_face, load, tmp_path):
    expected = hugging_face.encode(WORDS).tokens
    hugging_face.enable_truncation(3), hugging_face.enable_padding(length=90)
    hugging_face.save(str(tmp_path / "tokenizer.json"))
    assert load(tokenizer="hf:tokenizer.json").split(WORDS) == expected


def test_what_a_tokenizer_of_hugging_face_lacks_is_told(load, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match=r"text.json: .*x.json needs the library tokenizers: pip install '.*\[hf\]'"):
        load(tokenizer="hf:x.json")


def test_a_file_that_is_no_tokenizer_is_refused(hugging_face, load, tmp_path):
    with pytest.raises(ValueError, match="x.json does not exist"):
        load(tokenizer="hf:x.json")
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ValueError, match="x.json is no file of a HuggingFace tokenizer"):
        load(tokenizer="hf:x.json")


def test_pieces_of_sentencepiece_become_the_text_again(tmp_path):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([WORDS] * 20), model_writer=model, vocab_size=40, model_type="bpe", minloglevel=2
    )
    (tmp_path / "sentencepiece.bpe.model").write_bytes(model.getvalue())
    source, target = load_pair_texts(tmp_path, source="de", target="de")
    pieces = source.split("Das Haus hat ein Dach.")
    assert source.words(pieces) == ["Das", "Haus", "hat", "ein", "Dach", "."]
    assert target.join(pieces) == "Das Haus hat ein Dach." and source.split(" \t ") == []


def test_headlines_are_english(data):
    line = "Tom's house, isn't it? \"Yes\" & no, 3.50 - really!"
    source, target = load_pair_texts(data, source="article", target="title")
    pieces = source.split(line)
    assert source.words(pieces)[:2] == ["Tom", "&apos;s"] and target.join(pieces) == line


def test_data_without_subwords_is_refused_with_what_is_missing(tmp_path):
    with pytest.raises(
        ValueError, match="has no bpe.codes, sentencepiece.bpe.model, .*text.json: copy the subword model"
    ):
        load_pair_texts(tmp_path, source="de", target="en")


@pytest.fixture
def dictionary():
    return dictionary_of(("the", "cat", "sat"))


def test_words_become_numbers_and_those_that_read_like_marks_are_unknown(dictionary):
    encoded = encode_lines(["the cat sat", "  sat\tthe  ", "", " ", "a </s> cat <pad> <s> sat <unk>"], dictionary)
    expected = [[4, 5, 6, 2], [6, 4, 2], [2], [2], [3, 3, 5, 3, 3, 6, 3, 2]]
    assert [sequence.tolist() for sequence in encoded] == expected and len(dictionary) == 7
    assert all(sequence.dtype == torch.int64 for sequence in encoded)


def test_a_file_reads_as_fairseq_binarises_it(dictionary, tmp_path):
    dictionary.save(str(tmp_path / "dict.txt"))
    text = tmp_path / "text"
    text.write_text("the cat\n\ncat\u00a0sat \u2028 the dog\n sat\tcat\nthe", encoding="utf-8")
    flags = ["--only-source", "--srcdict", tmp_path / "dict.txt", "--testpref", text, "--destdir", tmp_path / "bin"]
    preprocess.main(preprocess.options.get_preprocessing_parser().parse_args([str(flag) for flag in flags]))
    expected = data_utils.load_indexed_dataset(str(tmp_path / "bin/test"), dictionary)
    encoded = encode_lines(read_lines(text), dictionary)
    assert [line.tolist() for line in encoded] == [expected[i].tolist() for i in range(len(expected))]
    assert len(encoded) == 5


def test_files_are_one_text_whose_lines_end_at_newlines_only(tmp_path):
    (tmp_path / "one").write_bytes("eins\r\n\nzwei\u2028drei".encode())
    (tmp_path / "two").write_bytes(b"vier\n")
    assert list(stream_lines([tmp_path / "one", tmp_path / "two"])) == ["eins", "", "zwei\u2028drei", "vier"]


def test_packed_files_and_byte_order_marks_are_read_as_text(tmp_path, monkeypatch):
    marked = "\ufeffeins\n".encode()
    (tmp_path / "one").write_bytes(gzip.compress(marked))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(marked)))
    assert list(stream_lines([tmp_path / "one", Path("-")])) == ["eins", "eins"]


def test_a_line_that_is_no_text_is_named_after_those_before_it_and_a_missing_file_before(tmp_path):
    (tmp_path / "one").write_bytes(b"eins\n\xff\n")
    lines = stream_lines([tmp_path / "one"])
    assert next(lines) == "eins"
    with pytest.raises(ValueError, match="one, line 2: not UTF-8"):
        next(lines)
    with pytest.raises(ValueError, match="two does not exist"):
        stream_lines([tmp_path / "one", tmp_path / "two"])


def test_an_empty_text_is_refused(tmp_path, monkeypatch):
    (tmp_path / "one").write_text("")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(ValueError, match="one and standard input is empty"):
        next(stream_lines([tmp_path / "one", Path("-")]))


@pytest.fixture
def codes(data):
    return load_subwords(data)


def test_a_word_is_split_in_stretches_only_above_the_limit(codes):
    stretch, word = "ha" * (LONGEST_WORD // 2), "ha" * 500_000
    expected = BPE(io.StringIO(CODES)).segment(f"haus {stretch}").split()
    assert codes.split(f"haus {stretch} c") == [*expected, "c"]
    pieces = codes.split(f"haus {word} c")
    assert pieces[: len(expected)] == [*expected[:-1], f"{expected[-1]}@@"]
    assert ["".join(word) for word in codes.group(pieces)] == ["haus", word, "c"]


def test_remembered_words_are_bounded(codes, monkeypatch):
    monkeypatch.setattr(raw_text, "MOST_CACHED_WORDS", 10)
    expected = BPE(io.StringIO(CODES))
    for number in range(1, 50):
        line = f"ha{'c' * number} haus"
        assert codes.split(line) == expected.segment(line).split()
        assert len(codes.codes.cache) <= 12
