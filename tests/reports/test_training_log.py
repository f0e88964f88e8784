"""Reading the log of fairseq-train."""

import inspect
import json
import math
import shutil

import pytest
from binarised_data import copy_data
from fairseq import checkpoint_utils
from fairseq.logging.progress_bar import format_stat
from fairseq.trainer import Trainer
from paths import SMALL_MODELS

from fairseq_plugins.reports.comparison import PerplexityMetric
from fairseq_plugins.reports.training_log import TrainingLog, figures_of, read_log, read_run

LOG = """\
2026-11-21 10:00:00 | INFO | train_inner | epoch 001:     10 / 99 loss=9, wps=900.5, ups=1, gb_free=100.5, wall=2
2026-11-21 10:00:01 | INFO | train_inner | epoch 001:     20 / 99 loss=8, wps=1100, ups=1, gb_free=99.5, wall=3
2026-11-21 10:00:02 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 7.5 | ppl 181.02 | wps 5000
2026-11-21 10:00:03 | INFO | train_inner | epoch 002:     10 / 99 loss=7, wps=100, ups=1, gb_free=100, wall=4
2026-11-21 10:00:04 | INFO | valid | epoch 002 | valid on 'valid' subset | loss 7 | ppl 128 | wps 5000 | best_loss 7
"""


SCORED_LOG = """\
2026-11-21 10:00:00 | INFO | train_inner | epoch 001:     10 / 99 loss=9, ppl=500, bleu=3, wps=900.5, ups=1, wall=2
2026-11-21 10:00:01 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 6 | ppl 64 | bleu 1.5 | wps 50
2026-11-21 10:00:02 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 5 | ppl 32 | bleu 12.25 | wps 50
2026-11-21 10:00:04 | INFO | valid | epoch 002 | valid on 'valid' subset | loss 4 | ppl 16 | bleu 3e-05 | best_bleu 12
2026-11-21 10:00:05 | INFO | valid | epoch 002 | valid on 'other' subset | loss 4 | ppl 16 | rougeL 20 | best_bleu 12
"""


def test_validations_scores_and_speeds(tmp_path):
    log = tmp_path / "train.log"
    log.write_text(SCORED_LOG)
    assert TrainingLog(tmp_path).score_curves == {"bleu": {1: 12.25, 2: 3e-5}, "rougeL": {2: 20.0}}
    log.write_text(LOG)
    read = TrainingLog(tmp_path)
    assert read.valid_curve == {1: 181.02, 2: 128.0} and read.score_curves == {}
    assert read.words_per_second == 900.5
    log.write_text("x | INFO | train | epoch 001 | loss 2 | wps 70 | ups 1\n")
    assert TrainingLog(tmp_path).words_per_second == 70  # of epochs where no interval was logged
    assert figures_of(read_log(LOG), "train_inner", "wps") == [900.5, 1100, 100]
    assert figures_of(read_log(LOG), "train_inner", "gb_free") == [100.5, 99.5, 100]


def validations(*epochs, ppl, more=""):
    return "".join(f"x | INFO | valid | epoch {n:03} | loss 1 | ppl {ppl}{more} | wps 5\n" for n in epochs)


def test_the_best_of_an_epoch_s_validations_counts(tmp_path):
    """With --validate-interval-updates an epoch has several, and the best may not be the last."""
    interval = "x | INFO | train_inner | epoch 001:      1 / 9 loss=3, wps=9, wall=9\n"
    several = (validations(1, ppl=ppl, more=f" | bleu {bleu}") for ppl, bleu in ((40, 6), (30, 9), (50, 7)))
    (tmp_path / "train.log").write_text(interval + "".join(several))
    figures = TrainingLog(tmp_path).figures()
    assert figures["valid_curve"] == {1: 50} and figures["lowest_valid_perplexity"] == 30
    assert figures["score_curves"] == {"bleu": {1: 7}} and figures["highest_valid_scores"] == {"bleu": 9}


def test_epochs_that_begin_again_are_those_of_another_training(tmp_path):
    log = tmp_path / "train.log"
    first, second = validations(1, 2, 3, 4, ppl=40, more=" | bleu 7"), validations(1, 2, ppl=50, more=" | bleu 6")
    log.write_text(first + second)
    read = TrainingLog(tmp_path)
    assert read.valid_curve == {1: 50, 2: 50} and read.score_curves == {"bleu": {1: 6, 2: 6}}
    interval = "x | INFO | train_inner | epoch 002:      1 / 9 loss=3, wps=9, wall=9\n"
    log.write_text(first + interval)  # resumed after the first epoch
    assert TrainingLog(tmp_path).valid_curve == {1: 40, 2: 40}
    log.write_text(first + interval + validations(2, 3, ppl=60))
    read = TrainingLog(tmp_path)
    assert read.valid_curve == {1: 40, 2: 60, 3: 60} and read.score_curves == {"bleu": {1: 7, 2: 7}}


