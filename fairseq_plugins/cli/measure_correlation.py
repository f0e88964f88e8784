"""Correlation of the features of a layer: ``python -m fairseq_plugins.cli.measure_correlation --help``."""

import argparse
import json
import sys
from typing import Dict, List, Sequence

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.cli import add_common_options, choose_device, one_line_errors, quiet_host_logging
from fairseq_plugins.data.corpus import load_token_stream
from fairseq_plugins.evaluation.checkpoints import load_language_models
from fairseq_plugins.evaluation.feature_correlation import LayerCorrelation, layer_correlations
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
        options = dict(device=device, show_progress=sys.stderr.isatty())
        found = [
            (name, layer)
            for name, model in zip(names, models)
            for layer in layer_correlations(model.to(device), tokens, **options)
        ]
    # one set of columns for all models, those of the Major-Minor LSTM among them, so that tables can be joined
    groups = list(dict.fromkeys(["major", "minor", *(group for _, layer in found for group in layer.within)]))
    figures = [as_row(name, layer, groups) for name, layer in found]
    print(json.dumps(figures) if args.json else as_markdown(figures, groups))


def as_row(name: str, layer: LayerCorrelation, groups: Sequence[str]) -> Dict:
    """The figures of a layer by column."""
    return {
        "model": name,
        "layer": layer.layer,
        "width": layer.width,
        "num_constant": layer.num_constant,
        "mean": layer.mean,
        **{group: layer.within.get(group) for group in groups},
        "between": layer.between,
    }


def as_markdown(figures: List[Dict], groups: Sequence[str]) -> str:
    """A layer a line."""
    columns = ["mean", *groups, "between"]
    lines = [
        f"| model | layer | width | constant features | {' | '.join(columns)} |",
        f"|---|--:|--:|--:|{'--:|' * len(columns)}",
    ]
    for figure in figures:
        values = ["" if figure[name] is None else f"{figure[name]:.4f}" for name in columns]
        lines.append(
            f"| {figure['model']} | {figure['layer']} | {figure['width']:,} | {figure['num_constant']:,} "
            f"| {' | '.join(values)} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
