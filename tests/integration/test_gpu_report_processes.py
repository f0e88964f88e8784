"""The check of gpu_report with two processes."""

import pytest
import torch

from fairseq_plugins.benchmarks.device import check
from fairseq_plugins.benchmarks.device.check import check_two_processes
from fairseq_plugins.benchmarks.device.setting import Setting


@pytest.mark.slow
def test_two_processes_equal_one_on_the_cpu(tmp_path):
    figures = check_two_processes(Setting(device="cpu", folder=tmp_path))
    assert "error" not in figures and 0 < figures["share"] < 1


def test_one_device_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert check_two_processes(Setting(device="cuda", folder=tmp_path)) == {"skipped": "there is one device"}


def test_processes_that_train_otherwise_are_an_error(tmp_path, monkeypatch):
    weights = {"a": torch.ones(3, dtype=torch.float64)}

    def trained(setting, save_dir, *, num_processes):
        return {name: weight + (1e-3 if num_processes == 2 else 0) for name, weight in weights.items()}

    monkeypatch.setattr(check, "_weights", trained)
    assert "times what rounding allows" in check_two_processes(Setting(device="cpu", folder=tmp_path))["error"]
