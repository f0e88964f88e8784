"""The list of all commands."""

import argparse
import sys
from pathlib import Path

import pytest

import fairseq_plugins.cli
from fairseq_plugins.cli.__main__ import all_commands, main
from fairseq_plugins.command_line import Command

NOT_COMMANDS = {"__init__", "__main__"}
COMMANDS = all_commands()


def test_every_module_is_a_command_with_one_line(capsys):
    modules = {path.stem for path in Path(fairseq_plugins.cli.__path__[0]).glob("*.py")} - NOT_COMMANDS
    assert set(COMMANDS) == modules
    main([])
    lines = capsys.readouterr().out.splitlines()
    for name, command in COMMANDS.items():
        (line,) = [line for line in lines if line.startswith(f"{name} ")]
        assert line.split(None, 1)[1] == command.summary and command.summary.endswith(".") and len(line) < 130


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_explains_itself(name, capsys):
    command = COMMANDS[name]
    assert isinstance(command, Command) and sys.modules[type(command).__module__].__name__.endswith(f".cli.{name}")
    with pytest.raises(SystemExit) as error:
        command.main(["--help"])
    shown = capsys.readouterr().out
    assert error.value.code == 0 and shown.split()[:4] == ["usage:", "python", "-m", f"fairseq_plugins.cli.{name}"]
    assert command.summary in shown and command.description in shown


def test_a_command_behind_the_package_is_answered_with_the_line_to_type(capsys):
    with pytest.raises(SystemExit) as error:
        main(["evaluate_lm", "my data", "--path", "a.pt"])
    told = capsys.readouterr().err
    assert error.value.code == 2
    assert told.endswith("type: python -m fairseq_plugins.cli.evaluate_lm 'my data' --path a.pt\n")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_list_that_is_given_in_parts_is_one(name):
    for action in COMMANDS[name].get_parser()._actions:
        if action.nargs not in ("+", "*") or not action.option_strings:
            continue
        namespace, flag = argparse.Namespace(**{action.dest: action.default}), action.option_strings[0]
        for value in ("1.pt", "2.pt"):
            action(None, namespace, [value], flag)
        assert getattr(namespace, action.dest) == ["1.pt", "2.pt"], flag
