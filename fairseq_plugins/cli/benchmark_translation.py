"""Speed of the encoder-decoders: ``python -m fairseq_plugins.cli.benchmark_translation --help``."""

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Dict, List

from fairseq_plugins.benchmarks.output_layer import report_name
from fairseq_plugins.benchmarks.training import (
    TRANSLATION_SUITES,
    add_training_limits,
    as_markdown,
    check_training_limits,
    decoding_as_markdown,
    in_output_precisions,
    measure_decoding,
    measure_trainings,
    measured_with,
    products_as_markdown,
    speed_of_products,
    train_briefly,
)
from fairseq_plugins.command_line import Command, choose_device
from fairseq_plugins.evaluation.checkpoints import split_languages
from fairseq_plugins.options import UserError, check_at_least_one
from fairseq_plugins.reports.tables import Report


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
matrices alone, in float32, were each as fast as a large one by the fastest kernel at hand. With --output-precision
float32 bfloat16 every system of this package trains and decodes with its output layer in both, by turns. Writes
translation_cpu.md and .json, or transformer_cpu (on a GPU _cuda), with the names of --systems and the precisions
appended."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_training_limits(parser, suites=TRANSLATION_SUITES, written_by="data-prep/multi30k/prepare.sh", num_rounds=3)
        parser.add_argument("--length", type=int, default=15, help="tokens of every hypothesis (default: %(default)s)")
        parser.add_argument(
            "--systems",
            nargs="+",
            action="extend",
            metavar="SYSTEM",
            help="only these, by the recipe's names (default: all)",
        )

    def run(self, args: argparse.Namespace) -> None:
        check_training_limits(args)
        check_at_least_one(args.length, flag="--length")
        suite = TRANSLATION_SUITES[args.suite]
        recipe, data, device = suite.recipe, str(args.data), choose_device(args)
        unknown = set(args.systems or ()) - set(suite.system_names)
        if unknown:
            raise UserError(f"--systems {' '.join(sorted(unknown))}: choose among {' '.join(suite.system_names)}")
        systems: List[str] = [name for name in suite.system_names if args.systems is None or name in args.systems]
        recipe = in_output_precisions(recipe, systems, args.output_precision)
        variants = list(recipe.systems)
        flags = ["--cpu"] if args.cpu else []
        split_languages(args.data, "test")
        with tempfile.TemporaryDirectory() as folder:
            # first, so that what does not train ends the command before it has measured the others
            checkpoints = train_briefly(recipe, variants, data=data, folder=Path(folder), flags=flags)
            training = measure_trainings(
                recipe, variants, data=data, num_updates=args.updates, num_rounds=args.rounds, flags=flags
            )
            decoding = measure_decoding(data, checkpoints, num_rounds=args.rounds, length=args.length, device=device)
            products: Dict[str, float] = {}
            if args.suite == "lstm":
                products = {name: speed_of_products(path, device=device) for name, path in checkpoints.items()}
        measured = {**measured_with(args), "length": args.length}
        parts = [
            "Training (target tokens):",
            as_markdown(training),
            *([products_as_markdown(products, training)] if products else []),
            f"Decoding, beam 5, {args.length} tokens a hypothesis:",
            decoding_as_markdown(decoding),
            f"Training: medians of {args.rounds} interleaved runs of {args.updates} updates. Decoding: the test set, "
            f"{args.rounds} times, in one process, batch by batch by turns. Threads: {measured['num_threads']}.",
        ]
        report = Report(
            text="\n\n".join(parts),
            figures={
                **measured,
                "training": {name: asdict(speed) for name, speed in training.items()},
                "words_per_second_of_products": products,
                "sentences_per_second": decoding,
            },
            command=args.command_line,
        )
        first = "translation" if args.suite == "lstm" else args.suite
        name = report_name(first, device, *(systems if args.systems else ()), *args.output_precision)
        print(report.write(args.out, name=name), end="")


if __name__ == "__main__":
    BenchmarkTranslation().main()
