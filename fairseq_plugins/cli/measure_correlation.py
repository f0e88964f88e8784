"""Correlation of the features of a layer: ``python -m fairseq_plugins.cli.measure_correlation --help``."""

import argparse
import json
import sys
from dataclasses import asdict
from typing import Dict, List

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.cli import add_common_options, choose_device, one_line_errors, quiet_host_logging
from fairseq_plugins.data.corpus import load_token_stream
from fairseq_plugins.evaluation.checkpoints import load_language_models
from fairseq_plugins.evaluation.feature_correlation import layer_correlations
from fairseq_plugins.flags.values import named_paths


def get_parser() -> argparse.ArgumentParser:
    """The command's flags."""
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_plugins.cli.measure_correlation",
        description="Mean absolute Pearson correlation of different features of each recurrent layer's output over the "
        "positions of a split, between 0 and 1; for Major-Minor LSTMs also within the major part, within the minor "
        "part, and between a feature of each.",
    )
    parser.add_argument("data", help="directory that fairseq-preprocess --only-source wrote")
    parser.add_argument("models", nargs="+", metavar="NAME=CKPT", help="trained models")
    parser.add_argument("--split", default="test", help="split to read (default: %(default)s)")
    add_common_options(parser)
    return parser


def main() -> None:
    """Run the command; a user's mistake ends with one line and exit status 2."""
    quiet_host_logging()
    parser = get_parser()
    args = parser.parse_args()
    device = choose_device(args)
    with one_line_errors(parser):
        names, paths = zip(*named_paths(args.models, repeated_names="refused"))
        models, dictionary = load_language_models(paths, args.data)
        tokens = load_token_stream(args.data, args.split, dictionary)
        options = dict(unknown=dictionary.unk(), device=device, show_progress=sys.stderr.isatty())
        figures = [
            {"model": name, **asdict(layer)}
            for name, model in zip(names, models)
            for layer in layer_correlations(model.to(device), tokens, **options)
        ]
    print(json.dumps(figures) if args.json else as_markdown(figures))


def as_markdown(figures: List[Dict]) -> str:
    """A layer a line."""
    lines = [
        "| model | layer | width | constant features | mean | major | minor | between |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for figure in figures:
        values = [
            "" if figure[name] is None else f"{figure[name]:.4f}" for name in ("mean", "major", "minor", "between")
        ]
        lines.append(
            f"| {figure['model']} | {figure['layer']} | {figure['width']:,} | {figure['num_constant']:,} "
            f"| {' | '.join(values)} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