def test_hours_of_a_training_that_was_resumed(tmp_path):
    log = tmp_path / "train.log"
    interval = "x | INFO | train_inner | epoch 001: 10 / 99 loss=9, wps=9, train_wall=9, gb_free=1, wall={}\n"
    walls = "".join(map(interval.format, (100, 300, 20, 500)))
    log.write_text(f"{walls}x | INFO | train | epoch 001 | loss 2 | train_wall 99 | gb_free 1 | wall 600\n")
    assert TrainingLog(tmp_path).hours == 900 / 3600
    # a part ends where the next one starts
    start = "x | INFO | fairseq.trainer | Preparing to load checkpoint save/checkpoint_last.pt\n"
    walls = [[], [100, 300], [300, 500], [7], [2, 9]]
    log.write_text("".join(start + "".join(map(interval.format, seconds)) for seconds in walls))
    assert TrainingLog(tmp_path).hours == (300 + 500 + 7 + 9) / 3600


@pytest.mark.parametrize(
    "logger, text, host",
    [
        ("fairseq.trainer", "No existing checkpoint found ", Trainer.load_checkpoint),
        ("fairseq.checkpoint_utils", "loading pretrained model from ", checkpoint_utils.load_checkpoint),
    ],
)
def test_a_training_that_began_anew_is_not_that_of_before(logger, text, host, tmp_path):
    assert text in inspect.getsource(inspect.unwrap(host))
    log, begun = tmp_path / "train.log", f"x | INFO | {logger} | {text}start.pt\n"
    interval = "x | INFO | train_inner | epoch 001: 10 / 99 loss=9, wps={}, wall={}\n"
    former = begun + interval.format(10, 7200) + validations(1, 2, ppl=40)
    log.write_text(former + begun + interval.format(30, 3600) + validations(1, ppl=50))
    read = TrainingLog(tmp_path)
    assert (read.hours, read.words_per_second, read.valid_curve) == (1, 30, {1: 50})


@pytest.mark.parametrize(
    "kind, line",
    [
        ("valid", "x | INFO | valid | epoch 1 | loss 1 | ppl {} | wps 5\n"),
        ("train_inner", "x | INFO | train_inner | epoch 1: 1 / 9 loss=1, ppl={}, gb_free=3, wall=4\n"),
        ("train", "x | INFO | train | epoch 1 | loss 1 | ppl {} | ups 1\n"),
    ],
)
def test_numbers_of_any_size(kind, line):
    sizes = [274.37, 2581897.0, 1e-7, math.inf, math.nan]
    written = [format_stat(size) for size in sizes]
    assert written[1] == "2.5819e+06"
    found = figures_of(read_log("".join(map(line.format, written))), kind, "ppl")
    assert found == pytest.approx(sizes, rel=1e-4, nan_ok=True)


def test_bytes_that_are_no_text_say_nothing(tmp_path):
    log = tmp_path / "train.log"
    log.write_bytes(b"\xff\x00\n" + LOG.encode())
    read = TrainingLog(tmp_path)
    assert read.valid_curve == {1: 181.02, 2: 128.0} and read.words_per_second == 900.5
    log.write_bytes(bytes(range(256)))
    with pytest.raises(ValueError, match="train.log holds no validation"):
        _ = TrainingLog(tmp_path).valid_curve
    assert TrainingLog(tmp_path).score_curves == {}


@pytest.mark.parametrize(
    "read, told",
    [("valid_curve", "no validation"), ("words_per_second", "no training speed"), ("hours", "no times")],
)
def test_a_log_without_them_is_refused(read, told, tmp_path):
    log = tmp_path / "train.log"
    log.write_text("2026-11-21 10:00:00 | INFO | fairseq_cli.train | task: StatefulLanguageModelingTask\n")
    with pytest.raises(ValueError, match=f"train.log holds {told}: log with --log-format simple"):
        getattr(TrainingLog(tmp_path), read)
    assert read_log(log.read_text()) == []


BEGIN = (
    "x | INFO | fairseq_cli.train | {{'_name': None, 'common': {{'_name': None, 'seed': {seed}}}}}\n"
    "x | INFO | fairseq_cli.train | num. shared model params: {size} (num. trained: {learning})\n"
    "x | INFO | fairseq_cli.train | num. expert model params: 0 (num. trained: 0)\n"
    "x | INFO | fairseq.trainer | Preparing to load checkpoint checkpoint_last.pt\n"
)
ANEW = "x | INFO | fairseq.trainer | No existing checkpoint found checkpoint_last.pt\n"
EPOCH = (
    "x | INFO | valid | epoch 001 | loss 1 | ppl 2.5 | wps 5\n"
    "x | INFO | train | epoch 001 | loss 1 | ppl 2.5 | wps 50 | wall 90\n"
)
OWN = BEGIN.format(seed=3, size="1,234,567", learning="1,234,500") + ANEW


@pytest.fixture
def finished(tmp_path):
    shutil.copy(SMALL_MODELS / "lstm_encdec_doc.pt", tmp_path / "checkpoint_best.pt")
    (tmp_path / "train.log").write_text(OWN + EPOCH)
    return tmp_path


