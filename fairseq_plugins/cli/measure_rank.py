"""Rank of a language model's log-probabilities: ``python -m fairseq_plugins.cli.measure_rank --help``."""

import argparse
import json
import sys

import torch

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.cli import quiet_host_logging
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
    parser.add_argument("--cpu", action="store_true", help="use the CPU even where there is a GPU")
    parser.add_argument("--json", action="store_true", help="print one JSON object for machines")
    return parser


def main() -> None:
    """Run the command; a user's mistake ends with one line and exit status 2."""
    quiet_host_logging()
    parser = get_parser()
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() and not args.cpu else "cpu"
    try:
        if args.positions is not None and args.positions < 1:
            raise ValueError(f"--positions {args.positions}: give at least 1")
        (model,), dictionary = load_language_models([args.checkpoint], args.data)
        tokens = load_token_stream(args.data, args.split, dictionary)
        tokens = tokens[: None if args.positions is None else args.positions + 1]
        values = singular_values(model.to(device), tokens, device=device, show_progress=sys.stderr.isatty())
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
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
