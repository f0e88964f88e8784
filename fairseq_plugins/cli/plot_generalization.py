"""Validation perplexity at equal training perplexity: ``python -m fairseq_plugins.cli.plot_generalization --help``."""

import argparse

from fairseq_plugins.command_line import Command, add_json, add_named_folders, add_plot
from fairseq_plugins.options import check_positive, named_paths
from fairseq_plugins.reports.plots import (
    draw_generalization,
    generalization_record,
    generalization_table,
    read_generalization,
)
from fairseq_plugins.reports.tables import json_text, save_picture
from fairseq_plugins.reports.training_log import with_origin


class PlotGeneralization(Command):
    """Shows how well training runs generalise."""

    name = "plot_generalization"
    summary = "Validation against training perplexity: what generalises better, and what is only faster."
    description = """\
Reads the logs train.log of trainings, epoch by epoch. Of two trainings at equal perplexity of the training set the one
with the lower perplexity of the validation set generalises better; on one curve, one is only faster than the other.
Training perplexity is the mean over the updates of an epoch, with dropout, as it is logged, and the validation set is
read after the epoch: compare trainings with equal dropout and epochs, and at levels that both pass slowly, since what
learns fast within an epoch, as in the first or behind a fall of the rate, looks better than it is. Noise-contrastive
estimation logs none. Date, code and machine of --json are those of the drawing."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_named_folders(parser, help="trainings, finished or not")
        parser.add_argument(
            "--at",
            nargs="+",
            action="extend",
            type=float,
            default=[],
            metavar="PPL",
            help="training perplexities at which to compare, interpolated between epochs (default: none)",
        )
        add_plot(parser, help="draw the curves, such as generalization.png")
        add_json(parser)

    def run(self, args: argparse.Namespace) -> None:
        for level in args.at:
            check_positive(level, flag="--at")
        runs = [read_generalization(name, path) for name, path in named_paths(args.path, repeated_names="refused")]
        if args.plot:
            save_picture(draw_generalization(runs), args.plot)
        if args.json:
            figures = {"runs": generalization_record(runs, levels=args.at)}
            print(json_text(with_origin(figures, command=args.command_line)))
        else:
            print(generalization_table(runs, levels=args.at))


if __name__ == "__main__":
    PlotGeneralization().main()
