"""A comparison of trained models: its options, what it reads of a training, and the files that it writes."""

import argparse
import json
import re
import statistics
from pathlib import Path
from typing import Dict, List

from provenance import provenance

VALID_LINE = re.compile(r"\| valid \| epoch (\d+) \|.*?\| ppl ([\d.]+)")
SPEED = re.compile(r"\| train_inner \|.*? wps=([\d.]+)")


def get_parser(description: str) -> argparse.ArgumentParser:
    """The options that all comparisons share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="directory that fairseq-preprocess wrote")
    parser.add_argument("runs", nargs="+", metavar="NAME=SAVE_DIR", help="runs to compare")
    parser.add_argument("--out", type=Path, required=True, help="directory for the results")
    return parser


def write_comparison(runs: List[Dict], table: str, out: Path) -> None:
    """Write ``table.md``, ``runs.json`` and ``learning_curves.png``, print the table.

    Args:
        runs: figures of each, with ``name``, and ``seed`` and ``valid_curve`` where it was trained.
        table: in Markdown, with what explains it.
        out: directory, made if missing.
    """
    out.mkdir(parents=True, exist_ok=True)
    origin = provenance()
    footer = f"\n{origin['date']}, commit {origin['commit']}; {origin['machine']}.\n"
    (out / "table.md").write_text(table + footer, encoding="utf-8")
    (out / "runs.json").write_text(json.dumps({**origin, "runs": runs}, indent=1) + "\n", encoding="utf-8")
    plot([run for run in runs if "valid_curve" in run], out / "learning_curves.png")
    print(table)
    print(f"written to {out}: table.md, runs.json, learning_curves.png")


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


def read_training(name: str, run: Path, data: str) -> Dict:
    """What a translation training left: parameters, seed, epochs, validation perplexity."""
    from fairseq.checkpoint_utils import load_model_ensemble_and_task  # when the host's notes are off

    (model,), config, _ = load_model_ensemble_and_task([str(run / "checkpoint_best.pt")], arg_overrides={"data": data})
    curve = read_valid_curve(run / "train.log")
    return {
        "name": name,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seed": config.common.seed,
        "epochs": max(curve),
        "valid_perplexity": min(curve.values()),
        "valid_curve": curve,
    }


def plot(runs: List[Dict], path: Path) -> None:
    """Validation perplexity by epoch, one line a run."""
    # imported here, when the host's debug logging is off
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    names = [run["name"] for run in runs]
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for run in runs:
        label = run["name"] if names.count(run["name"]) == 1 else f"{run['name']}, seed {run['seed']}"
        axes.plot(list(run["valid_curve"]), list(run["valid_curve"].values()), marker="o", label=label)
    axes.set(xlabel="epoch", ylabel="validation perplexity", yscale="log")
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(ScalarFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(path, dpi=150)
