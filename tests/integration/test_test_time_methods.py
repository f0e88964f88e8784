"""Test-time methods by the command: alone, together, tuned, refused."""

import json
import math
import shutil

import pytest
from commands import run

from fairseq_plugins.cli.evaluate_lm import write_choice
from fairseq_plugins.evaluation.evaluator import Evaluator, TunedPoint

ALL = [
    *("--cache", "50,0.1,0.5", "--cache-start", "first", "--unigram-cache", "20,0.05", "--temperature", "0.95"),
    *("--dropout-samples", 2, "--dropout-scale", 0.5, "--dynamic", "rms", "--dynamic-rows", 4, "--dynamic-segment", 10),
]


@pytest.fixture
def checkpoint(trained, tmp_path):
    """A copy, beside which files may be written."""
    return shutil.copy(trained / "checkpoint_best.pt", tmp_path / "checkpoint_best.pt")


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_split_is_read_once_after_the_choice_on_valid(checkpoint, data, evaluate_here, monkeypatch):
    loaded, read = [], []
    text, score = Evaluator.text, Evaluator.score

    def named_text(self, split):
        loaded.append((text(self, split), split))
        return loaded[-1][0]

    def noted_score(self, one, *options):
        read.append(next(split for known, split in loaded if known is one))
        return score(self, one, *options)

    monkeypatch.setattr(Evaluator, "text", named_text)
    monkeypatch.setattr(Evaluator, "score", noted_score)
    evaluate_here(data, "--path", checkpoint, "--tune", "cache=20:60,0.05:0.2,0.5", "temperature=0.9:1")
    assert read == ["valid", "valid", "test"]  # a pass of each temperature


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--cache", "50,1,0.5"], "--cache WEIGHT 1: a weight is at least 0 and below 1"),
        (["--tune", "cache=50,0.5:1,0.5"], "--cache WEIGHT 1: a weight is at least 0 and below 1"),
        (["--tune", "cashe=50"], "--tune cashe=50: give it as FLAG=VALUES"),
        (["--dynamic", "rms", "--window", 0], "both must be at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused_before_models_are_loaded(flags, message, data, tmp_path):
    result = run("fairseq_plugins.cli.evaluate_lm", data, "--path", tmp_path / "missing.pt", *flags)
    assert result.returncode == 2 and message in result.stderr and len(result.stderr.splitlines()) == 1


def test_the_text_names_methods_and_their_cost(checkpoint, data):
    result = run("fairseq_plugins.cli.evaluate_lm", data, "--path", checkpoint, "--temperature", 0.9)
    assert result.returncode == 0, result.stderr[-3000:]
    *_, speed, methods = result.stdout.splitlines()
    assert speed.startswith("words per second") and methods.split(maxsplit=2) == [
        "test-time",
        "methods",
        "--temperature=0.9",
    ]


def test_a_point_that_diverged_is_written_as_null(tmp_path):
    tuned = [TunedPoint({"dynamic-rate": "0.1"}, 2.0), TunedPoint({"dynamic-rate": "1e300"}, math.inf)]
    write_choice(tmp_path / "choice.json", tuned, command="evaluate_lm")
    choice = json.loads((tmp_path / "choice.json").read_text(), parse_constant=pytest.fail)
    assert [point["perplexity"] for point in choice["grid"]] == [math.exp(2.0), None]


@pytest.mark.slow
def test_all_methods_and_lines_are_timed(checkpoint, data, tmp_path):
    line = ["fairseq_plugins.cli.benchmark_evaluation", data, "--path", checkpoint, "--cpu", "--out", tmp_path / "out"]
    limits = ["--words", 30, "--lines", 20, "--rounds", 1]
    result = run(*line, *limits, "--name", "tiny")
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout == (tmp_path / "out/evaluation_cpu_tiny.md").read_text()
    figures = json.loads((tmp_path / "out/evaluation_cpu_tiny.json").read_text())
    assert figures["num_words"] == 30 and figures["num_lines"] == 20 and len(figures["words_per_second"]) == 10
    assert all(speed > 0 for speed in figures["words_per_second"].values())
    result = run(*line, "--lines", 1)
    assert (
        result.returncode == 2 and "words, and 64 rows need 128: give more lines, or another --split" in result.stderr
    )
