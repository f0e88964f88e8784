"""Short trainings of a device's check; what fairseq-train logs is given."""

import pytest

from fairseq_plugins.benchmarks.device import short_training
from fairseq_plugins.benchmarks.device.setting import Setting
from fairseq_plugins.benchmarks.device.short_training import check_precision


@pytest.fixture
def check(tmp_path, monkeypatch):
    """``check(log)``: figures of a training in bfloat16 that logs these bytes."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "dict.txt").touch()

    def check(logged):
        monkeypatch.setattr(short_training, "train", lambda arguments, *, log: log.write_bytes(logged))
        return check_precision(Setting(device="cpu", folder=tmp_path, data=[data]), "lm", "bf16")

    return check


def interval(loss):
    return f"x | INFO | train_inner | epoch 001:      1 / 9 loss={loss}, wps=9, wall=2\n".encode()


def test_the_loss_must_go_down(check):
    assert check(interval(5) + interval(4)) == {"first_loss": 5, "last_loss": 4, "updates": 2}
    assert check(interval(4) + interval(5))["error"] == "the loss rose from 4.000 to 5.000"
    assert check(interval(4) + interval("nan"))["error"] == "the loss is not finite"


def test_bytes_that_are_no_text_say_nothing(check):
    assert check(interval(5) + b"\xff\n" + interval(4))["updates"] == 2
