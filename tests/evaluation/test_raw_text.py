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
    LONGEST_WORD,
    SubwordNMT,
    compared_case,
    encode_lines,
    load_detokenizer,
    load_pair_texts,
    load_side_text,
    stream_lines,
)
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


@pytest.mark.parametrize(
    "preparation, line, words, back",
    [
        ({"tokenizer": "blanks"}, " The\tcat,  <unk> N ", "The cat, <unk> N", "The cat, <unk> N"),
        ({"tokenizer": "moses"}, "Tom's, isn't it?", "Tom &apos;s , isn &apos;t it ?", "Tom's, isn't it?"),
        ({"tokenizer": "moses", "case": "lower tokens"}, "I see. No. 5.", "i see . no. 5 .", "i see. no. 5."),
        ({"tokenizer": "moses", "case": "lower lines"}, "I see. No. 5.", "i see. no . 5 .", "i see. no. 5."),
        ({"tokenizer": "characters"}, "ab  c\t", "a b _ c", "ab c"),
        ({"tokenizer": "moses"}, "scho\u0308n.", "sch\u00f6n .", "sch\u00f6n."),  # Unicode's composed form
    ],
)
def test_a_line_becomes_words_and_a_line_again(preparation, line, words, back, load):
    text = load(language="en", **preparation)
    assert text.split(line) == words.split() and text.join(words.split()) == back and text.split(" \n") == []


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
    with pytest.raises(ValueError, match="text.json is missing, so it is.*prepare.sh makes it.*--tokenised"):
        load_side_text(tmp_path)


@pytest.mark.parametrize(
    "record",
    [
        "",
        "[]",
        "null",
        '{"tokenizer": "moses", "language": "xx", "case": "kept"}',
        '{"tokenizer": "icu", "case": "kept"}',
    ]
    + ['{"tokenizer": "blanks"}', '{"tokenizer": "blanks", "case": "upper"}', '{"tokenizer": [], "case": "kept"}'],
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


@pytest.fixture
def with_sentencepiece(tmp_path):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([WORDS] * 20), model_writer=model, vocab_size=40, model_type="bpe", minloglevel=2
    )
    (tmp_path / "sentencepiece.bpe.model").write_bytes(model.getvalue())
    return tmp_path


def test_lines_are_tokenised_escaped_and_split_by_the_codes(data):
    pieces = load_pair_texts(data, source="en", target="de")[0].split("Tom's haus, haus!")
    words = "Tom &apos;s haus , haus !"
    assert pieces == BPE(io.StringIO(CODES)).segment(words).split() and pieces.count("haus") == 2
    assert "T@@" in pieces


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
        (
            "blanks",
            "kept",
            "-lrb- ap -rrb- it 's ##.# % of u.s. & co.",
            "-lrb- ap -rrb- it 's ##.# % of u.s. & co.",
            "",
        ),
        ("moses", "kept", "Haustür.", "Haustür .", ""),
        ("moses", "kept", "scho\u0308n.", "sch\u00f6n .", "sch\u00f6n."),  # Unicode's composed form
        ("moses", "lower tokens", "I see. No. 5.", "i see . no. 5 .", "i see. no. 5."),
        ("moses", "lower lines", "I see. And No. 5.", "i see. and no . 5 .", "i see. and no. 5."),
        ("characters", "lower tokens", "Ab c", "a b _ c", "ab c"),
    ],
)
@pytest.mark.parametrize("subwords", ["bpe.codes", None])
def test_pairs_follow_their_record(tokenizer, case, line, words, back, subwords, data, record):
    if subwords is None:
        (data / "bpe.codes").unlink()
    record(tokenizer=tokenizer, case=case, **({"subwords": subwords} if subwords else {}))
    source, target = load_pair_texts(data, source="en", target="de")
    pieces = source.split(line)
    assert source.words(pieces) == words.split()
    assert (pieces == words.split()) == (subwords is None or tokenizer == "characters")
    assert target.join(pieces) == load_detokenizer(data, language="de").join(words.split()) == (back or line)
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


