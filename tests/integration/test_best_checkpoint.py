"""Which checkpoint ``checkpoint_best.pt`` is, whatever is found in ``--save-dir`` and asked for."""

import shutil

import fairseq_cli.train
import pytest
import torch
from binarised_data import copy_data
from commands import load, training_arguments, validated
from translation_commands import translator_arguments

from fairseq_plugins.fairseq_patches import saving
from fairseq_plugins.fairseq_patches.saving import VALIDATION
from fairseq_plugins.files import file_digest

SHORT = ["--no-epoch-checkpoints", "--max-epoch", 3]
"""One epoch more than the fixture ``trained``."""
METRIC = "--best-checkpoint-metric"
MAXIMIZE = "--maximize-best-checkpoint-metric"


@pytest.fixture
def lm(data, tmp_path, run_here):
    """``lm(*flags)``: the log of a training of a language model to ``runs``."""
    return lambda *flags: run_here(fairseq_cli.train, *training_arguments(data, tmp_path / "runs", *SHORT, *flags))


@pytest.fixture
def translation(pair_data, tmp_path, run_here):
    """``translation(*flags)``: the log of a training of a translator to ``runs``."""
    model = ["--arch", "lstm_encdec"]
    return lambda *flags: run_here(
        fairseq_cli.train, *translator_arguments(pair_data, tmp_path / "runs", *flags, model=model)
    )


@pytest.fixture
def runs(trained, tmp_path):
    """The folder that trainings save to, with the checkpoints of a training."""
    return shutil.copytree(trained, tmp_path / "runs")


def best(folder):
    return load(folder / "checkpoint_best.pt")["extra_state"]["best"]


def as_if(path, value):
    """Write a checkpoint as if it had been the best with this value."""
    state = torch.load(path)
    state["extra_state"].update(best=value, val_loss=value)
    torch.save(state, path)


def test_a_metric_that_a_language_model_does_not_log_is_refused(lm, tmp_path):
    told = f"{METRIC} nll_loss: validation of this task and criterion logs loss, ppl: give"
    with pytest.raises(ValueError, match=told):
        lm(METRIC, "nll_loss")
    assert not list(tmp_path.glob("runs/*.pt"))


@pytest.mark.parametrize(
    "flags, told",
    [
        ([METRIC, "bleu"], "logs loss, ppl: give one of these; BLEU, chrF and ROUGE are logged by --task scored_trans"),
        ([METRIC, "bleu", "--task", "scored_translation", "--eval-scorer", "chrf"], "logs loss, ppl, chrf: give"),
        ([METRIC, "nll_loss", "--criterion", "cross_entropy"], "logs loss, ppl: give"),
        ([METRIC, "bleu", "--criterion", "cross_entropy", "--sentence-avg"], "logs loss, ppl, nll_loss: give"),
        ([METRIC, "accuracy", "--criterion", "label_smoothed_cross_entropy"], "logs loss, ppl, nll_loss: give"),
    ],
)
def test_a_metric_that_a_translator_does_not_log_is_refused(flags, told, translation, tmp_path):
    with pytest.raises(ValueError, match=told):
        translation(*flags)
    assert not list(tmp_path.glob("runs/*.pt"))


@pytest.mark.parametrize(
    "flags, metric",
    [
        (["--task", "scored_translation", "--eval-scorer", "chrf"], "chrf"),
        (["--criterion", "label_smoothed_cross_entropy", "--report-accuracy"], "accuracy"),
    ],
)
def test_a_metric_that_is_better_when_higher_is_maximised(flags, metric, translation, tmp_path):
    log = translation(METRIC, metric, *flags, "--max-epoch", 2, "--lr-scheduler", "reduce_lr_on_plateau")
    assert f"{metric} is better when higher: {MAXIMIZE} is set" in log
    scores = validated(log, metric)
    assert len(set(scores)) > 1 and best(tmp_path / "runs") == pytest.approx(max(scores), rel=1e-4)


