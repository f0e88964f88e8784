"""Speed of the encoder-decoders: ``python -m fairseq_plugins.cli.benchmark_translation --help``."""

import argparse
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Dict, List

import torch

from fairseq_plugins.benchmarks.training_speed import as_markdown, measure_trainings
from fairseq_plugins.benchmarks.translation import (
    RECIPES,
    decoding_as_markdown,
    measure_decoding,
    products_as_markdown,
    speed_of_products,
    train_briefly,
)
from fairseq_plugins.flags.command import Command
from fairseq_plugins.flags.common_arguments import add_data, add_out
from fairseq_plugins.recipes import find_recipe
from fairseq_plugins.reports.report import Report


class BenchmarkTranslation(Command):
    """Measures training and decoding of encoder-decoders."""

    name = "benchmark_translation"
    summary = "Speed of the encoder-decoders against fairseq's own, on Multi30k: training, and decoding with beam 5."
    description = """\
Suites (the first system of each is the reference of the ratios):

  lstm          fairseq's `lstm` and the systems of scripts/recipes/translation/multi30k.sh: width 256, two layers,
                bidirectional encoder
  transformer   fairseq's `transformer` and those of multi30k_transformer.sh: width 256, three layers, shared embedding

All have the same batches. Each trains in a process of its own, in both orders by turns, with the machine otherwise
idle; all translate in one process, batch by batch by turns. All decode the same number of steps: every hypothesis is
made --length tokens long. The second table of training, of the lstm suite, compares with the products with the model's
matrices alone, were each as fast as a large one by the fastest kernel at hand. Writes translation_cpu.md and .json, or
transformer_cpu (on a GPU _cuda), with the names of --systems appended."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("suite", choices=sorted(RECIPES))
        add_data(parser, written_by="data-prep/multi30k/prepare.sh")
        parser.add_argument("--updates", type=int, default=40, help="updates a run, at least 10 (default: %(default)s)")
        parser.add_argument("--rounds", type=int, default=3, help="runs of each system (default: %(default)s)")
        parser.add_argument("--length", type=int, default=15, help="tokens of every hypothesis (default: %(default)s)")
        parser.add_argument(
            "--systems", nargs="+", metavar="SYSTEM", help="only these, by the recipe's names (default: all)"
        )
        add_out(parser, help="directory", default=Path("results/benchmarks"))

    def run(self, args: argparse.Namespace) -> None:
        if args.updates < 10 or args.rounds < 1 or args.length < 1:
            raise ValueError("give at least 10 --updates, 1 of --rounds and a --length of 1")
        if not Path(args.data).is_dir():
            raise ValueError(f"{args.data} does not exist: give the directory that data-prep wrote")
        recipe = find_recipe(RECIPES[args.suite])
        unknown = set(args.systems or ()) - set(recipe.systems)
        if unknown:
            raise ValueError(f"--systems {' '.join(sorted(unknown))}: choose among {' '.join(recipe.systems)}")
        systems: List[str] = [name for name in recipe.systems if args.systems is None or name in args.systems]
        training = measure_trainings(recipe, systems, data=args.data, num_updates=args.updates, num_rounds=args.rounds)
        with tempfile.TemporaryDirectory() as folder:
            checkpoints = train_briefly(recipe, systems, data=args.data, folder=Path(folder))
            decoding = measure_decoding(args.data, checkpoints, num_rounds=args.rounds, length=args.length)
            products: Dict[str, float] = {}
            if args.suite == "lstm":
                products = {name: speed_of_products(checkpoint) for name, checkpoint in checkpoints.items()}
        threads = os.environ.get("OMP_NUM_THREADS", "all cores")
        parts = [
            "Training (target tokens):",
            as_markdown(training),
            *([products_as_markdown(products, training)] if products else []),
            f"Decoding, beam 5, {args.length} tokens a hypothesis:",
            decoding_as_markdown(decoding),
            f"Training: medians of {args.rounds} interleaved runs of {args.updates} updates. Decoding: the test set, "
            f"{args.rounds} times, in one process, batch by batch by turns. Threads: {threads}.",
        ]
        report = Report(
            text="\n\n".join(parts),
            figures={
                "num_threads": threads,
                "training": {name: asdict(speed) for name, speed in training.items()},
                "words_per_second_of_products": products,
                "sentences_per_second": decoding,
            },
            command=args.command_line,
        )
        device = "cuda" if torch.cuda.is_available() else "cpu"
        suite = "translation" if args.suite == "lstm" else args.suite
        print(report.write(args.out, name="_".join([suite, device, *(systems if args.systems else ())])), end="")


if __name__ == "__main__":
    BenchmarkTranslation().main()
