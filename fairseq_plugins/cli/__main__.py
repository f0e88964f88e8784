"""The list of all commands: ``python -m fairseq_plugins.cli``."""

import importlib
import logging
import pkgutil
import shlex
import sys
from typing import Dict, Optional, Sequence

import fairseq_plugins.cli
from fairseq_plugins.command_line import Command, OneLineParser, ended_in_a_line


def all_commands() -> Dict[str, Command]:
    """All commands by name."""
    commands = {}
    for module in pkgutil.iter_modules(fairseq_plugins.cli.__path__):
        if module.name == "__main__":
            continue
        members = vars(importlib.import_module(f"{fairseq_plugins.cli.__name__}.{module.name}")).values()
        commands.update(
            (member.name, member())
            for member in members
            if isinstance(member, type) and issubclass(member, Command) and getattr(member, "name", "") == module.name
        )
    return commands


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Print a line for each command. If a command's name is given, print the line to type instead."""
    logging.getLogger().setLevel(logging.WARNING)
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = OneLineParser(prog="python -m fairseq_plugins.cli", description="List all commands.")
    commands = all_commands()
    if given and given[0] in commands:
        parser.error(f"type: {shlex.join([*commands[given[0]].program.split(), *given[1:]])}")
    with ended_in_a_line(parser):
        parser.parse_args(given)
        print("python -m fairseq_plugins.cli.NAME --help explains a command:\n")
        width = max(map(len, commands))
        for name, command in sorted(commands.items()):
            print(f"{name:<{width}}  {command.summary}")


if __name__ == "__main__":
    main()
