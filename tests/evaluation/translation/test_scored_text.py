"""What decides a decoding: flags, the environment and DATA, in this order."""

import shutil
from pathlib import Path

import pytest

from fairseq_plugins.evaluation.translation.scored_text import add_scored_text, read_decoding, read_scored_text
from fairseq_plugins.flags.command import OneLineParser

FLAGS = ["--beam", "--max-tokens", "--remove-bpe"]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder of pairs with the texts beside it."""
    monkeypatch.chdir(tmp_path)
    for name in ("BEAM", "MAX_TOKENS", "BPE"):
        monkeypatch.delenv(name, raising=False)
    data = tmp_path / "data"
    data.mkdir()
    for side in ("en", "de"):
        (data / f"test.en-de.{side}.idx").touch()
    shutil.copy(Path(__file__).parents[2] / "fixtures/older_checkpoints/lstm_encdec_doc.pt", tmp_path / "model.pt")
    for name in ("references.txt", "test.de", "test.en"):
        (tmp_path / name).write_text("text\n")
    return data


def read(*flags):
    parser = OneLineParser()
    add_scored_text(parser, several_references=False)
    args = parser.parse_args(["data", "--path", "model.pt", "--out", "out", *flags])
    args.forwarded = []
    return args


def chosen(*flags):
    """Beam, batches and subwords as fairseq-generate gets them."""
    arguments = read_decoding(read(*flags)).arguments
    values = [arguments[arguments.index(flag) + 1] for flag in FLAGS[:2]]
    (subwords,) = [text.partition("=")[2] for text in arguments if text.startswith("--remove-bpe=")]
    return [*values, subwords]


def test_the_environment_is_the_default_and_flags_win(data, monkeypatch):
    assert chosen() == ["5", "4000", "subword_nmt"]
    monkeypatch.setenv("BEAM", "20")
    monkeypatch.setenv("MAX_TOKENS", "100")
    monkeypatch.setenv("BPE", "sentencepiece")
    assert chosen() == ["20", "100", "sentencepiece"]
    assert chosen("--beam", "3", "--max-tokens", "7", "--bpe", "subword_nmt") == ["3", "7", "subword_nmt"]


@pytest.mark.parametrize(
    "name, kind",
    [
        ("bpe.codes", "subword_nmt"),
        ("sentencepiece.bpe.model", "sentencepiece"),
        ("sentencepiece.unigram.model", "sentencepiece"),
    ],
)
def test_the_kind_of_subwords_is_found_in_the_data(name, kind, data, monkeypatch):
    (data / name).touch()
    assert chosen()[2] == kind
    assert chosen("--bpe", "wordpiece")[2] == "wordpiece"
    monkeypatch.setenv("BPE", "letter")
    assert chosen()[2] == "letter"


def test_several_models_of_subwords_are_refused_unless_the_kind_is_named(data):
    for name in ("bpe.codes", "sentencepiece.bpe.model"):
        (data / name).touch()
    with pytest.raises(ValueError, match="has bpe.codes and sentencepiece.bpe.model: leave the one"):
        chosen()
    assert chosen("--bpe", "sentencepiece")[2] == "sentencepiece"


@pytest.mark.parametrize(
    "flag, value, told",
    [("--beam", "0", "--beam 0: give at least 1"), ("--max-tokens", "-1", "--max-tokens -1: give at least 1")],
)
def test_numbers_below_one_are_refused(flag, value, told, data):
    with pytest.raises(ValueError, match=told):
        chosen(flag, value)


@pytest.mark.parametrize(
    "name, value, told",
    [
        ("BEAM", "many", "argument --beam: invalid int value: 'many'"),
        ("BPE", "sentencpiece", "argument --bpe: sentencpiece: give subword_nmt or sentencepiece"),
    ],
)
def test_the_environment_is_checked_as_if_it_were_typed(name, value, told, data, monkeypatch, capsys):
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        chosen()
    assert told in capsys.readouterr().err


def test_the_language_of_a_decoding_is_that_of_the_data(data):
    text = read_scored_text(read("--reference", "references.txt"))
    text.check_side()
    assert text.language == "de"
    with pytest.raises(ValueError, match="no test set with the target language en, which test.en ends in"):
        read_scored_text(read("--reference", "test.en")).check_side()


def test_the_language_of_a_text_is_what_its_reference_ends_in(data):
    args = read("--reference", "test.de")
    args.data = args.path = args.out = None
    assert read_scored_text(args).language == "de"
