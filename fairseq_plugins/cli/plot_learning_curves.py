"""Learning curves of trainings, finished or not: ``python -m fairseq_plugins.cli.plot_learning_curves --help``."""

import argparse
from pathlib import Path
from typing import Any, Dict

from fairseq_plugins.command_line import Command, add_json, add_named_folders, add_plot
from fairseq_plugins.options import named_paths
from fairseq_plugins.reports.comparison import learning_table
from fairseq_plugins.reports.plots import draw_learning_curves
from fairseq_plugins.reports.tables import json_text, save_picture
from fairseq_plugins.reports.training_log import check_seeds, find_log, read_logged_training, read_seed, with_origin


class PlotLearningCurves(Command):
    """Shows the progress of training runs."""

    name = "plot_learning_curves"
    summary = "How trainings go: validation by epoch from their logs, while they still run, too."
    description = """\
Reads the logs train.log of trainings, which may still run, may have been stopped, or may have lost their checkpoints;
no data and no model is read. Prints the last and the lowest perplexity of the validation set, the highest scores of its
decoded text where the training decoded it, speed and hours; --plot and --json have every epoch. Trainings of one name
differ in their seed and have their mean and standard deviation. Date, code and machine of --json are those of the
drawing. For finished trainings compare_runs measures the test set, too."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_named_folders(parser, help="trainings, finished or not")
        add_plot(parser, help="draw the curves, such as learning_curves.png")
        add_json(parser)

    def run(self, args: argparse.Namespace) -> None:
        paths = named_paths(args.path)
        runs = [_figures(name, path) for name, path in paths]
        check_seeds((run["name"], run["seed"], path) for run, (_, path) in zip(runs, paths))
        if args.plot:
            save_picture(draw_learning_curves(runs), args.plot)
        if args.json:
            print(json_text(with_origin({"runs": runs}, command=args.command_line)))
        else:
            print(learning_table(runs))


def _figures(name: str, save_dir: Path) -> Dict[str, Any]:
    return {"name": name, "seed": read_seed(find_log(save_dir)), **read_logged_training(save_dir).figures()}


if __name__ == "__main__":
    PlotLearningCurves().main()
