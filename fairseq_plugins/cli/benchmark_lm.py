"""Training speed of whole language models: ``python -m fairseq_plugins.cli.benchmark_lm --help``."""

import argparse
from dataclasses import asdict
from typing import Dict, Sequence

from fairseq_plugins.benchmarks.output_layer import report_name, speed_of_output_products
from fairseq_plugins.benchmarks.training import (
    SUITES,
    add_training_limits,
    as_markdown,
    check_training_limits,
    in_output_precisions,
    measure_trainings,
    measured_with,
    products_as_markdown,
    speed_of_highway_products,
)
from fairseq_plugins.command_line import Command, choose_device
from fairseq_plugins.options import UserError
from fairseq_plugins.recipes.recipe import Recipe
from fairseq_plugins.reports.tables import Report


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
  fpnn       the linear and rectifier networks for text8's words, by maximum likelihood and told from 25 noise words,
             and all matrix products of the linear one alone, likewise
  rhn        the recurrent highway networks of depth 8 and width 890 for Penn Treebank, and the products with their
             recurrent matrices alone, in float32, at their own shapes and in their order, forward and backward,
             timed before and after the trainings, of which the faster counts
  reduced, labels-reduced, mmlstm-reduced   small Penn Treebank models of scripts/recipes/lm

Every model trains for a few updates in a process of its own, in both orders by turns, with the machine otherwise
idle. Speed is the median over the logged intervals of all its runs, the first interval of a run left out; memory
is the largest of its runs: resident memory of the process on a CPU, allocated memory on a GPU. With
--output-precision float32 bfloat16 every model trains with its output layer in both, by turns. Flags of fairseq-train
follow a --, such as -- --fp16. Writes lm_SUITE_DEVICE.md and .json, precisions and names of further flags appended."""
    forwards_to = "fairseq-train"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_training_limits(parser, suites=SUITES, written_by="data-prep/<corpus>/prepare.sh", num_rounds=4)

    def run(self, args: argparse.Namespace) -> None:
        check_training_limits(args)
        if "--cpu" in args.forwarded:
            raise UserError("--cpu: give it before the --")
        if args.output_precision and any(word.startswith("--output-precision") for word in args.forwarded):
            raise UserError("--output-precision: give it either before the -- or after")
        device, suite = choose_device(args), SUITES[args.suite]
        recipe = in_output_precisions(suite.recipe, suite.system_names, args.output_precision)
        systems = list(recipe.systems)
        products = _speed_of_products(recipe, systems, args)
        found = measure_trainings(
            recipe,
            systems,
            data=str(args.data),
            num_updates=args.updates,
            num_rounds=args.rounds,
            flags=[*(["--cpu"] if args.cpu else []), *args.forwarded],
        )
        products_after = _speed_of_products(recipe, systems, args)
        products = {name: max(speed, products_after[name]) for name, speed in products.items()}
        measured = measured_with(args)
        tables = [as_markdown(found), *([products_as_markdown(products, found)] if products else [])]
        report = Report(
            text="\n\n".join(tables) + f"\n\nMedians of {args.rounds} interleaved runs of {args.updates} updates, "
            f"threads: {measured['num_threads']}.",
            figures={
                **measured,
                "models": {name: asdict(speed) for name, speed in found.items()},
                **({"words_per_second_of_products": products} if products else {}),
            },
            command=args.command_line,
        )
        name = report_name(
            "lm", args.suite, device, *args.output_precision, *(flag.removeprefix("--") for flag in args.forwarded)
        )
        print(report.write(args.out, name=name), end="")


def _speed_of_products(recipe: Recipe, systems: Sequence[str], args: argparse.Namespace) -> Dict[str, float]:
    """Words per second of matrix products alone, by label. Empty if further flags may change their shapes."""
    if args.forwarded:
        return {}
    device = choose_device(args)
    return {
        **speed_of_highway_products(recipe, systems, device=device),
        **speed_of_output_products(recipe, systems, data=args.data, device=device),
    }


if __name__ == "__main__":
    BenchmarkLanguageModels().main()
