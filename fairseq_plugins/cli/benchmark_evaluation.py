"""Speed of trained language models in use: ``python -m fairseq_plugins.cli.benchmark_evaluation --help``."""

import argparse
import sys
from pathlib import Path

import torch

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.benchmarks.evaluation import (
    FLOOR,
    LINES,
    NUM_ROWS,
    PLAIN_ROWS,
    as_markdown,
    gradient_reading,
    line_reading,
    lines_of,
    median_speeds,
    method_readings,
)
from fairseq_plugins.benchmarks.output_layer import report_name
from fairseq_plugins.command_line import Command, add_checkpoints, add_cpu, add_data, add_out, add_split, choose_device
from fairseq_plugins.evaluation.checkpoints import load_language_models
from fairseq_plugins.evaluation.evaluator import Evaluator
from fairseq_plugins.evaluation.raw_text import load_side_text
from fairseq_plugins.evaluation.test_time import EvaluatedText, Methods
from fairseq_plugins.evaluation.text_scorer import TextScorer
from fairseq_plugins.options import UserError, check_at_least_one
from fairseq_plugins.reports.tables import Report


class BenchmarkEvaluation(Command):
    """Measures language models in use."""

    name = "benchmark_evaluation"
    summary = "Speed of trained language models in use: perplexity, test-time methods, lines of text."
    description = f"""\
Reads a split's first --words words in one row without and with each test-time method of evaluate_lm, and its first
--lines lines in {NUM_ROWS} rows and each from fresh state, as score_text does. Dynamic evaluation is also compared with
the parts that it cannot do without: forward and backward of its segments, and one pass over the weights. All readings
are made in one process, in both orders by turns, with the machine otherwise idle, and a first round is not counted.
The statistics of dynamic evaluation by rms are made before, if they are not kept beside the checkpoint. Several
checkpoints are averaged as probabilities. Writes evaluation_DEVICE.md and .json, with --name appended."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_data(parser)
        add_checkpoints(parser, help="one or more checkpoints")
        add_split(parser)
        parser.add_argument(
            "--words", type=int, default=2000, help="that are read in one row, at least 2 (default: %(default)s)"
        )
        parser.add_argument(
            "--lines", type=int, default=10000, help="that are read at most in many rows (default: %(default)s)"
        )
        parser.add_argument("--rounds", type=int, default=3, help="timed readings of each (default: %(default)s)")
        parser.add_argument("--name", metavar="NAME", default="", help="of the models, for the report (default: none)")
        add_cpu(parser)
        add_out(parser, help="directory for the report", default="results/benchmarks")

    def run(self, args: argparse.Namespace) -> None:
        check_at_least_one(args.rounds, flag="--rounds")
        check_at_least_one(args.lines, flag="--lines")
        if args.words < 2:
            raise UserError(f"--words {args.words}: give at least 2, for the first is not predicted")
        device = choose_device(args)
        models, dictionary = load_language_models(args.path, args.data)
        models = [model.to(device) for model in models]

        def evaluator(num_rows: int) -> Evaluator:
            return Evaluator(
                models,
                checkpoints=[Path(path) for path in args.path],
                data=args.data,
                dictionary=dictionary,
                num_rows=num_rows,
                window=1000,
                device=device,
                show_progress=sys.stderr.isatty(),
            )

        one_row, many_rows = evaluator(1), evaluator(NUM_ROWS)
        tokens = one_row.text(args.split).tokens
        lines = lines_of(tokens, dictionary, num_lines=args.lines)
        num_tokens = sum(len(line.split()) + 1 for line in lines)
        if num_tokens < 2 * NUM_ROWS:
            raise UserError(
                f"--lines {args.lines}: {len(lines)} lines of {args.split} have {num_tokens} words, and {NUM_ROWS} "
                f"rows need {2 * NUM_ROWS}: give more lines, or another --split"
            )
        few = EvaluatedText(tokens[: args.words], dictionary=dictionary, num_rows=1)
        many = EvaluatedText(tokens[:num_tokens], dictionary=dictionary, num_rows=NUM_ROWS)
        scorer = TextScorer(models, load_side_text(args.data, kind="tokenised"), device=device)
        speeds = median_speeds(
            {
                **method_readings(one_row, few),
                FLOOR: gradient_reading(models, few.tokens, device=device),
                PLAIN_ROWS: lambda: many_rows.evaluate(many, Methods()).words_per_second,
                LINES: line_reading(scorer, lines),
            },
            num_rounds=args.rounds,
        )
        threads = torch.get_num_threads()
        report = Report(
            text=f"{as_markdown(speeds)}\n\nMedians of {args.rounds} interleaved readings of {args.split}: of "
            f"{len(few.tokens):,} words in one row, and of {len(lines):,} lines, {num_tokens:,} words. "
            f"{threads} threads.",
            figures={
                "num_threads": threads,
                "rounds": args.rounds,
                "num_words": len(few.tokens),
                "num_lines": len(lines),
                "words_per_second": speeds,
            },
            command=args.command_line,
        )
        print(report.write(args.out, name=report_name("evaluation", device, *filter(None, [args.name]))), end="")


if __name__ == "__main__":
    BenchmarkEvaluation().main()
