"""Rank of a language model's log-probabilities: ``python -m fairseq_plugins.cli.measure_rank --help``."""

import argparse
import json
import sys

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.cli import add_common_options, choose_device, one_line_errors, quiet_host_logging
from fairseq_plugins.data.corpus import load_token_stream
from fairseq_plugins.evaluation.checkpoints import load_language_models
from fairseq_plugins.evaluation.rank import default_threshold, rank, singular_values


def get_parser() -> argparse.ArgumentParser:
    """The command's flags."""
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_plugins.cli.measure_rank",
        description="Rank of the matrix of log-probabilities, a row for each position and a column for each word: the "
        "number of its singular values above a threshold. A single softmax of d features has at most d + 2. The matrix "
        "is not held, but 16 bytes for each pair of words are: 1.6 GB for 10,000 words.",
    )
    parser.add_argument("checkpoint", help="checkpoint of the model")
    parser.add_argument("data", help="directory that fairseq-preprocess --only-source wrote")
    parser.add_argument("--split", default="test", help="split whose positions are taken (default: %(default)s)")
    parser.add_argument("--positions", type=int, help="take the first positions only (default: all)")
    parser.add_argument(
        "--threshold",
        type=float,
        default=1.0,
        help="singular values above it count (default: %(default)s, as in the program published with DRILL)",
    )
    add_common_options(parser)
    return parser


def main() -> None:
    """Run the command; a user's mistake ends with one line and exit status 2."""
    quiet_host_logging()
    parser = get_parser()
    args = parser.parse_args()
    device = choose_device(args)
    with one_line_errors(parser):
        if args.positions is not None and args.positions < 1:
            raise ValueError(f"--positions {args.positions}: give at least 1")
        (model,), dictionary = load_language_models([args.checkpoint], args.data)
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
        print(json.dumps(figures))
    else:
        print(
            f"positions, words           {num_positions:,}, {len(values):,}\n"
            f"largest singular value     {figures['largest']:,.1f}\n"
            f"rank: values above {args.threshold:<8g}{figures['rank']:,}\n"
            f"values above {default:<14.4g}{figures['rank_at_default_threshold']:,} "
            "(threshold: max(positions, words) x float32's eps x largest)"
        )


if __name__ == "__main__":
    main()
