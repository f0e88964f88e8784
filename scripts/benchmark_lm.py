#!/usr/bin/env python3
"""Training speed and peak memory of whole language models, by fairseq-train on real data.

Suites (the first model of each is the reference of the ratios):

  ptb, wt2   the papers' presets for the corpus, all with the same rows and window, and DOC's network with one
             softmax in place of its mixture, and with the plain loss in place of the fused one
  labels     AWD-LSTM's network for Penn Treebank with a tied, bilinear, dual and DRILL output layer
  mmlstm     AWD-LSTM-MoS and AWD-LSTM for Penn Treebank, on Major-Minor LSTMs and on LSTMs of the same widths
  wt103      the Major-Minor LSTM and the LSTM for WikiText-103, at the paper's 128 rows: 267,735 words, one softmax
  host       fairseq's own lstm_lm against lstm_lm_awd: three layers of width 512, a tied softmax
  reduced    the small Penn Treebank models of scripts/recipes/lm/ptb_reduced.sh
  labels-reduced, mmlstm-reduced   those of drill_reduced.sh and of mmlstm_reduced.sh

Every model trains for a few updates in a process of its own, in both orders by turns, with the machine otherwise
idle. Speed is the median over the logged intervals of all its runs, the first interval of a run left out; memory
is the largest of its runs: resident memory of the process on a CPU, allocated memory on a GPU.
Writes lm_SUITE_DEVICE.md and .json, the names of further flags appended.
"""

import argparse
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Dict

import torch
from provenance import provenance
from training_speed import Command, as_markdown, fairseq_train, measure_trainings, recipe

SGD = "--optimizer sgd --lr 0.1 --clip-norm 0.25"
REGULARIZED = (
    "--task stateful_lm --criterion regularized_cross_entropy --activation-regularization 2 "
    "--temporal-activation-regularization 1"
)
HOST_WIDTHS = (
    "--decoder-embed-dim 512 --decoder-hidden-size 512 --decoder-out-embed-dim 512 --decoder-layers 3 "
    "--share-decoder-input-output-embed --decoder-attention 0 --dropout 0.2"
)

REDUCED = {
    "reduced": ("lm/ptb_reduced.sh", ["awd", "mos", "doc"]),
    "labels-reduced": (
        "lm/drill_reduced.sh",
        ["tied", "full", "bilinear", "dual", "drill1", "drill2", "drill3", "drill4", "standard"],
    ),
    "mmlstm-reduced": ("lm/mmlstm_reduced.sh", ["10:0", "9:1", "7:3", "5:5", "mos", "mmlstm-mos", "mmlstm-doc"]),
}


def preset_suite(corpus: str, data: str) -> Dict[str, Command]:
    """The published models for a corpus, with the rows of DOC."""
    common = f"{REGULARIZED} --tokens-per-sample 70 --batch-size 12 {SGD}"
    doc = f"{common} --balance 0.001 --arch lstm_lm_doc_{corpus}"
    flags = {
        "AWD-LSTM": f"{common} --arch lstm_lm_awd_{corpus}",
        "DOC's network, one softmax": f"{common} --arch lstm_lm_doc_{corpus} --output-layer full",
        "AWD-LSTM-MoS": f"{common} --arch lstm_lm_mos_{corpus}",
        "AWD-LSTM-DOC": doc,
        "AWD-LSTM-DOC, DRILL's labels": f"{doc} --label-encoder drill --label-depth 4 --label-dropout 0.6",
        "AWD-LSTM-DOC, plain loss": f"{doc} --output-loss plain",
    }
    return {name: fairseq_train(data, text) for name, text in flags.items()}


def label_suite(data: str) -> Dict[str, Command]:
    """The output layers of Pappas & Henderson 2019, table 4, with the rows of AWD-LSTM."""
    common = f"{REGULARIZED} --tokens-per-sample 70 --batch-size 20 {SGD}"
    layers = {"tied": "awd", "bilinear": "bilinear", "dual": "dual", "DRILL": "drill"}
    return {name: fairseq_train(data, f"{common} --arch lstm_lm_{arch}_ptb") for name, arch in layers.items()}


