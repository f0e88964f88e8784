"""The text that a command scores, and the flags that decode it."""

import shutil

import pytest
from paths import SMALL_MODELS

from fairseq_plugins.commands import evaluate
from fairseq_plugins.commands.decode import read_decoding
from fairseq_plugins.commands.evaluate import add_scored_text, read_scored_text
from fairseq_plugins.console import OneLineParser

FLAGS = ["--beam", "--max-tokens", "--remove-bpe"]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder of pairs with the texts beside it."""
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    data.mkdir()
    for side in ("en", "de"):
        (data / f"test.en-de.{side}.idx").touch()
    shutil.copy(SMALL_MODELS / "lstm_encdec_doc.pt", tmp_path / "model.pt")
    for name in ("references.txt", "test.de", "test.en"):
        (tmp_path / name).write_text("text\n")
    return data


def read(*flags, forwarded=()):
    parser = OneLineParser()
    add_scored_text(parser, several_references=False)
    args = parser.parse_args(["data", "--path", "model.pt", "--out", "out", *flags])
    args.forwarded = list(forwarded)
    return args


def chosen(*flags):
    """Beam, batches and subwords as fairseq-generate gets them."""
    arguments = read_decoding(read(*flags)).arguments
    values = [arguments[arguments.index(flag) + 1] for flag in FLAGS[:2]]
    (subwords,) = [text.partition("=")[2] for text in arguments if text.startswith("--remove-bpe=")]
    return [*values, subwords]


def test_flags_replace_the_defaults(data):
    assert chosen() == ["5", "4000", "subword_nmt"]
    assert chosen("--beam", "3", "--max-tokens", "7", "--bpe", "subword_nmt") == ["3", "7", "subword_nmt"]


@pytest.mark.parametrize(
    "name, kind",
    [
        ("bpe.codes", "subword_nmt"),
        ("sentencepiece.bpe.model", "sentencepiece"),
        ("sentencepiece.unigram.model", "sentencepiece"),
    ],
)
def test_the_kind_of_subwords_is_found_in_the_data(name, kind, data):
    (data / name).touch()
    assert chosen()[2] == kind
    assert chosen("--bpe", "wordpiece")[2] == "wordpiece"


def test_several_models_of_subwords_are_refused_unless_the_kind_is_named(data):
    for name in ("bpe.codes", "sentencepiece.bpe.model"):
        (data / name).touch()
    with pytest.raises(ValueError, match="has bpe.codes and sentencepiece.bpe.model: keep only the one"):
        chosen()
    assert chosen("--bpe", "sentencepiece")[2] == "sentencepiece"


def test_an_unknown_kind_of_subwords_is_refused(data, capsys):
    with pytest.raises(SystemExit):
        chosen("--bpe", "sentencpiece")
    assert "argument --bpe: sentencpiece: give subword_nmt or sentencepiece" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--path", "other.pt"], "--path after the --: give it before the --"),
        (["--user-dir=parts"], "--user-dir=parts after the --: give it before the --"),
        (["--gen-subset=valid"], "--gen-subset=valid after the --: give --split before the --"),
        (["--lenpen", "3", "--quiet"], "--quiet after the --: leave it out, the sentences are read from the output"),
        (["--tokenizer", "moses"], "--tokenizer after the --: leave it out, the text is detokenised when it is scored"),
        (["--help"], "--help after the --: leave it out"),
        (["--results-path", "out"], "--results-path after the --: leave it out, --out is where the output goes"),
        (["--score-reference"], "--score-reference after the --: leave it out, references would be scored"),
        (["--prefix-size=3"], "--prefix-size=3 after the --: leave it out, translations would begin with"),
        (["--num-shards", "2"], "--num-shards after the --: leave it out, a decoding is of the whole split"),
        (["--beam=2"], "--beam=2 after the --: give it before the --"),
        (["--max-tokens", "9"], "--max-tokens after the --: give it before the --"),
        (["--remove-bpe"], "--remove-bpe after the --: give --bpe KIND before the --"),
        (["-sde"], "-sde after the --: leave it out, the models decide the direction"),
        (["--target-lang", "de"], "--target-lang after the --: leave it out, the models decide the direction"),
        (["--replace-unk"], "--replace-unk after the --: leave it out, it needs the text of DATA; fairseq-plugins tr"),
        (["--constraints"], "--constraints after the --: leave it out, DATA has no words that a translation must"),
        (["--dataset-impl", "raw"], "--dataset-impl after the --: leave it out, fairseq sees the form of DATA"),
        (["--print-step"], "--print-step after the --: leave it out, models here do not refine in iterations"),
        (["--retain-iter-history"], "--retain-iter-history after the --: leave it out, models here do not refine"),
    ],
)
def test_flags_of_fairseq_that_would_spoil_a_decoding_are_refused(flags, message, data):
    with pytest.raises(ValueError) as refused:
        read_decoding(read(forwarded=flags))
    assert str(refused.value).startswith(message)


def test_other_flags_of_fairseq_are_forwarded(data):
    flags = ["--lenpen", "-3", "--unnormalized", "--no-repeat-ngram-size=3", "--cpu"]
    assert read_decoding(read(forwarded=flags)).arguments[-len(flags) :] == flags


def test_references_that_do_not_fit_leave_earlier_scores(data, monkeypatch):
    (data.parent / "out").mkdir()
    earlier = [data.parent / "out" / name for name in ("scores.txt", "hypotheses.txt")]
    for file in earlier:
        file.write_text("earlier\n")
    text, references = read_scored_text(read("--reference", "references.txt")), {"references.txt": ["text"]}
    monkeypatch.setattr(evaluate, "num_sentences", lambda *_: 2)
    with pytest.raises(ValueError, match="references.txt has 1 lines, and test of .* 2 sentences: line 2 has no"):
        text.decode(references, result="scores.txt")
    assert all(file.read_text() == "earlier\n" for file in earlier)
    monkeypatch.setattr(evaluate, "num_sentences", lambda *_: 1)
    monkeypatch.setattr(type(text.decoding), "run", lambda decoding: None)
    text.decode(references, result="scores.txt")
    assert not any(file.exists() for file in earlier)


def test_the_language_of_a_decoding_is_that_of_the_data(data):
    text = read_scored_text(read("--reference", "references.txt"))
    text.check_side()
    assert text.language == "de"
    shutil.copy(data.parent / "test.en", data.parent / "test.en.gz")
    for name in ("test.en", "test.en.gz"):
        with pytest.raises(ValueError, match=f"{name} ends in en, and model.pt translates en into de"):
            read_scored_text(read("--reference", name)).check_side()


def test_the_language_of_a_text_is_what_its_reference_ends_in(data):
    shutil.copy(data.parent / "test.de", data.parent / "test.de.gz")
    for name in ("test.de", "test.de.gz"):
        args = read("--reference", name)
        args.data = args.path = args.out = None
        assert read_scored_text(args).language == "de"
