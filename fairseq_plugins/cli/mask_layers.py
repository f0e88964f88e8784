"""Perplexity with randomly masked layers: ``python -m fairseq_plugins.cli.mask_layers --help``."""

import argparse
import sys
from dataclasses import asdict

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.command_line import (
    Command,
    add_cpu,
    add_data,
    add_json,
    add_named_models,
    add_plot,
    add_split,
    choose_device,
)
from fairseq_plugins.data.text import load_token_stream
from fairseq_plugins.evaluation.analyses.layers import LAYER_MASKS, masking_curves
from fairseq_plugins.evaluation.checkpoints import check_layers, load_language_models
from fairseq_plugins.evaluation.scoring import check_rows
from fairseq_plugins.options import UserError, check_at_least_one, named_paths
from fairseq_plugins.reports.analyses import draw_masked_layers, masked_layers_table
from fairseq_plugins.reports.tables import json_text, save_picture
from fairseq_plugins.reports.training_log import with_origin

PROBABILITIES = [round(0.05 * i, 2) for i in range(11)]


class MaskLayers(Command):
    """Measures what models lose without parts of their layers."""

    name = "mask_layers"
    summary = "Perplexity of language models where outputs of their layers are set to zero at random."
    description = """\
Outputs of recurrent layers are set to zero with probability P, as in figure 5 of Shuang et al. 2020: those of all
layers together, and of each alone. What is kept is not rescaled. Prints the mean over runs with different masks."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_data(parser)
        add_named_models(parser, help="models with the same number of layers")
        add_split(parser)
        parser.add_argument(
            "--probabilities",
            nargs="+",
            action="extend",
            type=float,
            metavar="P",
            help="from 0 to 1 (default: 0 to 0.5 in steps of 0.05)",
        )
        parser.add_argument("--runs", type=int, default=5, help="runs of each, seeds 1, 2, ... (default: %(default)s)")
        parser.add_argument(
            "--mask",
            choices=LAYER_MASKS,
            default="element",
            help="element: a fresh mask for every element; locked: one for each feature that stays "
            "(default: %(default)s)",
        )
        parser.add_argument(
            "--rows",
            type=int,
            default=10,
            help="parallel rows the stream is cut into, for speed: each starts from zero, its first token unscored; "
            "1 gives the perplexity of evaluate_lm where P is 0 (default: %(default)s)",
        )
        add_plot(parser, help="draw the curves, such as masking.png")
        add_cpu(parser)
        add_json(parser)

    def run(self, args: argparse.Namespace) -> None:
        check_at_least_one(args.runs, flag="--runs")
        probabilities = args.probabilities or PROBABILITIES
        wrong = [probability for probability in probabilities if not 0 <= probability <= 1]
        if wrong:
            raise UserError(f"--probabilities {wrong[0]:g}: give numbers from 0 to 1")
        if len(set(probabilities)) < len(probabilities):
            raise UserError("--probabilities: give each number once")
        check_at_least_one(args.rows, flag="--rows")
        names, paths = zip(*named_paths(args.path, repeated_names="refused"))
        device = choose_device(args)
        models, dictionary = load_language_models(paths, args.data)
        check_layers(models, paths)
        tokens = load_token_stream(args.data, args.split, dictionary)
        check_rows(tokens, num_rows=args.rows, split=args.split)
        curves = masking_curves(
            {name: model.to(device) for name, model in zip(names, models)},
            tokens,
            probabilities=probabilities,
            kind=args.mask,
            num_runs=args.runs,
            unknown=dictionary.unk(),
            num_rows=args.rows,
            device=device,
            show_progress=sys.stderr.isatty(),
        )
        if args.json:
            figures = {"curves": [asdict(runs) for runs in curves]}
            print(json_text(with_origin(figures, command=args.command_line)))
        else:
            print(masked_layers_table(curves))
        if args.plot:
            save_picture(draw_masked_layers(curves), args.plot)


if __name__ == "__main__":
    MaskLayers().main()