def major_minor_suite(data: str) -> Dict[str, Command]:
    """LSTMs and Major-Minor LSTMs of the widths of Shuang et al. 2020, with 12 rows."""
    common = f"{REGULARIZED} --tokens-per-sample 70 --batch-size 12 {SGD}"
    flags = {
        f"{name}, {cell}": f"{common} --arch {arch} --rnn-cell {cell}"
        for name, arch in (("MoS", "mmlstm_lm_mos_ptb"), ("tied", "mmlstm_lm_ptb"))
        for cell in ("lstm", "mmlstm")
    }
    return {name: fairseq_train(data, text) for name, text in flags.items()}


def wikitext103_suite(data: str) -> Dict[str, Command]:
    """Table VII of Shuang et al. 2020."""
    common = (
        "--task stateful_lm --criterion regularized_cross_entropy --tokens-per-sample 70 --batch-size 128 "
        "--optimizer adam --lr 0.001 --clip-norm 0.25 --arch mmlstm_lm_wt103"
    )
    flags = {"LSTM": f'{common} --rnn-cell lstm --hidden-sizes "1024 256"', "MMLSTM": common}
    return {name: fairseq_train(data, text) for name, text in flags.items()}


def host_suite(data: str) -> Dict[str, Command]:
    """The host's LSTM and this plugin's at the same widths."""
    size = f"--tokens-per-sample 70 --batch-size 20 {SGD}"
    flags = {
        "fairseq lstm_lm": f"--task language_modeling --arch lstm_lm {HOST_WIDTHS} --criterion cross_entropy {size}",
        "lstm_lm_awd": f'{REGULARIZED} --arch lstm_lm_awd --embed-dim 512 --hidden-sizes "512 512 512" {size}',
    }
    return {name: fairseq_train(data, text) for name, text in flags.items()}


def suite(name: str, data: str) -> Dict[str, Command]:
    """Trainings of a suite by name."""
    suites = {"host": host_suite, "labels": label_suite, "mmlstm": major_minor_suite, "wt103": wikitext103_suite}
    if name in suites:
        return suites[name](data)
    if name in REDUCED:
        path, systems = REDUCED[name]
        return {system: recipe(path, data, system) for system in systems}
    return preset_suite(name, data)


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=["ptb", "wt2", "labels", "mmlstm", "wt103", "host", *REDUCED])
    parser.add_argument("data", help="directory that data-prep/<corpus>/prepare.sh wrote")
    parser.add_argument("--updates", type=int, default=40, help="updates a run, at least 10 (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="runs of each model (default: %(default)s)")
    parser.add_argument("--flags", default="", help='more flags of fairseq-train, such as "--fp16"')
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"), help="directory (default: %(default)s)")
    args = parser.parse_args()
    if args.updates < 10 or args.rounds < 1:
        parser.error("give at least 10 --updates and 1 of --rounds")
    flags = args.flags.split()
    origin = {**provenance(), "num_threads": os.environ.get("OMP_NUM_THREADS", "all cores")}
    figures = measure_trainings(
        suite(args.suite, args.data), num_updates=args.updates, num_rounds=args.rounds, flags=flags
    )
    device = "cuda" if torch.cuda.is_available() and "--cpu" not in flags else "cpu"
    table = as_markdown(figures)
    command = f"python scripts/benchmark_lm.py {shlex.join(sys.argv[1:])}"
    footer = (
        f"\nMedians of {args.rounds} interleaved runs of {args.updates} updates, threads: {origin['num_threads']}.\n"
        f"`{command}`; {origin['date']}, commit {origin['commit']}; {origin['machine']}.\n"
    )
    args.out.mkdir(parents=True, exist_ok=True)
    stem = args.out / "_".join(["lm", args.suite, device, *(flag.strip("-") for flag in flags)])
    stem.with_suffix(".md").write_text(table + footer, encoding="utf-8")
    content = {**origin, "command": command, "updates": args.updates, "rounds": args.rounds, "models": figures}
    stem.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(table + footer)


if __name__ == "__main__":
    main()
