#!/usr/bin/env python3
"""Compare trained headline models: a Markdown table, a JSON file and a picture of the learning curves.

Each run is a --save-dir of fairseq-train with checkpoint_best.pt, the log train.log that the recipes write, and test,
the directory that scripts/evaluate_rouge.sh wrote for it. Runs of one name differ in their seed. Texts of other origin,
such as the baselines of scripts/headline_baselines.py, stand beside them with --text.
"""

import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Dict, List

from comparison import get_parser, read_training, write_comparison

import fairseq_plugins  # noqa: F401
from fairseq_plugins.cli import one_line_errors, quiet_host_logging
from fairseq_plugins.evaluation.generated_text import read_lines
from fairseq_plugins.evaluation.headlines import read_headlines, score_headlines
from fairseq_plugins.flags.values import named_paths
from fairseq_plugins.scoring.rouge import METRICS, RougeSettings


def summarize(name: str, run: Path, data: str, reference: Path) -> Dict:
    """Figures of one run."""
    figures = read_training(name, run, data)
    path = run / "test/generate.txt"
    return {**figures, **scored(read_headlines(path), path, reference)}


def scored(hypotheses: List[str], path: Path, reference: Path) -> Dict:
    """ROUGE and the mean number of words."""
    scores = score_headlines(hypotheses, path, [reference], RougeSettings())
    return {
        "scores": [asdict(item) for item in scores],
        "words": statistics.mean(len(line.split()) for line in hypotheses),
    }


def as_markdown(runs: List[Dict]) -> str:
    """A line for each run and, where there are several seeds, one for their mean; the settings' signature."""
    metrics = list(METRICS.values())
    lines = [
        f"| model | parameters | seed | valid perplexity | words | {' | '.join(f'{name} F1' for name in metrics)} |",
        f"|---|--:|--:|--:|--:|{'--:|' * len(metrics)}",
    ]
    for name in dict.fromkeys(run["name"] for run in runs):
        same = [run for run in runs if run["name"] == name]
        for run in same:
            f1 = " | ".join(f"{score['f1']:.2f} +- {score['f1_interval']:.2f}" for score in run["scores"])
            training = (
                f"{run['parameters']:,} | {run['seed']} | {run['valid_perplexity']:.2f}" if "seed" in run else "| |"
            )
            lines.append(f"| {name} | {training} | {run['words']:.1f} | {f1} |")
        if len(same) > 1:
            means = [statistics.mean(run["scores"][i]["f1"] for run in same) for i in range(len(metrics))]
            lines.append(f"| {name}, mean | | | | | {' | '.join(f'{mean:.2f}' for mean in means)} |")
    return "\n".join(lines) + f"\n\nROUGE: `{RougeSettings().signature(num_references=1)}`.\n"


def main() -> None:
    """Write ``table.md``, ``runs.json`` and ``learning_curves.png`` and print the table."""
    parser = get_parser(__doc__)
    parser.add_argument("--reference", type=Path, required=True, help="raw headlines, such as DATA/raw/test.title")
    parser.add_argument("--text", action="append", default=[], metavar="NAME=FILE", help="headlines of other origin")
    args = parser.parse_args()
    quiet_host_logging()
    with one_line_errors(parser):
        runs = [summarize(name, run, args.data, args.reference) for name, run in named_paths(args.runs)]
        texts = [
            {"name": name, **scored(read_lines(path), path, args.reference)} for name, path in named_paths(args.text)
        ]
    write_comparison(runs + texts, as_markdown(runs + texts), args.out)


if __name__ == "__main__":
    main()
