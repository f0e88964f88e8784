"""Perplexity by lm eval and ngram eval: test-time methods, several models, every way to ask for it."""

import io
import json
import logging
import math
import os
import shutil
import sys
from types import SimpleNamespace

import fairseq_cli.eval_lm
import fairseq_cli.validate
import pytest
from binarised_data import copy_data, write_split
from builders import make_dictionary
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.data import Dictionary, data_utils
from paths import PLUGINS, SMALL_MODELS
from short_trainings import FAMILIES
from typed_commands import type_command

import fairseq_plugins
from fairseq_plugins.data.text import load_token_stream
from fairseq_plugins.evaluation.checkpoints import load_with_task
from fairseq_plugins.ngrams.model import NGramModel
from fairseq_plugins.reports.comparison import PerplexityMetric

ALL = [
    *("--cache", "50,0.1,0.5", "--cache-start", "first", "--unigram-cache", "20,0.05", "--temperature", "0.95"),
    *("--dropout-samples", 2, "--dropout-scale", 0.5, "--dynamic", "rms", "--dynamic-rows", 4, "--dynamic-segment", 10),
]


@pytest.fixture
def checkpoint(trained, tmp_path):
    """A copy, beside which files may be written."""
    return shutil.copy(trained / "checkpoint_best.pt", tmp_path / "checkpoint_best.pt")


def test_methods_together_and_what_they_leave_on_disk(checkpoint, data, tmp_path, evaluate_here):
    static = evaluate_here(data, "--path", checkpoint)
    found = evaluate_here(data, "--path", checkpoint, *ALL)
    assert static["methods"] == {} and found["methods"]["cache"] == "50,0.1,0.5" and len(found["methods"]) == 9
    assert found["num_tokens"] == static["num_tokens"] and found["num_unknown"] == static["num_unknown"]
    assert found["words_per_second"] > 0 and math.isfinite(found["nll"])
    assert found["nll"] != pytest.approx(static["nll"], rel=1e-4)
    kept = tmp_path / "checkpoint_best.gradients-4x10.pt"
    written = kept.stat().st_mtime_ns
    again = evaluate_here(data, "--path", checkpoint, *ALL)
    assert again["nll"] == found["nll"] and kept.stat().st_mtime_ns == written
    ensemble = evaluate_here(data, "--path", checkpoint, checkpoint, *ALL[:8])
    assert ensemble["nll"] == pytest.approx(evaluate_here(data, "--path", checkpoint, *ALL[:8])["nll"], rel=1e-12)


def test_what_is_tuned_on_valid_scores_the_split(checkpoint, data, tmp_path, evaluate_here):
    grid = ["--tune", "cache=20:60,0.05:0.2,0.5", "temperature=0.9:1", "--cache-start", "first"]
    found = evaluate_here(data, "--path", checkpoint, *grid)
    choice = json.loads((tmp_path / "checkpoint_best.methods.json").read_text())
    assert choice["split"] == "valid" and "--tune cache=20:60" in choice["command"] and len(choice["grid"]) == 8
    assert choice["perplexity"] == min(point["perplexity"] for point in choice["grid"])
    assert found["methods"] == choice["flags"] and choice["flags"]["cache-start"] == "first"
    flags = [f"--{name}={value}" for name, value in choice["flags"].items()]
    assert evaluate_here(data, "--path", checkpoint, *flags)["nll"] == found["nll"]
    on_valid = evaluate_here(data, "--path", checkpoint, *flags, "--split", "valid")
    assert on_valid["perplexity"] == pytest.approx(choice["perplexity"], rel=1e-12)


def test_a_choice_that_could_not_be_written_is_told_before_the_search(checkpoint, data, refuse, monkeypatch):
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK and access(path, mode))  # also for root
    told = refuse("lm eval", data, "--path", checkpoint, "--tune", "temperature=0.9:1", "--cpu")
    path = checkpoint.with_name("checkpoint_best.methods.json")
    assert f"--tune writes its choice to {path}, and nothing can be written there: copy the checkpoint to anoth" in told


def test_the_text_names_methods_and_their_cost(checkpoint, data, printed_by):
    *_, speed, methods = printed_by("lm eval", data, "--path", checkpoint, "--temperature", 0.9).splitlines()
    assert speed.startswith("words per second")
    assert methods.split(maxsplit=2) == ["test-time", "methods", "--temperature=0.9"]


# a text has one perplexity, however it is asked for

LINE = "the small dog finds a bone near the river"
STREAM_FLAGS = ["--task", "stateful_lm", "--tokens-per-sample", 5]


