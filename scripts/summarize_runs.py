#!/usr/bin/env python3
"""Compare trained language models: a Markdown table, a JSON file and a picture of the learning curves.

Each run is a --save-dir of fairseq-train with checkpoint_best.pt and the log train.log that the recipes
write. Perplexities are those of `python -m fairseq_plugins.cli.evaluate_lm` (one row, carried state).
"""

import sys
from pathlib import Path
from typing import Dict, List

import torch
from comparison import get_parser, read_speed, read_valid_curve, write_comparison

import fairseq_plugins  # noqa: F401
from fairseq_plugins.cli import one_line_errors, quiet_host_logging
from fairseq_plugins.data.corpus import load_token_stream
from fairseq_plugins.evaluation.checkpoints import load_language_models
from fairseq_plugins.evaluation.perplexity import evaluate_perplexity
from fairseq_plugins.flags.values import named_paths


def summarize(name: str, run: Path, data: str) -> Dict:
    """Figures of one run."""
    checkpoint = str(run / "checkpoint_best.pt")
    (model,), dictionary = load_language_models([checkpoint], data)
    figures = {"name": name, "parameters": sum(parameter.numel() for parameter in model.parameters())}
    for split in ("valid", "test"):
        tokens = load_token_stream(data, split, dictionary)
        result = evaluate_perplexity([model], tokens, unknown=dictionary.unk(), show_progress=sys.stderr.isatty())
        figures[f"{split}_perplexity"] = result.perplexity
    config = torch.load(checkpoint, map_location="cpu")["cfg"]
    figures["seed"] = config["common"]["seed"]
    log = run / "train.log"
    curve = read_valid_curve(log)
    return {**figures, "valid_curve": curve, "words_per_second": read_speed(log), "epochs": max(curve)}


def as_markdown(runs: List[Dict]) -> str:
    """The comparison as a table."""
    lines = [
        "| model | parameters | valid perplexity | test perplexity | words per second | epochs | seed |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for run in runs:
        lines.append(
            f"| {run['name']} | {run['parameters']:,} | {run['valid_perplexity']:.2f} | "
            f"{run['test_perplexity']:.2f} | {run['words_per_second']:,.0f} | {run['epochs']} | {run['seed']} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write ``table.md``, ``runs.json`` and ``learning_curves.png`` and print the table."""
    parser = get_parser(__doc__)
    args = parser.parse_args()
    quiet_host_logging()
    with one_line_errors(parser):
        runs = [summarize(name, run, args.data) for name, run in named_paths(args.runs)]
    write_comparison(runs, as_markdown(runs), args.out)


if __name__ == "__main__":
    main()
