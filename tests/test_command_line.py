"""The base of commands: arguments, messages and exit statuses."""

import argparse
import os
import signal
import sys
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from fairseq_plugins.command_line import add_checkpoints, add_cpu, add_data, add_input, add_json, choose_device
from fairseq_plugins.console import Command, OneLineParser, ProgramFailed, ended_in_a_line
from fairseq_plugins.options import UserError


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("data", "my data"):
        (tmp_path / name).mkdir()


def add_arguments(parser):
    add_data(parser)
    add_checkpoints(parser, help="models")
    add_json(parser)
    add_input(parser, help="text")


def show(args):
    print(args.data, args.path, args.json, args.forwarded, args.command_line, sep="|")


SHOW = Command(add_arguments=add_arguments, run=show, description="It does nothing else.")
FORWARD = replace(SHOW, forwards_to="fairseq-generate")


def type_line(arguments, command=SHOW):
    program = "fairseq-plugins show"
    with ended_in_a_line(OneLineParser(prog=program)):
        command.main(arguments, program=program)


def ends(arguments, capsys, command=SHOW):
    with pytest.raises(SystemExit) as error:
        type_line(arguments, command)
    return error.value.code, capsys.readouterr().err


def test_values_and_the_line_that_was_typed(capsys):
    type_line(["my data", "--path", "a.pt:b.pt", "c.pt"])
    line = "fairseq-plugins show 'my data' --path a.pt:b.pt c.pt"
    assert capsys.readouterr().out == f"my data|['a.pt', 'b.pt', 'c.pt']|False|[]|{line}\n"


@pytest.mark.parametrize("arguments", [["data", "--path", "a.pt"], ["--help"]])
def test_a_reader_that_has_gone_ends_it_quietly(arguments, monkeypatch, capsys):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as output:
        monkeypatch.setattr("sys.stdout", output)
        code, message = ends(arguments, capsys)
        print("what is left goes nowhere", flush=True)
    assert (code, message) == (128 + signal.SIGPIPE, "")


def test_output_on_a_full_disk_ends_with_one_line(monkeypatch, capsys):
    with open("/dev/full", "w") as output:
        monkeypatch.setattr("sys.stdout", output)
        code, message = ends(["data", "--path", "a.pt"], capsys)
        assert code == 2 and message.endswith("No space left on device: the output is cut short\n")
        assert message.count("\n") == 1


def test_a_closed_output_is_refused_and_other_closed_streams_are_opened(monkeypatch, capsys):
    for name in ("stdin", "stdout"):
        monkeypatch.setattr(sys, name, None)
    message = "error: the standard output is closed: redirect it to a file or to /dev/null\n"
    code, line = ends(["data", "--path", "a.pt"], capsys)
    assert code == 2 and line.endswith(message) and line.count("\n") == 1
    assert sys.stdin.read() == ""


def test_flags_of_another_program_follow_two_dashes(capsys):
    type_line(["data", "--path", "a.pt", "--json", "--", "--path", "x", "--", "y"], FORWARD)
    assert "|True|['--path', 'x', '--', 'y']|" in capsys.readouterr().out
    code, message = ends(["data", "--path", "a.pt", "--beam", "3"], capsys, FORWARD)
    assert code == 2 and message.endswith("error: --beam: flags of fairseq-generate come after --\n")
    code, message = ends(["data", "--path", "a.pt", "--josn"], capsys, FORWARD)
    assert message.endswith("error: --josn: flags of fairseq-generate come after -- (did you mean --json?)\n")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["data", "--path"], "argument --path: expected at least one argument"),
        (["data", "a.txt", "--path", "a.pt"], "unrecognized arguments: a.txt (did you mean --input a.txt?)"),
        (["data", "--path", "a.pt", "--json", "-"], "unrecognized arguments: - (did you mean --input -?)"),
        (["data", "--path", "a.pt", "--jason"], "unrecognized arguments: --jason (did you mean --json?)"),
        (["nowhere"], "argument DATA: nowhere does not exist: give the directory that data-prep wrote"),
    ],
)
def test_a_mistake_ends_with_one_line_and_status_2(arguments, message, capsys):
    code, line = ends(arguments, capsys)
    assert code == 2 and line.startswith("fairseq-plugins show: error: ") and line.endswith(f"{message}\n")
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    "error, message",
    [
        (FileNotFoundError(2, "No such file or directory", "model.pt"), "model.pt: No such file or directory"),
        (OSError("no device"), "no device"),
        (UserError("one line\nand another: give less"), "one line and another: give less"),
    ],
)
def test_an_error_is_told_in_a_line_that_begins_with_its_file(error, message, capsys):
    command = replace(SHOW, run=Mock(side_effect=error))
    assert ends(["data", "--path", "a.pt"], capsys, command) == (2, f"fairseq-plugins show: error: {message}\n")


def test_a_fault_of_the_package_keeps_its_traceback():
    command = replace(SHOW, run=Mock(side_effect=ValueError("not enough values to unpack")))
    with pytest.raises(ValueError, match="not enough values to unpack"):
        type_line(["data", "--path", "a.pt"], command)


def test_a_program_that_fails_is_told_with_status_1(capsys):
    command = replace(SHOW, run=Mock(side_effect=ProgramFailed("last line of a log")))
    assert ends(["data", "--path", "a.pt"], capsys, command) == (1, "last line of a log\n")


def test_an_interrupt_from_the_keyboard_is_one_line_and_status_130(capsys):
    command = replace(SHOW, run=lambda args: signal.raise_signal(signal.SIGINT))
    assert ends(["data", "--path", "a.pt"], capsys, command) == (130, "fairseq-plugins show: interrupted\n")


@pytest.mark.parametrize(
    "has_gpu, typed, device",
    [(True, [], "cuda"), (True, ["--cpu"], "cpu"), (False, [], "cpu"), (False, ["--cpu"], "cpu")],
)
def test_the_gpu_is_taken_where_there_is_one_unless_the_cpu_is_asked_for(has_gpu, typed, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    parser = argparse.ArgumentParser()
    add_cpu(parser)
    assert choose_device(parser.parse_args(typed)) == device