@pytest.fixture
def one_line(tmp_path):
    """Data whose valid split is a line after an end mark, and so begins as a text on its own does."""
    folder = tmp_path / "data"
    folder.mkdir()
    shutil.copy(SMALL_MODELS / "data/lm/dict.txt", folder)
    (folder / "text.json").write_text('{"tokenizer": "blanks", "case": "lower tokens"}\n')
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    line = [dictionary.index(word) for word in LINE.split()]
    assert dictionary.unk() not in line
    write_split(folder, "valid", [[dictionary.eos()], [*line, dictionary.eos()]], vocab_size=len(dictionary))
    return folder


@pytest.fixture(params=["DOC", "FPNN", "Input-to-Output Gate"])
def model(request, tmp_path, run_here):
    """A checkpoint of a family of models two updates old."""
    flags = ["--max-update", 2, "--save-dir", tmp_path / "trained"]
    run_here(fairseq_cli.train, *FAMILIES[request.param], *flags)
    return tmp_path / "trained/checkpoint_last.pt"


def by_score_text(data, model, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{LINE}\n".encode())))
    type_command("lm score", [str(data), "--path", str(model), "--json", "--cpu"])
    scored = json.loads(capsys.readouterr().out)
    return -scored["log_prob"] / len(scored["tokens"])


def by_eval_lm(data, model, monkeypatch, run_here):
    """The function's value, of which the command shows two digits."""
    found = []
    evaluate = fairseq_cli.eval_lm.eval_lm
    monkeypatch.setattr(fairseq_cli.eval_lm, "eval_lm", lambda **given: found.append(evaluate(**given)) or found[-1])
    run_here(fairseq_cli.eval_lm, data, "--path", model, "--gen-subset", "valid", *STREAM_FLAGS)
    return found[0]["loss"] * math.log(2)


def by_validate(data, model, monkeypatch, run_here):
    """From what the criterion hands to the log, which shows two digits."""
    logged = []
    criterion = CRITERION_REGISTRY["regularized_cross_entropy"]
    forward = criterion.forward

    def recorded(self, *args, **given):
        result = forward(self, *args, **given)
        logged.append(result[2])
        return result

    monkeypatch.setattr(criterion, "forward", recorded)
    run_here(fairseq_cli.validate, data, "--path", model, "--valid-subset", "valid", "--batch-size", 1, *STREAM_FLAGS)
    total = sum(float(one.get("nll_loss", one["loss"])) for one in logged)
    return total / sum(one["ntokens"] for one in logged)


def test_every_way_gives_one_perplexity(model, one_line, evaluate_here, run_here, monkeypatch, capsys):
    figures = evaluate_here(one_line, "--path", model, "--split", "valid")
    assert figures["num_tokens"] == len(LINE.split()) + 1
    loaded = fairseq_plugins.load(model, data=one_line)
    found = {
        "Python": math.log(loaded.perplexity(f"{LINE}\n")),
        "lm score": by_score_text(one_line, model, monkeypatch, capsys),
        "fairseq-eval-lm": by_eval_lm(one_line, model, monkeypatch, run_here),
        "fairseq-validate": by_validate(one_line, model, monkeypatch, run_here),
    }
    assert found == pytest.approx(dict.fromkeys(found, figures["nll"]), rel=1e-6)


# Transformers and fairseq's own models beside recurrent ones

DATA = SMALL_MODELS / "data/lm"
SIZES = [f"--decoder-{size}" for size in ("embed-dim=8", "ffn-embed-dim=16", "attention-heads=2", "layers=1")]
SLIDING = {
    "transformer_lm": SIZES,
    "lstm_lm": [f"--decoder-{name}-dim=8" for name in ("embed", "out-embed")] + ["--decoder-hidden-size=8"],
    "transformer_lm_doc": SIZES,
}
LENGTH = 8


@pytest.fixture
def after_a_blank_line(tmp_path):
    """Data whose test split is the usual one after an end mark, which fairseq reads before every text."""
    folder, dictionary = tmp_path / "data", Dictionary.load(str(DATA / "dict.txt"))
    copy_data(DATA, folder)
    lines = data_utils.load_indexed_dataset(str(DATA / "test"), dictionary)
    lines = [[dictionary.eos()], *(lines[number].tolist() for number in range(len(lines)))]
    write_split(folder, "test", lines, vocab_size=len(dictionary))
    return folder


@pytest.mark.parametrize("arch", SLIDING)
def test_models_that_slide_have_fairseqs_perplexity(
    arch, after_a_blank_line, tmp_path, monkeypatch, run_here, evaluate_here
):
    evaluate, found = fairseq_cli.eval_lm.eval_lm, []
    monkeypatch.setattr(fairseq_cli.eval_lm, "eval_lm", lambda **given: found.append(evaluate(**given)) or found[-1])
    flags = ["--task", "language_modeling", "--arch", arch, *SLIDING[arch], "--tokens-per-sample", LENGTH, "--cpu"]
    flags += ["--max-update", 2, "--optimizer", "adam", "--lr", 0.01, "--batch-size", 4, "--save-dir", tmp_path]
    run_here(fairseq_cli.train, DATA, *flags, "--user-dir", PLUGINS)
    checkpoint = tmp_path / "checkpoint_last.pt"
    context = ["--tokens-per-sample", LENGTH, "--context-window", LENGTH // 2, "--batch-size", 1]
    run_here(fairseq_cli.eval_lm, DATA, "--path", checkpoint, *context, "--user-dir", PLUGINS)
    figures = evaluate_here(after_a_blank_line, "--path", checkpoint, "--window", 7)
    assert figures["nll"] == pytest.approx(float(found[-1]["loss"]) * math.log(2), rel=1e-6)
    model, *_ = load_with_task(checkpoint, after_a_blank_line)
    compared = PerplexityMetric(after_a_blank_line).measure(SimpleNamespace(model=model, checkpoint=checkpoint))
    assert compared["test_perplexity"] == pytest.approx(figures["perplexity"], rel=1e-6)


def test_streams_are_not_for_fairseqs_models(tmp_path, run_here):
    flags = ["--task", "stateful_lm", "--arch", "lstm_lm", "--batch-size", 4, "--max-update", 1, "--optimizer", "adam"]
    with pytest.raises(ValueError, match="with --task language_modeling$"):
        run_here(fairseq_cli.train, DATA, *flags, "--save-dir", tmp_path)


# ngram train and ngram eval on a small binarised text

V = 10
TEST = [[5, 3, 2], [2], [9, 5, 6, 2]]


@pytest.fixture
def dictionary():
    return make_dictionary(V)


@pytest.fixture
def ngram_data(dictionary, tmp_path, caplog):
    caplog.set_level(logging.WARNING)  # commands do so, too; here the level before is restored
    folder = tmp_path / "data bin"
    write_split(folder, "train", [[4, 5, 3, 2], [5, 6, 2], [3, 5, 6, 2], [2]], vocab_size=V)
    write_split(folder, "test", TEST, vocab_size=V)
    dictionary.save(str(folder / "dict.txt"))
    return folder


def test_from_a_text_to_a_perplexity(ngram_data, dictionary, tmp_path, capsys):
    path = tmp_path / "my model.arpa.gz"
    type_command("ngram train", [ngram_data, "--order", 3, "--out", path])
    told = capsys.readouterr()
    assert told.out.splitlines()[0] == "words predicted 8"
    assert [line.split()[:2] for line in told.out.splitlines()[2:]] == [["1", "9"], ["2", "10"], ["3", "7"]]
    (warning,) = told.err.splitlines()
    assert "the counts of order 1, 2, 3 define no discounts (small texts, few different words): " in warning
    assert warning.endswith(": 0.5, 1, 1.5 are used instead")
    type_command("ngram train", [ngram_data, "--order", 3, "--out", path, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["words"] == 8 and [(one["order"], one["ngrams"]) for one in found["orders"]] == [
        (1, 9),
        (2, 10),
        (3, 7),
    ]
    assert all((one["values"], one["source"]) == ([0.5, 1, 1.5], "fallback") for one in found["orders"])

    tokens = load_token_stream(ngram_data, "test", dictionary)
    nll = -NGramModel.read_arpa(path, dictionary).log_probs(tokens)
    type_command("ngram eval", [ngram_data, "--path", path, "--json"])
    figures = json.loads(capsys.readouterr().out)
    assert "ngram eval" in figures["command"]
    assert figures["num_tokens"] == 8 and figures["num_unknown"] == 1
    assert figures["perplexity"] == pytest.approx(math.exp(nll.mean()), rel=1e-12)
    assert figures["perplexity_without_first_token"] == pytest.approx(math.exp(nll[1:].mean()), rel=1e-12)
    type_command("ngram eval", [ngram_data, "--path", path, "--split", "train"])
    printed = dict(line.rsplit(None, 1) for line in capsys.readouterr().out.splitlines() if "NLL" not in line)
    assert printed["tokens predicted"] == "12" and float(printed["perplexity"]) < figures["perplexity"]


def test_a_cache_of_the_last_words(ngram_data, tmp_path, capsys):
    path = tmp_path / "model.arpa"
    type_command("ngram train", [ngram_data, "--order", 2, "--out", path])
    nll = []
    for flags in ([], ["--unigram-cache", "3,0"], ["--unigram-cache", "3,0.2"]):
        capsys.readouterr()
        type_command("ngram eval", [ngram_data, "--path", path, "--json", *flags])
        nll.append(json.loads(capsys.readouterr().out)["nll"])
    assert nll[0] == nll[1] != nll[2]
