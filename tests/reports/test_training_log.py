"""What is read of fairseq-train's log."""

import inspect
import math

import pytest
from fairseq import checkpoint_utils
from fairseq.logging.progress_bar import format_stat
from fairseq.trainer import Trainer

from fairseq_plugins.reports.training_log import (
    read_epoch_speeds,
    read_free_memory,
    read_hours,
    read_loss_scales,
    read_losses,
    read_median_speed,
    read_score_curves,
    read_speeds,
    read_valid_curve,
)

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


def test_scores_of_decoded_validation_sets(tmp_path):
    log = tmp_path / "train.log"
    log.write_text(SCORED_LOG)
    assert read_score_curves(log) == {"bleu": {1: 12.25, 2: 3e-5}, "rougeL": {2: 20.0}}
    log.write_text(LOG)
    assert read_score_curves(log) == {}


def test_validations_and_speeds(tmp_path):
    log = tmp_path / "train.log"
    log.write_text(LOG)
    assert read_valid_curve(log) == {1: 181.02, 2: 128.0}
    assert read_median_speed(log) == 900.5
    assert read_speeds(LOG) == [900.5, 1100, 100] and read_free_memory(LOG) == [100.5, 99.5, 100]


def validations(*epochs, ppl, more=""):
    return "".join(f"x | INFO | valid | epoch {n:03} | loss 1 | ppl {ppl}{more} | wps 5\n" for n in epochs)


def test_epochs_that_begin_again_are_those_of_another_training(tmp_path):
    log = tmp_path / "train.log"
    first, second = validations(1, 2, 3, 4, ppl=40, more=" | bleu 7"), validations(1, 2, ppl=50, more=" | bleu 6")
    log.write_text(first + second)
    assert read_valid_curve(log) == {1: 50, 2: 50} and read_score_curves(log) == {"bleu": {1: 6, 2: 6}}
    interval = "x | INFO | train_inner | epoch 002:      1 / 9 loss=3, wps=9, wall=9\n"
    log.write_text(first + interval)  # resumed after the first epoch
    assert read_valid_curve(log) == {1: 40, 2: 40}
    log.write_text(first + interval + validations(2, 3, ppl=60))
    assert read_valid_curve(log) == {1: 40, 2: 60, 3: 60} and read_score_curves(log) == {"bleu": {1: 7, 2: 7}}


def test_hours_of_a_training_that_was_resumed(tmp_path):
    log = tmp_path / "train.log"
    walls = "".join(
        f"x | INFO | train_inner | epoch 001: 10 / 99 loss=9, wps=9, train_wall=9, gb_free=1, wall={wall}\n"
        for wall in (100, 300, 20, 500)
    )
    log.write_text(f"{walls}x | INFO | train | epoch 001 | loss 2 | train_wall 99 | gb_free 1 | wall 600\n")
    assert read_hours(log) == 900 / 3600


def test_a_sitting_ends_where_the_next_starts(tmp_path):
    log = tmp_path / "train.log"
    start = "x | INFO | fairseq.trainer | Preparing to load checkpoint save/checkpoint_last.pt\n"
    walls = [[], [100, 300], [300, 500], [7], [2, 9]]
    interval = "x | INFO | train_inner | epoch 001: 10 / 99 loss=9, wps=9, wall={}\n"
    log.write_text("".join(start + "".join(map(interval.format, seconds)) for seconds in walls))
    assert read_hours(log) == (300 + 500 + 7 + 9) / 3600


@pytest.mark.parametrize(
    "logger, text, host",
    [
        ("fairseq.trainer", "No existing checkpoint found ", Trainer.load_checkpoint),
        (
            "fairseq.checkpoint_utils",
            "loading pretrained model from ",
            inspect.unwrap(checkpoint_utils.load_checkpoint),
        ),
    ],
)
def test_a_training_that_began_anew_is_not_that_of_before(logger, text, host, tmp_path):
    assert text in inspect.getsource(host)
    log, begun = tmp_path / "train.log", f"x | INFO | {logger} | {text}start.pt\n"
    interval = "x | INFO | train_inner | epoch 001: 10 / 99 loss=9, wps={}, wall={}\n"
    former = begun + interval.format(10, 7200) + validations(1, 2, ppl=40)
    log.write_text(former + begun + interval.format(30, 3600) + validations(1, ppl=50))
    assert read_hours(log) == 1 and read_median_speed(log) == 30 and read_valid_curve(log) == {1: 50}


def test_numbers_of_any_size(tmp_path):
    log, sizes = tmp_path / "train.log", [274.37, 2581897.0, 1e-7, math.inf, math.nan]
    written = [format_stat(size) for size in sizes]
    assert written[1] == "2.5819e+06"
    log.write_text(
        "".join(f"x | INFO | valid | epoch {n} | loss 1 | ppl {ppl} | wps 5\n" for n, ppl in enumerate(written))
    )
    assert list(read_valid_curve(log).values()) == pytest.approx(sizes, rel=1e-4, nan_ok=True)
    speeds = "".join(
        f"x | INFO | train_inner | epoch 1: 1 / 9 loss={one}, wps={one}, loss_scale={one}, gb_free={one}, wall=4\n"
        f"x | INFO | train | epoch {n} | loss 2 | wps {one} | ups 1\n"
        for n, one in enumerate(written)
    )
    for read in (read_speeds, read_losses, read_loss_scales, read_free_memory):
        assert read(speeds) == pytest.approx(sizes, rel=1e-4, nan_ok=True)
    assert list(read_epoch_speeds(speeds).values()) == pytest.approx(sizes, rel=1e-4, nan_ok=True)


def test_the_speed_of_epochs_counts_where_none_of_intervals_was_logged(tmp_path):
    (tmp_path / "train.log").write_text("x | INFO | train | epoch 001 | loss 2 | wps 70 | ups 1\n")
    assert read_median_speed(tmp_path / "train.log") == 70


def test_bytes_that_are_no_text_say_nothing(tmp_path):
    log = tmp_path / "train.log"
    log.write_bytes(b"\xff\x00\n" + LOG.encode())
    assert read_valid_curve(log) == {1: 181.02, 2: 128.0} and read_median_speed(log) == 900.5
    log.write_bytes(bytes(range(256)))
    with pytest.raises(ValueError, match="train.log holds no validation"):
        read_valid_curve(log)
    assert read_score_curves(log) == {}


@pytest.mark.parametrize(
    "read, told",
    [(read_valid_curve, "no validation"), (read_median_speed, "no training speed"), (read_hours, "no times")],
)
def test_a_log_without_them_is_refused(read, told, tmp_path):
    log = tmp_path / "train.log"
    log.write_text("2026-11-21 10:00:00 | INFO | fairseq_cli.train | task: StatefulLanguageModelingTask\n")
    with pytest.raises(ValueError, match=f"train.log holds {told}: log with --log-format simple"):
        read(log)
    assert read_free_memory(log.read_text()) == []
