"""Rank of a language model's log-probabilities: ``python -m fairseq_plugins.cli.measure_rank --help``."""

import argparse
import sys

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.command_line import Command, add_checkpoints, add_cpu, add_data, add_json, add_split, choose_device
from fairseq_plugins.data.text import load_token_stream
from fairseq_plugins.evaluation.analyses.experts import default_threshold, rank, singular_values
from fairseq_plugins.evaluation.checkpoints import load_language_models
from fairseq_plugins.options import UserError, check_at_least_one, check_not_negative
from fairseq_plugins.reports.tables import json_text
from fairseq_plugins.reports.training_log import with_origin


class MeasureRank(Command):
    """Measures the rank of log-probabilities."""

    name = "measure_rank"
    summary = "Rank of a language model's log-probabilities, which a single softmax bounds."
    description = """\
The matrix has a row for each position and a column for each word; its rank is the number of its singular values above a
threshold. A single softmax of d features has at most d + 2. The matrix is not held, but 16 bytes for each pair of words
are: 1.6 GB for 10,000 words."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_data(parser)
        add_checkpoints(parser, help="one checkpoint")
        add_split(parser, help="split whose positions are taken")
        parser.add_argument("--positions", type=int, help="take the first positions only (default: all)")
        parser.add_argument(
            "--threshold",
            type=float,
            default=1.0,
            help="singular values above it count (default: %(default)s, as in the program published with DRILL)",
        )
        add_cpu(parser)
        add_json(parser)

    def run(self, args: argparse.Namespace) -> None:
        if args.positions is not None:
            check_at_least_one(args.positions, flag="--positions")
        check_not_negative(args.threshold, flag="--threshold")
        if len(args.path) > 1:
            raise UserError(f"--path: give one checkpoint; there are {len(args.path)}")
        device = choose_device(args)
        (model,), dictionary = load_language_models(args.path, args.data)
        tokens = load_token_stream(args.data, args.split, dictionary)
        tokens = tokens[: None if args.positions is None else args.positions + 1]
        values = singular_values(model.to(device), tokens, device=device, show_progress=sys.stderr.isatty())
        num_positions = len(tokens) - 1
        default = default_threshold(values, num_positions=num_positions)
        figures = {
            "positions": num_positions,
            "words": len(values),
            "largest": float(values[0]),
            "threshold": args.threshold,
            "rank": rank(values, threshold=args.threshold),
            "default_threshold": default,
            "rank_at_default_threshold": rank(values, threshold=default),
        }
        if args.json:
            print(json_text(with_origin(figures, command=args.command_line)))
        else:
            print(
                f"positions, words           {num_positions:,}, {len(values):,}\n"
                f"largest singular value     {figures['largest']:,.1f}\n"
                f"rank: values above {args.threshold:<8g}{figures['rank']:,}\n"
                f"values above {default:<14.4g}{figures['rank_at_default_threshold']:,} "
                "(threshold: max(positions, words) x float32's eps x largest)"
            )


if __name__ == "__main__":
    MeasureRank().main()
