"""Timescales of hidden units: ``python -m fairseq_plugins.cli.plot_timescales --help``."""

import argparse
from dataclasses import asdict
from typing import Mapping, Sequence

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.command_line import Command, add_data, add_json, add_named_models, add_plot
from fairseq_plugins.evaluation.analyses.layers import Timescales, timescales
from fairseq_plugins.evaluation.checkpoints import check_layers, load_language_models
from fairseq_plugins.options import named_paths
from fairseq_plugins.reports.analyses import draw_timescales, timescale_table
from fairseq_plugins.reports.tables import json_text, save_picture
from fairseq_plugins.reports.training_log import with_origin


class PlotTimescales(Command):
    """Shows the memory of hidden units."""

    name = "plot_timescales"
    summary = "How long the units of linear recurrent networks remember, sorted."
    description = """\
The timescale of a unit is -1 / log r tokens, in which it forgets all but 1/e (Pachitariu & Sahani 2013). Units with
r < 0 change their sign at every token; they have none."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_data(parser)
        add_named_models(parser, help="models with --rnn-cell diagonal")
        add_json(parser)
        add_plot(parser, help="draw them, such as timescales.png")

    def run(self, args: argparse.Namespace) -> None:
        names, paths = zip(*named_paths(args.path, repeated_names="refused"))
        models, _ = load_language_models(paths, args.data)
        check_layers(models, paths)
        found = {name: timescales(model, path) for name, model, path in zip(names, models, paths)}
        print(as_json(found, args) if args.json else timescale_table(found))
        if args.plot:
            save_picture(draw_timescales(found), args.plot)


def as_json(found: Mapping[str, Sequence[Timescales]], args: argparse.Namespace) -> str:
    """All timescales in JSON, in tokens."""
    models = [{"name": name, "layers": [asdict(one) for one in layers]} for name, layers in found.items()]
    return json_text(with_origin({"models": models}, command=args.command_line))


if __name__ == "__main__":
    PlotTimescales().main()
