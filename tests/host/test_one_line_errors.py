"""How errors of the host's commands are shown."""

import sys

import pytest
from fairseq.dataclass.configs import FairseqConfig
from fairseq.distributed import utils as distributed_utils
from omegaconf import OmegaConf

from fairseq_plugins.data.contiguous_streams import ContiguousStreams
from fairseq_plugins.flags.values import check_positive
from fairseq_plugins.host.one_line_errors import _show_lines_of_generate, show_error


def refuse(cfg):
    check_positive(-1, flag="--width")


def fail(cfg):
    raise ValueError("not of this package")


def unpack(cfg):
    ContiguousStreams.collater(None, [1, 2])


def run(monkeypatch, call_main, main):
    """Run a command of the host to its error, and show that as Python does at the end of a process."""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    with pytest.raises(ValueError) as error:
        call_main(OmegaConf.structured(FairseqConfig), main)
    sys.excepthook(error.type, error.value, error.tb)


def test_a_mistake_is_one_line(monkeypatch, capsys):
    run(monkeypatch, distributed_utils.call_main, refuse)
    assert capsys.readouterr().err == "ValueError: --width -1: give a value above 0\n"
    assert sys.excepthook is show_error


def test_other_errors_keep_their_traceback(monkeypatch, capsys):
    run(monkeypatch, distributed_utils.call_main, fail)
    told = capsys.readouterr().err
    assert told.startswith("Traceback") and told.endswith("ValueError: not of this package\n")


def test_a_fault_of_the_package_keeps_its_traceback(monkeypatch, capsys):
    run(monkeypatch, distributed_utils.call_main, unpack)
    told = capsys.readouterr().err
    assert told.startswith("Traceback") and "collater" in told and "ValueError: too many values" in told


def test_the_host_alone_prints_a_traceback(monkeypatch, capsys):
    call_main = distributed_utils.call_main
    while hasattr(call_main, "__wrapped__"):
        call_main = call_main.__wrapped__
    run(monkeypatch, call_main, refuse)
    assert capsys.readouterr().err.startswith("Traceback")


@pytest.mark.parametrize(
    "program, expected",
    [
        ("bin/fairseq-generate", show_error),
        ("site-packages/fairseq_cli/generate.py", show_error),
        ("mine/generate.py", sys.__excepthook__),
        ("fairseq_cli/train.py", sys.__excepthook__),
    ],
)
def test_a_program_of_ones_own_keeps_its_tracebacks(program, expected, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(sys, "argv", [program])
    _show_lines_of_generate(lambda: None)
    assert sys.excepthook is expected
