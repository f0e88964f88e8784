"""The check of a device: kernels of cells, and short runs whose log is given."""

import warnings

import pytest
import torch

from fairseq_plugins.benchmarks.device import check as check_module
from fairseq_plugins.benchmarks.device.check import check_precision
from fairseq_plugins.benchmarks.device.setting import Setting
from fairseq_plugins.modules.cell import RECURRENT_CELLS


@pytest.mark.parametrize("cell", sorted(RECURRENT_CELLS))
def test_cells_run_without_warnings_here(cell):
    assert check_module.check_kernels(cell, device="cpu") == {"kernel": "other", "warnings": []}


def test_weights_that_do_not_lie_side_by_side_are_an_error(monkeypatch):
    message = "RNN module weights are not part of single contiguous chunk of memory"
    flatten = torch.lstm

    def lstm(*args):
        warnings.warn(message, stacklevel=2)
        return flatten(*args)

    monkeypatch.setattr(torch, "lstm", lstm)
    figures = check_module.check_kernels("lstm", device="cpu")
    assert message in figures["error"] and len(figures["warnings"]) > 4


def test_an_lstm_that_cudnn_does_not_run_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    prepared = check_module.prepared
    monkeypatch.setattr(
        check_module, "prepared", lambda computation, *, device, dtype: prepared(computation, device="cpu", dtype=dtype)
    )
    assert check_module.check_kernels("lstm", device="cuda")["error"] == "is not run by cuDNN"


@pytest.fixture
def check(tmp_path, monkeypatch):
    """``check(log)``: figures of a training in bfloat16 that logs these bytes."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "dict.txt").touch()

    def check(logged):
        monkeypatch.setattr(check_module, "train", lambda arguments, *, log: log.write_bytes(logged))
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