def test_the_best_checkpoint_is_taken_unless_another_is_named(finished):
    shutil.copy(finished / "checkpoint_best.pt", finished / "checkpoint_last.pt")
    best, last = (read_run("A", path) for path in (finished, finished / "checkpoint_last.pt"))
    assert (best.checkpoint, best.save_dir) == (finished / "checkpoint_best.pt", finished)
    assert (last.checkpoint, last.save_dir) == (finished / "checkpoint_last.pt", finished)
    for missing in (finished / "checkpoint_9.pt", finished / "none"):
        with pytest.raises(ValueError, match=f"{missing} does not exist: give a checkpoint"):
            read_run("A", missing)


@pytest.mark.parametrize("is_gone", [False, True])
def test_seed_and_size_are_those_of_the_last_run_in_the_log(is_gone, finished):
    another = BEGIN.format(seed=8, size="90", learning="90") + ANEW
    (finished / "train.log").write_text(another + EPOCH + OWN + EPOCH)
    if is_gone:
        (finished / "checkpoint_best.pt").unlink()
    run = read_run("A", finished)
    figures = run.figures
    assert (run.save_dir, figures["checkpoint"]) == (finished, None if is_gone else "checkpoint_best.pt")
    assert (figures["seed"], figures["parameters"], figures["learning_parameters"]) == (3, 1234567, 1234500)
    assert figures["lowest_valid_perplexity"] == 2.5
    # what begins now has left nothing yet
    with open(finished / "train.log", "a") as log:
        log.write(another.removesuffix(ANEW))
    assert read_run("A", finished).figures["seed"] == 3


@pytest.mark.parametrize("another", ["", BEGIN.format(seed=8, size="90", learning="90") + ANEW])
def test_a_log_that_does_not_tell_seed_and_size_is_refused(another, finished):
    # a training of before tells its own
    (finished / "train.log").write_text(another + ANEW + EPOCH)
    remedy = "fairseq-train prints it at the start, so wait for it, or keep the whole"
    with pytest.raises(ValueError, match=f"train.log holds no size of the model: {remedy}"):
        read_run("A", finished)
    with pytest.raises(ValueError, match=f"train.log holds no flags: {remedy}"):
        _ = TrainingLog(finished).seed


def test_epochs_are_counted_where_not_all_were_validated(finished):
    (finished / "train.log").write_text(OWN + "".join(EPOCH.replace("001", epoch) for epoch in ("002", "004")))
    assert read_run("A", finished).figures["epochs"] == 4


def test_a_training_without_its_log(finished):
    (finished / "train.log").unlink()
    with pytest.raises(ValueError, match=r"train.log does not exist: .* \| tee -a SAVE_DIR/train.log"):
        read_run("A", finished)


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
    shutil.copy(SMALL_MODELS / "lstm_lm_doc.pt", finished / "checkpoint_best.pt")
    with open(finished / "train.log", "a") as file:
        file.write(log + "x | INFO | train | epoch 003 | loss 1 | ppl 2.5 | wps 50 | wall 90\n")
    if is_own:
        assert read_run("A", finished).figures["valid_curve"]
        return
    told = "log is not the log of the run that left .*checkpoint_best.pt: it has no validation with loss 1.06"
    with pytest.raises(ValueError, match=told):
        read_run("A", finished)


@pytest.mark.parametrize("tokenizer", ["characters", "blanks", None])
def test_bits_are_told_of_characters(tokenizer, finished, tmp_path):
    shutil.copy(SMALL_MODELS / "lstm_lm_doc.pt", finished / "checkpoint_best.pt")
    data = copy_data(SMALL_MODELS / "data/lm", tmp_path / "data")
    if tokenizer is not None:
        (data / "text.json").write_text(json.dumps({"tokenizer": tokenizer, "case": "kept"}))
    metric = PerplexityMetric(data)
    figures = metric.measure(read_run("A", finished))
    cells = metric.cells(figures)
    assert cells["test perplexity"].value == figures["test_perplexity"]
    if tokenizer == "characters":
        assert cells["test bits per character"].value == figures["test_bits_per_character"]
        for split in ("valid", "test"):
            assert figures[f"{split}_bits_per_character"] == pytest.approx(math.log2(figures[f"{split}_perplexity"]))
    else:
        assert list(cells) == ["test perplexity"] and "test_bits_per_character" not in figures


def test_a_translator_has_no_perplexity_of_a_stream(finished):
    run = read_run("A", finished)
    log = run.figures
    assert log["valid_curve"] == {1: 2.5} and (log["words_per_second"], log["hours"]) == (50, 90 / 3600)
    with pytest.raises(ValueError, match="holds an encoder-decoder: compare it by --metric bleu or rouge"):
        PerplexityMetric(None).check(run)
    run.checkpoint.unlink()
    with pytest.raises(ValueError, match="checkpoint_best.pt does not exist: copy it there"):
        PerplexityMetric(None).check(run)
