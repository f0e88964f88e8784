"""Commands of the console script, run in this process."""

import argparse

import pytest

from fairseq_plugins.commands import app


def type_command(name, arguments=()):
    """Run a command, such as "lm eval", with arguments of any type."""
    app.main([*name.split(), *map(str, arguments)])


def refused(name, arguments, capsys) -> str:
    """The line, and all that is printed, by which a command refuses its arguments with status 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        type_command(name, arguments)
    printed, line = capsys.readouterr()
    assert end.value.code == 2 and printed == "" and line.count("\n") == 1, line
    return line


def parser_of(name) -> argparse.ArgumentParser:
    """The parser of a command."""
    return app.load_command(name).get_parser(f"{app.PROGRAM} {name}", app.COMMANDS[name][1])
