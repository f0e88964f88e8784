#!/usr/bin/env python3
"""Training speed and peak memory of whole language models, by fairseq-train on real data.

Suites (the first model of each is the reference of the ratios):

  ptb, wt2   the papers' presets for the corpus, all with the same rows and window, and DOC's network with one
             softmax in place of its mixture, and with the plain loss in place of the fused one
  host       lstm_lm_awd against fairseq's own lstm_lm: three layers of width 512, a tied softmax
  reduced    the small Penn Treebank models of scripts/recipes/lm/ptb_reduced.sh

Every model trains for a few updates in a process of its own, in both orders by turns, with the machine otherwise
idle. Speed is the median over the logged intervals of all its runs, the first interval of a run left out; memory
is the largest of its runs: resident memory of the process on a CPU, allocated memory on a GPU.
Writes lm_SUITE_DEVICE.md and .json.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List

import torch
from provenance import provenance
from summarize_runs import SPEED
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
FREE_GIBIBYTES = re.compile(r"gb_free=([\d.]+)")

SGD = "--optimizer sgd --lr 0.1 --clip-norm 0.25"
HOST_WIDTHS = (
    "--decoder-embed-dim 512 --decoder-hidden-size 512 --decoder-out-embed-dim 512 --decoder-layers 3 "
    "--share-decoder-input-output-embed --decoder-attention 0 --dropout 0.2"
)


def preset_suite(corpus: str) -> Dict[str, str]:
    """Flags of the published models for a corpus, with the rows of DOC."""
    common = (
        "--task stateful_lm --tokens-per-sample 70 --batch-size 12 --criterion regularized_cross_entropy "
        f"--activation-regularization 2 --temporal-activation-regularization 1 {SGD}"
    )
    doc = f"{common} --balance 0.001 --arch lstm_lm_doc_{corpus}"
    return {
        "AWD-LSTM": f"{common} --arch lstm_lm_awd_{corpus}",
        "DOC's network, one softmax": f"{common} --arch lstm_lm_doc_{corpus} --output-layer full",
        "AWD-LSTM-MoS": f"{common} --arch lstm_lm_mos_{corpus}",
        "AWD-LSTM-DOC": doc,
        "AWD-LSTM-DOC, plain loss": f"{doc} --output-loss plain",
    }


def host_suite() -> Dict[str, str]:
    """Flags of the host's LSTM and of this plugin's at the same widths."""
    size = f"--tokens-per-sample 70 --batch-size 20 {SGD}"
    awd = f'--task stateful_lm --arch lstm_lm_awd --embed-dim 512 --hidden-sizes "512 512 512" {size}'
    return {
        "fairseq lstm_lm": f"--task language_modeling --arch lstm_lm {HOST_WIDTHS} --criterion cross_entropy {size}",
        "lstm_lm_awd": f"{awd} --criterion regularized_cross_entropy --activation-regularization 2 "
        "--temporal-activation-regularization 1",
        "lstm_lm_awd, no weight dropout, no penalties": f"{awd} --criterion regularized_cross_entropy "
        "--dropout-weight 0",
    }


def commands(suite: str, data: str, save_dir: str, stop: List[str]) -> Dict[str, List[str]]:
    """Command line of each model of a suite."""
    if suite == "reduced":
        recipe = ["bash", str(ROOT / "scripts/recipes/lm/ptb_reduced.sh")]
        return {model: [*recipe, model, "1", data, save_dir, *stop] for model in ("awd", "mos", "doc")}
    flags = host_suite() if suite == "host" else preset_suite(suite)
    train = f'fairseq-train "$0" --user-dir "{ROOT}/fairseq_plugins" --save-dir "$1" --log-format simple'
    return {
        name: ["bash", "-c", f'{train} {text} "${{@:2}}" > "$1/train.log" 2>&1', data, save_dir, *stop]
        for name, text in flags.items()
    }


def measure(suite: str, model: str, data: str, num_updates: int, extra: List[str]) -> Dict:
    """Speeds of the logged intervals after the first, in tokens per second, and peak memory in MiB."""
    num_logged = max(1, num_updates // 5)
    stop = ["--max-update", num_updates, "--no-save", "--disable-validation", "--log-interval", num_logged]
    stop += ["--distributed-world-size", 1, *extra]
    with tempfile.TemporaryDirectory() as save_dir:
        process = subprocess.Popen(
            commands(suite, data, save_dir, [str(flag) for flag in stop])[model],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
        path = Path(save_dir) / "train.log"
        log = path.read_text(encoding="utf-8") if path.exists() else "no log: is fairseq-train on the PATH?"
    if status != 0:
        raise SystemExit(f"the training of {model} failed: {log[-500:]}")
    peak_mib = usage.ru_maxrss / 1024
    free = [float(gibibytes) for gibibytes in FREE_GIBIBYTES.findall(log)]
    if free:
        peak_mib = torch.cuda.get_device_properties(0).total_memory / 2**20 - 1024 * min(free)
    speeds = [float(wps) for wps in SPEED.findall(log)][1:]
    return {"speeds": speeds, "peak_mib": peak_mib}


def as_markdown(figures: Dict[str, Dict]) -> str:
    """Speed and memory, and their ratios to the first model's."""
    reference = next(iter(figures.values()))
    lines = ["| model | words per second | time, ratio | peak memory | ratio |", "|---|--:|--:|--:|--:|"]
    for name, figure in figures.items():
        lines.append(
            f"| {name} | {figure['words_per_second']:,.0f} | "
            f"{reference['words_per_second'] / figure['words_per_second']:.2f} | {figure['peak_mib']:,.0f} MiB | "
            f"{figure['peak_mib'] / reference['peak_mib']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=["ptb", "wt2", "host", "reduced"])
    parser.add_argument("data", help="directory that data-prep/<corpus>/prepare.sh wrote")
    parser.add_argument("--updates", type=int, default=40, help="updates a run, at least 10 (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="runs of each model (default: %(default)s)")
    parser.add_argument("--flags", default="", help='more flags of fairseq-train, such as "--fp16"')
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"), help="directory (default: %(default)s)")
    args = parser.parse_args()
    if args.updates < 10 or args.rounds < 1:
        parser.error("give at least 10 --updates and 1 of --rounds")
    models = list(commands(args.suite, args.data, "", []))
    orders = [models if turn % 2 == 0 else models[::-1] for turn in range(args.rounds)]
    origin = {**provenance(), "num_threads": os.environ.get("OMP_NUM_THREADS", "all cores")}
    runs = {model: [] for model in models}
    for model in tqdm([model for order in orders for model in order], unit="run", disable=not sys.stderr.isatty()):
        runs[model].append(measure(args.suite, model, args.data, args.updates, args.flags.split()))
    figures = {
        model: {
            "words_per_second": statistics.median(speed for run in results for speed in run["speeds"]),
            "peak_mib": max(run["peak_mib"] for run in results),
        }
        for model, results in runs.items()
    }
    device = "cuda" if torch.cuda.is_available() and "--cpu" not in args.flags.split() else "cpu"
    table = as_markdown(figures)
    footer = (
        f"\nMedians of {args.rounds} interleaved runs of {args.updates} updates, threads: {origin['num_threads']}.\n"
        f"`python scripts/benchmark_lm.py {' '.join(sys.argv[1:])}`; {origin['date']}, commit {origin['commit']}; "
        f"{origin['machine']}.\n"
    )
    args.out.mkdir(parents=True, exist_ok=True)
    stem = args.out / f"lm_{args.suite}_{device}"
    stem.with_suffix(".md").write_text(table + footer, encoding="utf-8")
    content = {**origin, "updates": args.updates, "rounds": args.rounds, "models": figures}
    stem.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(table + footer)


if __name__ == "__main__":
    main()
