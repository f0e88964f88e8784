#!/usr/bin/env python3
"""Compare trained language models: a Markdown table, a JSON file and a picture of the learning curves.

Each run is a --save-dir of fairseq-train with checkpoint_best.pt and the log train.log that the recipes
write. Perplexities are those of `python -m fairseq_plugins.cli.evaluate_lm` (one row, carried state).
"""

import argparse
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Dict, List

import torch
from provenance import provenance

import fairseq_plugins  # noqa: F401
from fairseq_plugins.cli import quiet_host_logging
from fairseq_plugins.data.corpus import load_token_stream
from fairseq_plugins.evaluation.checkpoints import load_language_models
from fairseq_plugins.evaluation.perplexity import evaluate_perplexity

VALID_LINE = re.compile(r"\| valid \| epoch (\d+) \|.*?\| ppl ([\d.]+)")
SPEED = re.compile(r"\| train_inner \|.*? wps=([\d.]+)")


def read_valid_curve(path: Path) -> Dict[int, float]:
    """Validation perplexity by epoch."""
    curve = {int(epoch): float(ppl) for epoch, ppl in VALID_LINE.findall(path.read_text(encoding="utf-8"))}
    if not curve:
        raise ValueError(f"{path} holds no validation: log with --log-format simple")
    return curve


def read_speed(path: Path) -> float:
    """Median training speed in tokens per second."""
    speeds = [float(wps) for wps in SPEED.findall(path.read_text(encoding="utf-8"))]
    if not speeds:
        raise ValueError(f"{path} holds no training speed: log with --log-format simple and a smaller --log-interval")
    return statistics.median(speeds)


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


def plot(runs: List[Dict], path: Path) -> None:
    """Validation perplexity by epoch, one line a run."""
    # imported here, when the host's debug logging is off
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for run in runs:
        axes.plot(list(run["valid_curve"]), list(run["valid_curve"].values()), marker="o", label=run["name"])
    axes.set(xlabel="epoch", ylabel="validation perplexity", yscale="log")
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(ScalarFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    """Write ``table.md``, ``runs.json`` and ``learning_curves.png`` and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="directory that fairseq-preprocess wrote")
    parser.add_argument("runs", nargs="+", metavar="NAME=SAVE_DIR", help="runs to compare")
    parser.add_argument("--out", type=Path, required=True, help="directory for the results")
    args = parser.parse_args()
    quiet_host_logging()
    named = [run.partition("=") for run in args.runs]
    if not all(run for _, _, run in named):
        parser.error("give every run as NAME=SAVE_DIR")
    try:
        runs = [summarize(name, Path(run), args.data) for name, _, run in named]
    except (ValueError, FileNotFoundError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    args.out.mkdir(parents=True, exist_ok=True)
    origin = provenance()
    table = as_markdown(runs)
    footer = f"\n{origin['date']}, commit {origin['commit']}; {origin['machine']}.\n"
    (args.out / "table.md").write_text(table + footer, encoding="utf-8")
    (args.out / "runs.json").write_text(json.dumps({**origin, "runs": runs}, indent=1) + "\n", encoding="utf-8")
    plot(runs, args.out / "learning_curves.png")
    print(table)
    print(f"written to {args.out}: table.md, runs.json, learning_curves.png")


if __name__ == "__main__":
    main()
