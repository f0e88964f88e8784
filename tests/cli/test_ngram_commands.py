"""train_ngram and evaluate_ngram, run in this process on a small binarised text."""

import json
import logging
import math

import pytest
from binarised_lines import write_split

from fairseq_plugins.cli.evaluate_ngram import EvaluateNGram
from fairseq_plugins.cli.train_ngram import TrainNGram
from fairseq_plugins.data.text import load_token_stream
from fairseq_plugins.ngrams.model import NGramModel

V = 10
TEST = [[5, 3, 2], [2], [9, 5, 6, 2]]


@pytest.fixture
def dictionary(make_dictionary):
    return make_dictionary(V)


@pytest.fixture
def data(dictionary, tmp_path, caplog):
    caplog.set_level(logging.WARNING)  # commands do so, too; here the level before is restored
    folder = tmp_path / "data bin"
    write_split(folder, "train", [[4, 5, 3, 2], [5, 6, 2], [3, 5, 6, 2], [2]], vocab_size=V)
    write_split(folder, "test", TEST, vocab_size=V)
    dictionary.save(str(folder / "dict.txt"))
    return folder


def test_from_a_text_to_a_perplexity(data, dictionary, tmp_path, capsys):
    path = tmp_path / "my model.arpa.gz"
    TrainNGram().main([data, "--order", 3, "--out", path])
    told = capsys.readouterr()
    assert told.out.splitlines()[0] == "words predicted 8"
    assert [line.split()[:2] for line in told.out.splitlines()[2:]] == [["1", "9"], ["2", "10"], ["3", "7"]]
    (warning,) = told.err.splitlines()
    assert "the counts of order 1, 2, 3 define no discounts (small texts, few different words): " in warning
    assert warning.endswith(": 0.5, 1, 1.5 are taken there")
    TrainNGram().main([data, "--order", 3, "--out", path, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["words"] == 8 and [(one["order"], one["ngrams"]) for one in found["orders"]] == [
        (1, 9),
        (2, 10),
        (3, 7),
    ]
    assert all((one["values"], one["source"]) == ([0.5, 1, 1.5], "fallback") for one in found["orders"])

    tokens = load_token_stream(data, "test", dictionary)
    nll = -NGramModel.read_arpa(path, dictionary).log_probs(tokens)
    EvaluateNGram().main([data, "--path", path, "--json"])
    figures = json.loads(capsys.readouterr().out)
    assert "evaluate_ngram" in figures["command"]
    assert figures["num_tokens"] == 8 and figures["num_unknown"] == 1
    assert figures["perplexity"] == pytest.approx(math.exp(nll.mean()), rel=1e-12)
    assert figures["perplexity_without_first_token"] == pytest.approx(math.exp(nll[1:].mean()), rel=1e-12)
    EvaluateNGram().main([data, "--path", path, "--split", "train"])
    printed = dict(line.rsplit(None, 1) for line in capsys.readouterr().out.splitlines() if "NLL" not in line)
    assert printed["tokens predicted"] == "12" and float(printed["perplexity"]) < figures["perplexity"]


def test_all_parts_of_the_training_text_are_counted(data, tmp_path):
    lines = [[4, 5, 3, 2], [5, 6, 2], [3, 5, 6, 2], [2]], [[7, 8, 7, 2]]
    write_split(data, "train1", lines[1], vocab_size=V)
    TrainNGram().main([data, "--order", 2, "--out", tmp_path / "parts.arpa"])
    for part in ("train.bin", "train.idx", "train1.bin", "train1.idx"):
        (data / part).unlink()
    write_split(data, "train", [*lines[0], *lines[1]], vocab_size=V)
    TrainNGram().main([data, "--order", 2, "--out", tmp_path / "whole.arpa"])
    assert (tmp_path / "parts.arpa").read_bytes() == (tmp_path / "whole.arpa").read_bytes()


def test_a_cache_of_the_last_words(data, tmp_path, capsys):
    path = tmp_path / "model.arpa"
    TrainNGram().main([data, "--order", 2, "--out", path])
    nll = []
    for flags in ([], ["--unigram-cache", "3,0"], ["--unigram-cache", "3,0.2"]):
        capsys.readouterr()
        EvaluateNGram().main([data, "--path", path, "--json", *flags])
        nll.append(json.loads(capsys.readouterr().out)["nll"])
    assert nll[0] == nll[1] != nll[2]


def fail(command, arguments, capsys):
    """The one line that a command ends with."""
    with pytest.raises(SystemExit) as raised:
        command.main(arguments)
    (line,) = capsys.readouterr().err.splitlines()
    assert raised.value.code == 2
    return line


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--order", 0], "--order 0: give at least 1"),
        (["--order", 9], "order 9: the longest line has 5 words, both its marks included"),
        (["--split", "valid"], "there is no split 'valid'"),
        (["--split", "empty"], "split 'empty' in"),
        (["--split", "blank"], "2 blank lines and no word"),
        (["--split", "marked"], "the text holds <s>"),
    ],
)
def test_wrong_texts_and_orders_write_nothing(flags, message, data, tmp_path, capsys):
    write_split(data, "empty", [], vocab_size=V)
    write_split(data, "blank", [[2], [2]], vocab_size=V)
    write_split(data, "marked", [[4, 0, 2]], vocab_size=V)
    assert message in fail(TrainNGram(), [data, "--out", tmp_path / "out.arpa", *flags], capsys)
    assert not (tmp_path / "out.arpa").exists()


def test_an_output_that_cannot_be_written_is_refused(data, tmp_path, capsys):
    assert "make it first" in fail(TrainNGram(), [data, "--out", tmp_path / "no/out.arpa"], capsys)


def test_a_missing_model_is_named(data, tmp_path, capsys):
    assert "no.arpa does not exist" in fail(EvaluateNGram(), [data, "--path", tmp_path / "no.arpa"], capsys)


def test_a_wrong_cache_is_refused(data, tmp_path, capsys):
    flags = ["--path", tmp_path / "no.arpa", "--unigram-cache", "100"]
    assert "--unigram-cache 100: give it as WINDOW,WEIGHT" in fail(EvaluateNGram(), [data, *flags], capsys)


def test_a_backoff_weight_that_makes_no_probabilities_is_refused(data, tmp_path, capsys):
    path = tmp_path / "model.arpa"
    TrainNGram().main([data, "--order", 2, "--out", path])
    lines = path.read_text().splitlines()
    changed = next(n for n, line in enumerate(lines) if line.split("\t")[1:2] == ["w1"])
    lines[changed] = "\t".join([*lines[changed].split("\t")[:2], "2.5"])
    path.write_text("\n".join(lines) + "\n")
    capsys.readouterr()
    told = fail(EvaluateNGram(), [data, "--path", path], capsys)
    assert "model.arpa is damaged: after 'w1' the probabilities of all words sum to" in told
    assert told.endswith("with its back-off weight of 2.5: normalise the file or estimate the model again")
