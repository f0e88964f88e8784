"""Checkpoints of commit 8a2f5a0 are read. They decode and score as they did at that commit.

``tests/fixtures/older_checkpoints/make.py`` made them with that commit, and wrote down what it computed with them.
"""

import json
import shutil

import fairseq_cli.generate
import fairseq_cli.train
import pytest
import torch
from commands import ROOT
from fixtures.older_checkpoints import measurements, trainings

import fairseq_plugins  # noqa: F401

FIXTURES = ROOT / "tests/fixtures/older_checkpoints"
DATA = FIXTURES / "data"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text())


@pytest.fixture
def perplexity(evaluate_here):
    """``perplexity(checkpoint, training)``: of the test set; of a language model as its command prints it."""

    def measure(checkpoint, training) -> float:
        data = DATA / training.data
        if not training.is_lm:
            return measurements.translation_perplexity(checkpoint, data)
        return evaluate_here(data, "--path", checkpoint)["perplexity"]

    return measure


def test_everything_expected_is_there():
    assert EXPECTED["models"].keys() == trainings.MODELS.keys()
    assert EXPECTED["interrupted"].keys() == trainings.INTERRUPTED.keys()
    kept = {*trainings.MODELS, *(f"{arch}_inside_an_epoch" for arch in trainings.INTERRUPTED)}
    assert {path.stem for path in FIXTURES.glob("*.pt")} == kept


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.pt")), ids=lambda path: path.stem)
def test_the_files_hold_weights_and_flags_only(path):
    assert "model" in torch.load(path, map_location="cpu", weights_only=True)


@pytest.mark.parametrize("arch", trainings.MODELS)
def test_same_perplexity(arch, perplexity):
    expected = EXPECTED["models"][arch]["perplexity"]
    assert perplexity(FIXTURES / f"{arch}.pt", trainings.MODELS[arch]) == pytest.approx(expected, rel=1e-6, abs=0)


@pytest.mark.parametrize("arch", trainings.MODELS)
def test_same_hypotheses(arch, run_here):
    checkpoint, training = FIXTURES / f"{arch}.pt", trainings.MODELS[arch]
    data = DATA / training.data
    if training.is_lm:
        found = measurements.continuations(checkpoint, data)
    else:
        output = run_here(fairseq_cli.generate, data, "--path", checkpoint, *measurements.GENERATION_FLAGS)
        found = measurements.read_translations(output)
    expected = EXPECTED["models"][arch]["hypotheses"]
    assert [[best["words"] for best in beam] for beam in found] == [[best["words"] for best in b] for b in expected]
    scores = [[best["score"] for beam in beams for best in beam] for beams in (found, expected)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("arch", trainings.INTERRUPTED)
def test_a_training_stopped_inside_an_epoch_goes_on(arch, tmp_path, run_here, perplexity):
    training, last = trainings.INTERRUPTED[arch], tmp_path / "checkpoint_last.pt"
    shutil.copy(FIXTURES / f"{arch}_inside_an_epoch.pt", last)
    flags = trainings.training_flags(arch, training, DATA / training.data, tmp_path)
    run_here(fairseq_cli.train, *flags, *training.end)
    expected, reached = EXPECTED["interrupted"][arch]["resumed"], measurements.progress(last)
    for count in ("num_updates", "epoch", "updates_in_epoch"):
        assert reached[count] == expected[count]
    assert reached["valid_loss"] == pytest.approx(expected["valid_loss"], abs=2e-5)  # fairseq keeps five digits
    assert perplexity(last, training) == pytest.approx(expected["perplexity"], rel=1e-5, abs=0)
