#!/usr/bin/env python3
"""Training speed and peak memory of the reduced Penn Treebank models, with the machine otherwise idle.

Runs the recipe scripts/recipes/lm/ptb_reduced.sh for a few updates per model, in both orders by turns, and
reports the median speed and the largest resident memory of the training process.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from summarize_runs import SPEED, describe_machine, provenance
from tqdm import tqdm

RECIPE = Path(__file__).parent / "recipes/lm/ptb_reduced.sh"
MODELS = ("awd", "mos", "doc")


def measure(model: str, data: str, num_updates: int) -> dict:
    """Speeds of the logged intervals after the first, in tokens per second, and peak memory in MiB."""
    with tempfile.TemporaryDirectory() as save_dir:
        flags = ["--max-update", num_updates, "--no-save", "--disable-validation", "--log-interval", 10]
        process = subprocess.Popen(
            ["bash", str(RECIPE), model, "1", data, save_dir, *map(str, flags)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
        path = Path(save_dir) / "train.log"
        log = path.read_text(encoding="utf-8") if path.exists() else "no log: is fairseq-train on the PATH?"
    if status != 0:
        raise SystemExit(f"the training of {model} failed: {log[-300:]}")
    return {"speeds": [float(wps) for wps in SPEED.findall(log)][1:], "peak_mib": usage.ru_maxrss / 1024}


def main() -> None:
    """Write ``speed.json`` and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="directory that data-prep/ptb/prepare.sh wrote")
    parser.add_argument("--updates", type=int, default=60, help="updates a run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="runs of each model (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="directory for speed.json")
    args = parser.parse_args()
    orders = [MODELS if turn % 2 == 0 else MODELS[::-1] for turn in range(args.rounds)]
    runs = {model: [] for model in MODELS}
    for model in tqdm([model for order in orders for model in order], disable=not sys.stderr.isatty()):
        runs[model].append(measure(model, args.data, args.updates))
    figures = {
        model: {
            "words_per_second": statistics.median(speed for run in results for speed in run["speeds"]),
            "peak_mib": max(run["peak_mib"] for run in results),
        }
        for model, results in runs.items()
    }
    args.out.mkdir(parents=True, exist_ok=True)
    content = {**provenance(), "num_threads": os.environ.get("OMP_NUM_THREADS", "all cores"), "models": figures}
    (args.out / "speed.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print("| model | words per second | peak memory |\n|---|--:|--:|")
    for model, figure in figures.items():
        print(f"| {model} | {figure['words_per_second']:,.0f} | {figure['peak_mib']:,.0f} MiB |")
    print(f"\n{describe_machine()}; written to {args.out / 'speed.json'}")


if __name__ == "__main__":
    main()
