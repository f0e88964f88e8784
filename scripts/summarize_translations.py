#!/usr/bin/env python3
"""Compare trained translation models: a Markdown table, a JSON file and a picture of the learning curves.

Each run is a --save-dir of fairseq-train with checkpoint_best.pt, the log train.log that the recipes write, and test,
the directory that scripts/evaluate_bleu.sh wrote for it. Runs of one name differ in their seed.
"""

import argparse
import json
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Dict, List

from provenance import provenance
from summarize_runs import plot, read_valid_curve

import fairseq_plugins  # noqa: F401
from fairseq_plugins.cli import quiet_host_logging
from fairseq_plugins.cli.evaluate_translation import read_system
from fairseq_plugins.evaluation.translations import read_lines, score


def summarize(name: str, run: Path, *, data: str, references: List[str], reference: str) -> Dict:
    """Figures of one run."""
    from fairseq.checkpoint_utils import load_model_ensemble_and_task  # when the host's notes are off

    (model,), config, _ = load_model_ensemble_and_task([str(run / "checkpoint_best.pt")], arg_overrides={"data": data})
    system = read_system(run / "test/generate.txt", references, reference, Path(reference).suffix[1:])
    generated = system["generated"]
    scores = score(
        detokenized=system["detokenized"],
        references=references,
        tokenized=generated.hypotheses,
        tokenized_references=generated.references,
    )
    curve = read_valid_curve(run / "train.log")
    return {
        "name": name,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seed": config.common.seed,
        "epochs": max(curve),
        "valid_perplexity": min(curve.values()),
        "valid_curve": curve,
        "scores": [asdict(item) for item in scores],
    }


def as_markdown(runs: List[Dict]) -> str:
    """A line for each name: every seed's figures, and the means."""
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
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write ``table.md``, ``runs.json`` and ``learning_curves.png`` and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="directory that fairseq-preprocess wrote")
    parser.add_argument("runs", nargs="+", metavar="NAME=SAVE_DIR", help="runs to compare")
    parser.add_argument(
        "--reference", required=True, help="raw reference text of the test set, such as DATA/raw/test.de"
    )
    parser.add_argument("--out", type=Path, required=True, help="directory for the results")
    args = parser.parse_args()
    quiet_host_logging()
    named = [run.partition("=") for run in args.runs]
    if not all(run for _, _, run in named):
        parser.error("give every run as NAME=SAVE_DIR")
    try:
        references = read_lines(Path(args.reference))
        runs = [
            summarize(name, Path(run), data=args.data, references=references, reference=args.reference)
            for name, _, run in named
        ]
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    args.out.mkdir(parents=True, exist_ok=True)
    origin = provenance()
    table = as_markdown(runs)
    signatures = "; ".join(item["signature"] for item in runs[0]["scores"])
    footer = (
        f"\nBLEU, chrF, tokenised BLEU: `{signatures}`.\n"
        f"{origin['date']}, commit {origin['commit']}; {origin['machine']}.\n"
    )
    (args.out / "table.md").write_text(table + footer, encoding="utf-8")
    (args.out / "runs.json").write_text(json.dumps({**origin, "runs": runs}, indent=1) + "\n", encoding="utf-8")
    plot([{**run, "name": f"{run['name']}, seed {run['seed']}"} for run in runs], args.out / "learning_curves.png")
    print(table)
    print(f"written to {args.out}: table.md, runs.json, learning_curves.png")


if __name__ == "__main__":
    main()
