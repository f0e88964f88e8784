#!/usr/bin/env python3
"""Compare trained translation models: a Markdown table, a JSON file and a picture of the learning curves.

Each run is a --save-dir of fairseq-train with checkpoint_best.pt, the log train.log that the recipes write, and test,
the directory that scripts/evaluate_bleu.sh wrote for it. Runs of one name differ in their seed.
"""

import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Dict, List

from comparison import get_parser, read_training, write_comparison

import fairseq_plugins  # noqa: F401
from fairseq_plugins.cli import one_line_errors, quiet_host_logging
from fairseq_plugins.evaluation.generated_text import read_lines
from fairseq_plugins.evaluation.translations import read_translation, score
from fairseq_plugins.flags.values import named_paths


def summarize(name: str, run: Path, data: str, reference: Path) -> Dict:
    """Figures of one run."""
    figures = read_training(name, run, data)
    references = read_lines(reference)
    translation = read_translation(
        run / "test/generate.txt",
        references=references,
        reference_name=str(reference),
        language=reference.suffix[1:],
    )
    return {**figures, "scores": [asdict(item) for item in score(translation, references)]}


def as_markdown(runs: List[Dict]) -> str:
    """A line for each name: every seed's figures, and the means; the metrics' signatures."""
    names = list(dict.fromkeys(run["name"] for run in runs))
    lines = [
        "| model | parameters | seeds | valid perplexity | BLEU | mean | chrF | tokenised BLEU |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name in names:
        same = [run for run in runs if run["name"] == name]
        bleu, chrf, tokenized = ([run["scores"][i]["value"] for run in same] for i in range(3))
        seeds = ", ".join(str(run["seed"]) for run in same)
        perplexities = ", ".join(f"{run['valid_perplexity']:.2f}" for run in same)
        figures = [
            *(seeds, perplexities, ", ".join(f"{value:.2f}" for value in bleu), f"{statistics.mean(bleu):.2f}"),
            *(f"{statistics.mean(values):.2f}" for values in (chrf, tokenized)),
        ]
        lines.append(f"| {name} | {same[0]['parameters']:,} | {' | '.join(figures)} |")
    signatures = "; ".join(item["signature"] for item in runs[0]["scores"])
    return "\n".join(lines) + f"\n\nBLEU, chrF, tokenised BLEU: `{signatures}`.\n"


def main() -> None:
    """Write ``table.md``, ``runs.json`` and ``learning_curves.png`` and print the table."""
    parser = get_parser(__doc__)
    parser.add_argument(
        "--reference", type=Path, required=True, help="raw reference text of the test set, such as DATA/raw/test.de"
    )
    args = parser.parse_args()
    quiet_host_logging()
    with one_line_errors(parser):
        runs = [summarize(name, run, args.data, args.reference) for name, run in named_paths(args.runs)]
    write_comparison(runs, as_markdown(runs), args.out)


if __name__ == "__main__":
    main()