def test_a_loss_is_minimised(lm, tmp_path):
    log = lm(METRIC, "ppl", MAXIMIZE)
    assert f"ppl is better when lower: {MAXIMIZE} is ignored" in log
    scores = validated(log, "ppl")
    assert len(set(scores)) == 3 and best(tmp_path / "runs") == min(scores)


def test_a_run_whose_last_checkpoint_is_missing_resumes_from_the_newest(lm, runs):
    """As after a kill while the first checkpoint was copied to its other names."""
    value, last = best(runs), runs / "checkpoint_last.pt"
    last.unlink()
    last.symlink_to("nowhere.pt")
    told = f"{last} is missing: the run resumes from {runs}/checkpoint_best.pt; to begin anew, give"
    log = lm()
    assert told in log and "begin training epoch 1" not in log
    assert best(runs) <= value and last.is_file()


def test_a_run_begins_anew_where_it_is_told_to(lm, runs):
    as_if(runs / "checkpoint_best.pt", 0.5)
    (runs / "checkpoint_last.pt").unlink()
    lm("--restore-file", "", "--max-epoch", 1)
    assert best(runs) > 0.5


def test_the_best_file_counts_where_the_last_one_is_older(lm, runs):
    as_if(runs / "checkpoint_best.pt", 0.5)
    kept = file_digest(runs / "checkpoint_best.pt")
    assert "checkpoint_best.pt has loss 0.5: it is kept until a better one comes" in lm()
    assert file_digest(runs / "checkpoint_best.pt") == kept


def test_a_best_file_that_cannot_be_read_is_not_replaced(lm, runs):
    (runs / "checkpoint_best.pt").write_text("no checkpoint")
    with pytest.raises(ValueError, match="checkpoint_best.pt cannot be read, and this run would replace it: move it"):
        lm()


def test_values_of_another_validation_set_are_not_compared(trained, data, tmp_path, run_here):
    start = shutil.copytree(trained, tmp_path / "start") / "checkpoint_last.pt"
    as_if(start, 0.5)
    other = copy_data(data, tmp_path / "other")
    flags = [*SHORT, "--restore-file", start]
    log = run_here(fairseq_cli.train, *training_arguments(data, tmp_path / "same", *flags))
    assert "checkpoint_best.pt will be written once loss is better than 0.5, the checkpoint's best" in log
    assert not (tmp_path / "same/checkpoint_best.pt").exists()
    for suffix in ("bin", "idx"):
        shutil.copy(other / f"test.{suffix}", other / f"valid.{suffix}")
    log = run_here(fairseq_cli.train, *training_arguments(other, tmp_path / "runs", *flags, "--patience", 1))
    assert "the best loss of the checkpoint is not compared with this run's loss: the validation set is another" in log
    found = load(tmp_path / "runs/checkpoint_best.pt")
    assert found["extra_state"][VALIDATION] != load(start)["extra_state"][VALIDATION]
    assert len(found["last_optimizer_state"]["param_groups"][0]["validation_losses"]) == 1


@pytest.mark.parametrize(
    "flags, remedy",
    [
        (["--validate-interval-updates", 5], "give --save-interval-updates 5"),
        (["--validate-interval-updates", 5, "--save-interval-updates", 10], "give --save-interval-updates 5"),
        (["--validate-interval-updates", 10, "--save-interval-updates", 5], None),
        (["--save-interval", 2], "give --save-interval 1"),
        (["--save-interval", 2, "--validate-interval", 2], None),
    ],
)
def test_a_warning_tells_that_validated_weights_are_not_saved(flags, remedy, lm):
    log = lm("--max-update", 1, *flags)
    assert ("checkpoint_best.pt may miss the best ones" in log) == (remedy is not None)
    assert remedy is None or remedy in log


def test_fairseq_alone_replaces_the_best(lm, runs, monkeypatch):
    monkeypatch.setattr(saving, "_compare_with_best_file", lambda *args: None)
    as_if(runs / "checkpoint_best.pt", 0.5)
    lm()
    assert best(runs) > 0.5
