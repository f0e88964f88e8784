"""Commands that print a report as text or as JSON and may draw it."""

import argparse
from typing import Callable

from fairseq_plugins.command_line import add_json, add_plot
from fairseq_plugins.console import Command
from fairseq_plugins.reports.pictures import save_picture
from fairseq_plugins.reports.provenance import origin
from fairseq_plugins.reports.report import Report, json_text


def report_command(
    compute: Callable[[argparse.Namespace], Report],
    add_arguments: Callable[[argparse.ArgumentParser], None],
    *,
    plot: str = "",
    description: str,
    example: str,
    forwards_to: str = "",
) -> Command:
    """A command that prints a report as text or, with ``--json``, as JSON.

    Args:
        compute: maps arguments to the report.
        add_arguments: declares the arguments, except ``--json`` and ``--plot``.
        plot: help of ``--plot``, which draws the report; without it there is no such flag.
        description, example, forwards_to: see :class:`Command`.
    """

    def add_all_arguments(parser: argparse.ArgumentParser) -> None:
        add_arguments(parser)
        if plot:
            add_plot(parser, help=plot)
        add_json(parser)

    def run(args: argparse.Namespace) -> None:
        report = compute(args)
        print_report(report, args)
        if report.draw is not None and args.plot:
            save_picture(report.draw(), args.plot)

    return Command(
        add_arguments=add_all_arguments, run=run, description=description, example=example, forwards_to=forwards_to
    )


def print_report(report: Report, args: argparse.Namespace) -> None:
    """Print a report as text or, with ``--json``, as JSON with date, code, machine and command line."""
    print(json_text({**origin(args.command_line), **report.figures}) if args.json else report.text)
