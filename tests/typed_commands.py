"""Commands of the console script, run in this process."""

import argparse

from fairseq_plugins.commands import app


def type_command(name, arguments=()):
    """Run a command, such as "lm eval", with arguments of any type."""
    app.main([*name.split(), *map(str, arguments)])


def parser_of(name) -> argparse.ArgumentParser:
    """The parser of a command."""
    return app.load_command(name).get_parser(f"{app.PROGRAM} {name}", app.COMMANDS[name][1])