@pytest.mark.parametrize("line", ["Tom's house, isn't it? \"Yes\" & no.", "It costs 3.50 - really!"])
def test_pieces_become_the_text_again(line, data):
    source, target = load_pair_texts(data, source="en", target="en")
    pieces = source.split(line)
    assert len(pieces) > len(line.split()) and target.join(pieces) == line


def test_pieces_of_sentencepiece_become_the_text_again(with_sentencepiece):
    source, target = load_pair_texts(with_sentencepiece, source="de", target="de")
    pieces = source.split("Das Haus hat ein Dach.")
    assert source.words(pieces) == ["Das", "Haus", "hat", "ein", "Dach", "."]
    assert target.join(pieces) == "Das Haus hat ein Dach." and source.split(" \t ") == []


def test_headlines_are_english(data):
    source, target = load_pair_texts(data, source="article", target="title")
    assert source.words(source.split("Tom's")) == ["Tom", "&apos;s"]
    assert target.join(["Tom", "&apos;s", "here"]) == "Tom's here"


def test_data_without_subwords_is_refused_with_what_is_missing(tmp_path):
    with pytest.raises(
        ValueError, match="has no bpe.codes, sentencepiece.bpe.model, .*text.json: copy the subword model"
    ):
        load_pair_texts(tmp_path, source="de", target="en")


@pytest.fixture
def dictionary():
    return dictionary_of(("the", "cat", "sat"))


def test_words_become_their_numbers_each_line_has_its_end_mark_and_the_vocabulary_does_not_grow(dictionary):
    encoded = encode_lines(["the cat sat", "  sat\tthe  ", "", " ", "the dog sat", "<unk> a cat"], dictionary)
    expected = [[4, 5, 6, 2], [6, 4, 2], [2], [2], [4, 3, 6, 2], [3, 3, 5, 2]]
    assert [sequence.tolist() for sequence in encoded] == expected and len(dictionary) == 7
    assert all(sequence.dtype == torch.int64 for sequence in encoded)


def test_words_that_read_like_marks_are_unknown(dictionary):
    (encoded,) = encode_lines(["the </s> cat <pad> <s> sat <unk>"], dictionary)
    assert encoded.tolist() == [4, 3, 5, 3, 3, 6, 3, 2]


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


SUBWORD_FILES_CODES = "#version: 0.2\na b\nab ab</w>\n"


@pytest.fixture
def codes(tmp_path):
    (tmp_path / "bpe.codes").write_text(SUBWORD_FILES_CODES)
    return SubwordNMT(tmp_path / "bpe.codes")


def test_words_up_to_the_limit_are_those_of_the_codes(codes):
    line = f"abab {'ab' * (LONGEST_WORD // 2)} c"
    assert codes.split(line) == BPE(io.StringIO(SUBWORD_FILES_CODES)).segment(line).split()


def test_a_longer_word_is_split_in_stretches_and_joined_again(codes):
    word = "ab" * 500_000
    pieces = codes.split(f"abab {word} c")
    assert ["".join(word) for word in codes.group(pieces)] == ["abab", word, "c"]
    stretch = BPE(io.StringIO(SUBWORD_FILES_CODES)).segment(word[:LONGEST_WORD]).split()
    first = len(codes.split("abab"))
    assert pieces[first : first + len(stretch)] == [*stretch[:-1], f"{stretch[-1]}@@"]


def test_remembered_words_are_bounded(codes, monkeypatch):
    monkeypatch.setattr(raw_text, "MOST_CACHED_WORDS", 10)
    lines = [f"ab{'c' * number} abab" for number in range(1, 50)]
    expected = BPE(io.StringIO(SUBWORD_FILES_CODES))
    for line in lines:
        assert codes.split(line) == expected.segment(line).split()
        assert len(codes.codes.cache) <= 12
