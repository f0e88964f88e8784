"""Commands that print results as tables or as JSON and may draw them."""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional

from fairseq_plugins.command_line import add_json, add_plot
from fairseq_plugins.console import Command
from fairseq_plugins.reports.provenance import with_origin
from fairseq_plugins.reports.tables import json_text, save_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Results:
    """Results of a command.

    Attributes:
        figures: for ``--json``.
        text: tables.
        draw: makes the picture of ``--plot``.
    """

    figures: Mapping[str, Any]
    text: str
    draw: "Optional[Callable[[], Figure]]" = None


def results_command(
    compute: Callable[[argparse.Namespace], Results],
    add_arguments: Callable[[argparse.ArgumentParser], None],
    *,
    plot: str = "",
    description: str,
    example: str,
    forwards_to: str = "",
) -> Command:
    """A command that prints results as tables or, with ``--json``, as JSON.

    Args:
        compute: maps arguments to results.
        add_arguments: declares the arguments, except ``--json`` and ``--plot``.
        plot: help of ``--plot``, which draws the results; without it there is no such flag.
        description, example, forwards_to: see :class:`Command`.
    """

    def add_all_arguments(parser: argparse.ArgumentParser) -> None:
        add_arguments(parser)
        if plot:
            add_plot(parser, help=plot)
        add_json(parser)

    def run(args: argparse.Namespace) -> None:
        results = compute(args)
        print(json_text(with_origin(results.figures, command=args.command_line)) if args.json else results.text)
        if results.draw is not None and args.plot:
            save_picture(results.draw(), args.plot)

    return Command(
        add_arguments=add_all_arguments, run=run, description=description, example=example, forwards_to=forwards_to
    )
