"""How errors of fairseq's commands are shown, and with which status they end."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fairseq import options
from fairseq.data.data_utils import post_process
from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils
from omegaconf import OmegaConf
from warm_process import PYTHON

from fairseq_plugins.data.contiguous_streams import ContiguousStreams
from fairseq_plugins.flags.values import check_positive
from fairseq_plugins.host.one_line_errors import _show_lines_of_programs, show_error


def refuse(cfg):
    check_positive(-1, flag="--width")


def fail(cfg):
    raise ValueError("not of this package")


def unpack(cfg):
    ContiguousStreams.collater(None, [1, 2])


def run(monkeypatch, call_main, main):
    """Run a command of fairseq to its error, and show that as Python does at the end of a process; the status."""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    with pytest.raises(Exception) as error:
        call_main(OmegaConf.structured(FairseqConfig), main)
    try:
        sys.excepthook(error.type, error.value, error.tb)
    except SystemExit as end:
        return end.code
    return 1


def test_a_mistake_is_one_line(monkeypatch, capsys):
    assert run(monkeypatch, distributed_utils.call_main, refuse) == 2
    assert capsys.readouterr().err == "ValueError: --width -1: give a value above 0\n"
    assert sys.excepthook is show_error


def test_other_errors_keep_their_traceback(monkeypatch, capsys):
    assert run(monkeypatch, distributed_utils.call_main, fail) == 1
    told = capsys.readouterr().err
    assert told.startswith("Traceback") and told.endswith("ValueError: not of this package\n")


def build_unknown_bpe(cfg):
    post_process("a b", "nonsense")


def read_missing(cfg):
    open("no/such file")


def leave_out_a_flag(cfg):
    words = ["data", "--task", "stateful_lm", "--arch", "lstm_lm_awd", "--lr-scheduler", "polynomial_decay"]
    convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), words))


@pytest.mark.parametrize(
    "main, told",
    [
        (build_unknown_bpe, "Unknown post_process option: nonsense"),
        (read_missing, "no/such file: No such file or directory"),
        (leave_out_a_flag, "--total-num-update is missing: give it"),
    ],
)
def test_what_fairseq_and_the_system_refuse_is_one_line(main, told, monkeypatch, capsys):
    assert run(monkeypatch, distributed_utils.call_main, main) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"ValueError: {told}"


def test_a_reader_that_has_gone_ends_it_quietly(monkeypatch, capsys):
    monkeypatch.setattr(os, "dup2", lambda *files: None)
    with pytest.raises(SystemExit) as end:
        show_error(BrokenPipeError, BrokenPipeError(32, "Broken pipe"), None)
    assert end.value.code == 141 and capsys.readouterr().err == ""


def test_a_fault_of_the_package_keeps_its_traceback(monkeypatch, capsys):
    assert run(monkeypatch, distributed_utils.call_main, unpack) == 1
    told = capsys.readouterr().err
    assert told.startswith("Traceback") and "collater" in told and "ValueError: too many values" in told


def test_the_host_alone_prints_a_traceback(monkeypatch, capsys):
    call_main = distributed_utils.call_main
    while hasattr(call_main, "__wrapped__"):
        call_main = call_main.__wrapped__
    assert run(monkeypatch, call_main, refuse) == 1
    assert capsys.readouterr().err.startswith("Traceback")


@pytest.mark.parametrize(
    "program, expected",
    [
        ("bin/fairseq-generate", show_error),
        ("site-packages/fairseq_cli/generate.py", show_error),
        ("mine/generate.py", sys.__excepthook__),
        ("mine/fairseq_cli.py", sys.__excepthook__),
    ],
)
def test_a_program_of_ones_own_keeps_its_tracebacks(program, expected, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(sys, "argv", [program])
    _show_lines_of_programs(lambda: None)
    assert sys.excepthook is expected


PAIRS = Path(__file__).resolve().parents[1] / "fixtures/older_checkpoints/data/translation"


def test_a_first_update_that_is_refused_while_a_thread_makes_batches(tmp_path):
    data = shutil.copytree(PAIRS, tmp_path / "data", ignore=shutil.ignore_patterns("digests.json"))
    for path in data.glob("train.*"):  # many sentences: two data sets, of which the first is read 1500 times
        shutil.copy(path, data / path.name.replace("train", "train1"))
    flags = ["--user-dir", "fairseq_plugins", "--task", "translation", "--arch", "lstm_encdec", "--embed-dim", "8"]
    flags += ["--hidden-sizes", "8", "--criterion", "regularized_cross_entropy", "--balance", "1", "--optimizer", "sgd"]
    flags += ["--cpu", "--num-workers", "0", "--batch-size", "4000", "--upsample-primary", "1500", "--no-save"]
    # a process of its own: what dies is the interpreter, at its end
    words = [PYTHON, "-m", "fairseq_cli.train", str(data), *flags]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("ValueError: --balance needs a mixture")
