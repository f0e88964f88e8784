"""Reports of a timed training run, whose log comes from a stub of fairseq-train."""

import json

import pytest

from fairseq_plugins.benchmarks.device import speed
from fairseq_plugins.benchmarks.device.setting import Setting
from fairseq_plugins.benchmarks.device.speed import TimedTraining


@pytest.fixture
def epochs(tmp_path, monkeypatch):
    """``epochs(log)``: figures by epoch, after a training that appends these bytes to the log."""

    def epochs(logged):
        def run_logged(command, *, log, environment):
            with log.open("ab") as file:
                file.write(logged)
            return 0

        monkeypatch.setattr(speed, "run_logged", run_logged)
        setting = Setting(device="cpu", folder=tmp_path, data=[tmp_path])
        TimedTraining(setting, "lstm_lm_awd_ptb").run(minutes=1, command="typed")
        return json.loads((tmp_path / "train_lstm_lm_awd_ptb.json").read_text())["epochs"]

    return epochs


def logged(epoch, *, ppl, wps):
    return (
        f"x | INFO | train_inner | epoch {epoch:03}:     20 / 99 loss=3, wps={wps}, wall=2\n"
        f"x | INFO | valid | epoch {epoch:03} | valid on 'valid' subset | loss 3 | ppl {ppl} | wps 50\n"
        f"x | INFO | train | epoch {epoch:03} | loss 3 | wps {wps} | wall 3\n"
    ).encode()


def found(*, ppl, wps):
    return {"valid_perplexity": ppl, "words_per_second": wps, "allocated_mib": None}


def test_epochs_that_begin_again_are_those_of_another_training(epochs):
    first = epochs(b"".join(logged(epoch, ppl=40, wps=70) for epoch in (1, 2, 3)))
    assert first == {epoch: found(ppl=40, wps=70) for epoch in ("1", "2", "3")}
    assert epochs(logged(1, ppl=50, wps=80)) == {"1": found(ppl=50, wps=80)}
    assert epochs(logged(2, ppl=45, wps=80)) == {"1": found(ppl=50, wps=80), "2": found(ppl=45, wps=80)}


def test_bytes_that_are_no_text_say_nothing(epochs):
    assert epochs(b"\xff\n" + logged(1, ppl=40, wps=70)) == {"1": found(ppl=40, wps=70)}
