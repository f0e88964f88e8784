"""Correlation of the features of a layer: ``python -m fairseq_plugins.cli.measure_correlation --help``."""

import argparse
import sys

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.command_line import (
    Command,
    add_cpu,
    add_data,
    add_json,
    add_named_models,
    add_split,
    choose_device,
)
from fairseq_plugins.data.text import load_token_stream
from fairseq_plugins.evaluation.analyses.layers import layer_correlations
from fairseq_plugins.evaluation.checkpoints import check_layers, load_language_models
from fairseq_plugins.options import named_paths
from fairseq_plugins.reports.analyses import correlation_row, correlation_table
from fairseq_plugins.reports.tables import json_text
from fairseq_plugins.reports.training_log import with_origin


class MeasureCorrelation(Command):
    """Measures the correlation of features."""

    name = "measure_correlation"
    summary = "How far the features of each layer of language models are correlated."
    description = """\
Mean absolute Pearson correlation of different features of each recurrent layer's output over the positions of a split,
between 0 and 1; for Major-Minor LSTMs also within the major part, within the minor part, and between a feature
of each."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_data(parser)
        add_named_models(parser, help="trained models")
        add_split(parser, help="split to read")
        add_cpu(parser)
        add_json(parser)

    def run(self, args: argparse.Namespace) -> None:
        device = choose_device(args)
        names, paths = zip(*named_paths(args.path, repeated_names="refused"))
        models, dictionary = load_language_models(paths, args.data)
        check_layers(models, paths)
        tokens = load_token_stream(args.data, args.split, dictionary)
        found = [
            (name, layer)
            for name, model in zip(names, models)
            for layer in layer_correlations(model.to(device), tokens, device=device, show_progress=sys.stderr.isatty())
        ]
        # one set of columns for all models, those of the Major-Minor LSTM among them, so that tables can be joined
        groups = list(dict.fromkeys(["major", "minor", *(group for _, layer in found for group in layer.within)]))
        figures = [correlation_row(name, layer, groups) for name, layer in found]
        if args.json:
            print(json_text(with_origin({"layers": figures}, command=args.command_line)))
        else:
            print(correlation_table(figures, groups))


if __name__ == "__main__":
    MeasureCorrelation().main()
