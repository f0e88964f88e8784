import io

import pytest
import sentencepiece
from subword_nmt.apply_bpe import BPE

from fairseq_plugins.evaluation.text.text_preparation import load_text_preparation

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


def words_of(preparation, pieces):
    return ["".join(word) for word in preparation.subwords.group(pieces)]


def test_lines_are_tokenised_escaped_and_split_by_the_codes(data):
    pieces = load_text_preparation(data, source="en", target="de").split("Tom's haus, haus!")
    words = "Tom &apos;s haus , haus !"
    assert pieces == BPE(io.StringIO(CODES)).segment(words).split() and pieces.count("haus") == 2
    assert "T@@" in pieces


def test_a_folder_that_does_not_tell_its_preparation_is_warned_of(data, caplog):
    load_text_preparation(data, source="en", target="de")
    assert [record.getMessage() for record in caplog.records] == [
        f"{data} has no prepared.txt of data-prep: its text is taken as tokens of Moses in their own case"
    ]
    caplog.clear()
    (data / "prepared.txt").write_text("tatoeba de-en, 3 merges of subword-nmt, any ratio\n")
    load_text_preparation(data, source="en", target="de")
    assert not caplog.records


def test_a_corpus_that_comes_in_tokens_keeps_them(data):
    (data / "prepared.txt").write_text("gigaword article-title, 3 merges of subword-nmt, any ratio\n")
    preparation = load_text_preparation(data, source="article", target="title")
    line = "-lrb- ap -rrb- it 's ##.# % of u.s. 's haus & co."
    pieces = preparation.split(line)
    assert words_of(preparation, pieces) == line.split() and preparation.join(pieces) == line


def test_a_blank_line_has_no_piece(data, with_sentencepiece):
    (data / "bpe.codes").rename(data / "codes")
    assert load_text_preparation(data, source="de", target="en").split(" \t ") == []


@pytest.mark.parametrize(
    "recipe, tokens",
    [("lowercase, any ratio", "tür"), ("lowercase tokens, any ratio", "tür"), ("any ratio", "Tür")],
)
def test_case_is_that_of_the_preparation(recipe, tokens, data):
    (data / "prepared.txt").write_text(
        f"tatoeba de-en, 3 merges of subword-nmt, {recipe}\ntrain.de: 3 lines, lowercase\n"
    )
    preparation = load_text_preparation(data, source="de", target="en")
    assert words_of(preparation, preparation.split("Tür")) == [tokens]


@pytest.mark.parametrize(
    "recipe, words",
    [("lowercase tokens", "i see . and then no. 5 .".split()), ("lowercase", "i see. and then no . 5 .".split())],
)
def test_tokens_are_those_of_the_order_of_the_preparation(recipe, words, data):
    (data / "prepared.txt").write_text(f"tatoeba en-de, 3 merges of subword-nmt, {recipe}, joined dictionary\n")
    preparation = load_text_preparation(data, source="en", target="de")
    assert words_of(preparation, preparation.split("I see. And then No. 5.")) == words


@pytest.mark.parametrize("line", ["Tom's house, isn't it? \"Yes\" & no.", "It costs 3.50 - really!"])
def test_pieces_become_the_text_again(line, data):
    preparation = load_text_preparation(data, source="en", target="en")
    pieces = preparation.split(line)
    assert len(pieces) > len(line.split()) and preparation.join(pieces) == line


def test_pieces_of_sentencepiece_become_the_text_again(with_sentencepiece):
    preparation = load_text_preparation(with_sentencepiece, source="de", target="de")
    pieces = preparation.split("Das Haus hat ein Dach.")
    assert words_of(preparation, pieces) == ["Das", "Haus", "hat", "ein", "Dach", "."]
    assert preparation.join(pieces) == "Das Haus hat ein Dach."


def test_headlines_are_english(data):
    preparation = load_text_preparation(data, source="article", target="title")
    assert words_of(preparation, preparation.split("Tom's")) == ["Tom", "&apos;s"]
    assert preparation.join(["Tom", "&apos;s", "here"]) == "Tom's here"


def test_data_without_subwords_is_refused_with_what_is_missing(tmp_path):
    with pytest.raises(ValueError, match="has no bpe.codes, sentencepiece.bpe.model, .*: put the subword codes"):
        load_text_preparation(tmp_path, source="de", target="en")


def test_two_models_of_subwords_are_refused(data, with_sentencepiece):
    with pytest.raises(ValueError, match="has bpe.codes and sentencepiece.bpe.model: leave the one"):
        load_text_preparation(data, source="de", target="en")
