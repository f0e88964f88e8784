"""Commands that find figures, which they print as tables or as JSON and may draw."""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional

from fairseq_plugins.command_line import add_json, add_plot
from fairseq_plugins.console import Command
from fairseq_plugins.reports.tables import json_text, save_picture
from fairseq_plugins.reports.training_log import with_origin

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Findings:
    """Results of a command.

    Attributes:
        figures: for ``--json``.
        text: tables.
        draw: makes the picture of ``--plot``.
    """

    figures: Mapping[str, Any]
    text: str
    draw: "Optional[Callable[[], Figure]]" = None


def finding(
    find: Callable[[argparse.Namespace], Findings],
    add_arguments: Callable[[argparse.ArgumentParser], None],
    *,
    plot: str = "",
    description: str,
    example: str,
    forwards_to: str = "",
) -> Command:
    """A command that prints findings as tables or, with ``--json``, as JSON.

    Args:
        find: maps arguments to findings.
        add_arguments: declares the arguments, except ``--json`` and ``--plot``.
        plot: help of ``--plot``, which draws the findings; without it there is no such flag.
        description, example, forwards_to: see :class:`Command`.
    """

    def add_all_arguments(parser: argparse.ArgumentParser) -> None:
        add_arguments(parser)
        if plot:
            add_plot(parser, help=plot)
        add_json(parser)

    def run(args: argparse.Namespace) -> None:
        found = find(args)
        if found.draw is not None and args.plot:
            save_picture(found.draw(), args.plot)
        print(json_text(with_origin(found.figures, command=args.command_line)) if args.json else found.text)

    return Command(
        add_arguments=add_all_arguments, run=run, description=description, example=example, forwards_to=forwards_to
    )
