"""Training speed of whole language models: ``python -m fairseq_plugins.cli.benchmark_lm --help``."""

import argparse
import os
import shlex
from dataclasses import asdict
from pathlib import Path

import torch

from fairseq_plugins.benchmarks.language_models import SUITES
from fairseq_plugins.benchmarks.training_speed import as_markdown, measure_trainings
from fairseq_plugins.flags.command import Command
from fairseq_plugins.flags.common_arguments import add_data, add_out
from fairseq_plugins.reports.report import Report


class BenchmarkLanguageModels(Command):
    """Measures the training of language models."""

    name = "benchmark_lm"
    summary = "Training speed and peak memory of whole language models, by fairseq-train on real data."
    description = """\
Suites (the first model of each is the reference of the ratios):

  ptb, wt2   the papers' presets for the corpus, all with the same rows and window, and DOC's network with one
             softmax in place of its mixture, and with the plain loss in place of the fused one
  labels     AWD-LSTM's network for Penn Treebank with a tied, bilinear, dual and DRILL output layer
  mmlstm     AWD-LSTM-MoS and AWD-LSTM for Penn Treebank, on Major-Minor LSTMs and on LSTMs of the same widths
  wt103      the Major-Minor LSTM and the LSTM for WikiText-103, at the paper's 128 rows: 267,735 words, one softmax
  host       fairseq's own lstm_lm against lstm_lm_awd: three layers of width 512, a tied softmax
  reduced, labels-reduced, mmlstm-reduced   small Penn Treebank models of scripts/recipes/lm

Every model trains for a few updates in a process of its own, in both orders by turns, with the machine otherwise
idle. Speed is the median over the logged intervals of all its runs, the first interval of a run left out; memory
is the largest of its runs: resident memory of the process on a CPU, allocated memory on a GPU.
Writes lm_SUITE_DEVICE.md and .json, the names of further flags appended."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("suite", choices=list(SUITES))
        add_data(parser, written_by="data-prep/<corpus>/prepare.sh")
        parser.add_argument("--updates", type=int, default=40, help="updates a run, at least 10 (default: %(default)s)")
        parser.add_argument("--rounds", type=int, default=4, help="runs of each model (default: %(default)s)")
        parser.add_argument("--flags", default="", help='more flags of fairseq-train, such as "--fp16"')
        add_out(parser, help="directory", default=Path("results/benchmarks"))

    def run(self, args: argparse.Namespace) -> None:
        if args.updates < 10 or args.rounds < 1:
            raise ValueError("give at least 10 --updates and 1 of --rounds")
        if not Path(args.data).is_dir():
            raise ValueError(f"{args.data} does not exist: give the directory that data-prep wrote")
        flags, suite = shlex.split(args.flags), SUITES[args.suite]
        found = measure_trainings(
            suite.recipe,
            suite.system_names,
            data=args.data,
            num_updates=args.updates,
            num_rounds=args.rounds,
            flags=flags,
        )
        threads = os.environ.get("OMP_NUM_THREADS", "all cores")
        report = Report(
            text=f"{as_markdown(found)}\n\nMedians of {args.rounds} interleaved runs of {args.updates} updates, "
            f"threads: {threads}.",
            figures={
                **{"num_threads": threads, "updates": args.updates, "rounds": args.rounds},
                "models": {name: asdict(speed) for name, speed in found.items()},
            },
            command=args.command_line,
        )
        device = "cuda" if torch.cuda.is_available() and "--cpu" not in flags else "cpu"
        name = "_".join(["lm", args.suite, device, *(flag.strip("-") for flag in flags)])
        print(report.write(args.out, name=name), end="")


if __name__ == "__main__":
    BenchmarkLanguageModels().main()
