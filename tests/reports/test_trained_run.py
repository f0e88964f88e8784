"""Finished trainings that cannot be read."""

import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairseq_plugins.reports import trained_run
from fairseq_plugins.reports.metrics.perplexity import PerplexityMetric
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


def test_the_best_checkpoint_is_taken_unless_another_is_named(finished):
    shutil.copy(finished / "checkpoint_best.pt", finished / "checkpoint_last.pt")
    best, last = (read_run("A", path, data=DATA) for path in (finished, finished / "checkpoint_last.pt"))
    assert (best.checkpoint, best.save_dir) == (finished / "checkpoint_best.pt", finished)
    assert (last.checkpoint, last.save_dir) == (finished / "checkpoint_last.pt", finished)
    for missing in (finished / "checkpoint_9.pt", finished / "none"):
        with pytest.raises(ValueError, match=f"{missing} does not exist: give a checkpoint"):
            read_run("A", missing, data=DATA)


def test_parameters_that_do_not_learn_are_told(finished, monkeypatch):
    whole = read_run("A", finished, data=DATA)
    figures = whole.figures()
    assert figures["learning_parameters"] == figures["parameters"]
    embedding = whole.model.decoder.embedding.weight.requires_grad_(False)
    monkeypatch.setattr(
        trained_run, "load_checkpoint", lambda *_: (whole.model, SimpleNamespace(common=SimpleNamespace(seed=5)))
    )
    frozen = read_run("A", finished, data=DATA).figures()
    assert frozen["learning_parameters"] == figures["parameters"] - embedding.numel()


BEGIN = (
    "x | INFO | fairseq_cli.train | {{'_name': None, 'common': {{'_name': None, 'seed': {seed}}}}}\n"
    "x | INFO | fairseq_cli.train | num. shared model params: {size} (num. trained: {learning})\n"
    "x | INFO | fairseq_cli.train | num. expert model params: 0 (num. trained: 0)\n"
    "x | INFO | fairseq.trainer | Preparing to load checkpoint checkpoint_last.pt\n"
)
ANEW = "x | INFO | fairseq.trainer | No existing checkpoint found checkpoint_last.pt\n"


def test_a_log_tells_what_a_checkpoint_that_is_gone_was(finished):
    epochs = (finished / "train.log").read_text()
    (finished / "checkpoint_best.pt").unlink()
    another = BEGIN.format(seed=8, size="90", learning="90") + ANEW
    own = BEGIN.format(seed=3, size="1,234,567", learning="1,234,500")
    (finished / "train.log").write_text(another + epochs + own + ANEW + epochs)
    run = read_run("A", finished, data="nowhere")
    figures = run.figures()
    assert (run.model, run.save_dir, figures["checkpoint"]) == (None, finished, None)
    assert (figures["seed"], figures["parameters"], figures["learning_parameters"]) == (3, 1234567, 1234500)
    assert figures["lowest_valid_perplexity"] == 2.5
    with pytest.raises(
        ValueError, match="checkpoint_best.pt does not exist: fetch it, for a perplexity is measured anew"
    ):
        PerplexityMetric().check(run)
    # what begins now has left nothing yet
    with open(finished / "train.log", "a") as log:
        log.write(another.removesuffix(ANEW))
    assert read_run("A", finished, data="nowhere").seed == 3


@pytest.mark.parametrize("another", ["", BEGIN.format(seed=8, size="90", learning="90") + ANEW])
def test_a_log_that_does_not_tell_the_size_is_refused(another, finished):
    (finished / "checkpoint_best.pt").unlink()
    if another:  # a training of before tells its own
        (finished / "train.log").write_text(another + ANEW + (finished / "train.log").read_text())
    with pytest.raises(ValueError, match="train.log holds no size of the model, .*: wait until it has, or keep all"):
        read_run("A", finished, data=DATA)


def test_epochs_are_counted_where_not_all_were_validated(finished):
    log = (finished / "train.log").read_text()
    (finished / "train.log").write_text("".join(log.replace("001", epoch) for epoch in ("002", "004")))
    assert read_run("A", finished, data=DATA).figures()["epochs"] == 4


def test_a_training_without_its_log(finished):
    (finished / "train.log").unlink()
    with pytest.raises(ValueError, match=r"train.log does not exist: .* \| tee -a SAVE_DIR/train.log"):
        read_run("A", finished, data=DATA)


VALID = "x | INFO | valid | epoch 00{} | valid on 'valid' subset | loss {} | ppl 2.5 | wps 5 | num_updates {}\n"
OF_CHECKPOINT = VALID.format(3, 1.06418, 300)  # as the fixture was saved


@pytest.mark.parametrize(
    "log, is_own",
    [
        (VALID.format(2, 1.5, 200) + OF_CHECKPOINT + VALID.format(4, 1.2, 400), True),
        (VALID.format(2, 1.5, 200), False),
        (VALID.format(3, 1.06518, 300), False),
        (OF_CHECKPOINT + BEGIN.format(seed=8, size="90", learning="90") + ANEW + VALID.format(3, 1.5, 300), False),
    ],
    ids=["own", "ends too early", "another's", "of a training that began anew"],
)
def test_the_log_of_another_training_is_not_believed(log, is_own, finished):
    shutil.copy(FIXTURES / "lstm_lm_doc.pt", finished / "checkpoint_best.pt")
    with open(finished / "train.log", "a") as file:
        file.write(log + "x | INFO | train | epoch 003 | loss 1 | ppl 2.5 | wps 50 | wall 90\n")
    if is_own:
        assert read_run("A", finished, data=str(FIXTURES / "data/lm")).training.valid_curve
        return
    told = (
        "train.log is not the log of the training that left .*checkpoint_best.pt: it has no validation with loss 1.06"
    )
    with pytest.raises(ValueError, match=told):
        read_run("A", finished, data=str(FIXTURES / "data/lm"))


@pytest.mark.parametrize("tokenizer", ["characters", "blanks", None])
def test_bits_are_told_of_characters(tokenizer, finished, tmp_path):
    shutil.copy(FIXTURES / "lstm_lm_doc.pt", finished / "checkpoint_best.pt")
    data = shutil.copytree(FIXTURES / "data/lm", tmp_path / "data", ignore=shutil.ignore_patterns("digests.json"))
    if tokenizer is not None:
        (data / "text.json").write_text(json.dumps({"tokenizer": tokenizer, "case": "kept"}))
    metric = PerplexityMetric()
    figures = metric.measure(read_run("A", finished, data=str(data)))
    cells = metric.cells(figures)
    assert cells["test perplexity"].value == figures["test_perplexity"]
    if tokenizer == "characters":
        assert cells["test bits per character"].value == figures["test_bits_per_character"]
        for split in ("valid", "test"):
            assert figures[f"{split}_bits_per_character"] == pytest.approx(math.log2(figures[f"{split}_perplexity"]))
    else:
        assert list(cells) == ["test perplexity"] and "test_bits_per_character" not in figures


def test_a_translator_has_no_perplexity_of_a_stream(finished):
    run = read_run("A", finished, data=DATA)
    log = run.training
    assert log.valid_curve == {1: 2.5} and (log.words_per_second, log.hours) == (50, 90 / 3600)
    with pytest.raises(ValueError, match="holds an encoder-decoder: compare it by --metric bleu or rouge"):
        PerplexityMetric().measure(run)
