"""Finished trainings that cannot be read."""

import shutil
from pathlib import Path

import pytest

from fairseq_plugins.reports.metrics import PerplexityMetric
from fairseq_plugins.reports.trained_run import read_run

FIXTURES = Path(__file__).parents[1] / "fixtures/older_checkpoints"
DATA = str(FIXTURES / "data/translation")


@pytest.fixture
def finished(tmp_path):
    shutil.copy(FIXTURES / "lstm_encdec_doc.pt", tmp_path / "checkpoint_best.pt")
    (tmp_path / "train.log").write_text(
        "x | INFO | valid | epoch 001 | loss 1 | ppl 2.5 | wps 5\n"
        "x | INFO | train | epoch 001 | loss 1 | ppl 2.5 | wps 50 | wall 90\n"
    )
    return tmp_path


def test_a_checkpoint_in_place_of_its_directory(finished):
    with pytest.raises(ValueError, match="checkpoint_best.pt is a file: give the --save-dir of a training"):
        read_run("A", finished / "checkpoint_best.pt", data=DATA)


def test_a_training_without_its_log(finished):
    (finished / "train.log").unlink()
    with pytest.raises(ValueError, match=r"train.log does not exist: .* \| tee SAVE_DIR/train.log"):
        read_run("A", finished, data=DATA)


def test_a_translator_has_no_perplexity_of_a_stream(finished):
    run = read_run("A", finished, data=DATA)
    assert run.valid_curve == {1: 2.5} and (run.words_per_second, run.hours) == (50, 90 / 3600)
    with pytest.raises(ValueError, match="holds an encoder-decoder: compare it by --metric bleu or rouge"):
        PerplexityMetric().measure(run)
