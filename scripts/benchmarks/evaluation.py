"""Speed of trained language models in use: perplexity, test-time methods, lines of text.

Reads a split's first --words words in one row without and with each test-time method of `lm eval`, and its first
--lines lines in 64 rows and each from fresh state, as `lm score` does. Dynamic evaluation is also compared with the
parts that it cannot do without: forward and backward of its segments, and one pass over the weights. All readings are
made in one process, in both orders by turns, with the machine otherwise idle, and a first round is not counted. The
statistics of dynamic evaluation by rms are computed before, unless they are kept beside the checkpoint. Several
checkpoints are averaged as probabilities. Writes evaluation_DEVICE.md and .json, with --name appended.
"""

import argparse
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Callable, Dict, List, Mapping, Optional, Sequence

import torch
from benchmark import main, readings_by_turns, write_report
from fairseq.data import Dictionary
from fairseq.models import FairseqLanguageModel
from torch import Tensor

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.command_line import add_checkpoints, add_cpu, add_data, add_out, add_split, choose_device
from fairseq_plugins.commands.method_flags import FlagValues, read_methods
from fairseq_plugins.console import Command
from fairseq_plugins.evaluation.checkpoints import load_language_models
from fairseq_plugins.evaluation.dynamic_evaluation import every_parameter_learns
from fairseq_plugins.evaluation.evaluator import Evaluator
from fairseq_plugins.evaluation.language_model import TrainedLanguageModel
from fairseq_plugins.evaluation.methods import EvaluatedText
from fairseq_plugins.evaluation.raw_text import load_side_text
from fairseq_plugins.evaluation.scoring import score_windows
from fairseq_plugins.options import UserError, count, whole_number
from fairseq_plugins.reports.report import Report
from fairseq_plugins.reports.tables import as_table

SEGMENT = 5
"""Tokens between two steps of dynamic evaluation."""

NUM_ROWS = 64
"""Rows of the reading with which lines of text are compared."""

PLAIN, PLAIN_ROWS = "no method, 1 row", f"no method, {NUM_ROWS} rows"
LINES = "lm score, each line alone"
FLOOR = f"segments of {SEGMENT} words, their gradients and a pass over the weights"
"""The least that dynamic evaluation must compute."""

_METHODS_ALONE: Dict[str, FlagValues] = {
    PLAIN: {},
    "continuous cache of 500 words": {"cache": "500,0.1,1", "cache-start": "first"},
    "unigram cache of 200 words": {"unigram-cache": "200,0.1"},
    "10 dropout masks": {"dropout-samples": "10"},
    "dynamic evaluation, rms": {"dynamic": "rms", "dynamic-segment": str(SEGMENT)},
    "dynamic evaluation, sgd": {"dynamic": "sgd", "dynamic-rate": "0.01", "dynamic-segment": str(SEGMENT)},
}
METHODS: Dict[str, FlagValues] = {
    **_METHODS_ALONE,
    "all of these, dynamic evaluation by rms": {
        flag: value
        for flags in _METHODS_ALONE.values()
        if flags.get("dynamic") != "sgd"
        for flag, value in flags.items()
    },
}
"""Flags of ``lm eval`` by the name of the method. All read one row."""

REFERENCES: Dict[str, Sequence[str]] = {
    **{name: [PLAIN] for name in METHODS if name != PLAIN},
    **{name: [PLAIN, FLOOR] for name in METHODS if name.startswith("dynamic")},
    LINES: [PLAIN_ROWS],
}
"""The readings with which a reading is compared."""

Reading = Callable[[], float]
"""Reads its text once and returns words per second."""


def method_readings(evaluator: Evaluator, text: EvaluatedText) -> Dict[str, Reading]:
    """A reading of a text in one row for each of :data:`METHODS`.

    Raises:
        UserError: if a method does not fit the models or the data.
    """
    methods = {name: read_methods(flags) for name, flags in METHODS.items()}
    for passes, _ in methods.values():
        evaluator.check(passes)
        evaluator.statistics(passes.dynamic)

    def reading(name: str) -> Reading:
        return lambda: evaluator.evaluate(text, methods[name])[1]

    return {name: reading(name) for name in methods}


def gradient_reading(models: Sequence[FairseqLanguageModel], tokens: Tensor) -> Reading:
    """:data:`FLOOR` on a stream of n tokens: forward and backward passes, and one read and write of every weight."""

    def read() -> float:
        start, num_words = time.perf_counter(), 0
        with ExitStack() as stack:
            for model in models:
                stack.enter_context(every_parameter_learns(model))
            for window in score_windows(models, tokens, window=SEGMENT, with_gradients=True):
                for model, scores in zip(models, window.scores):
                    weights = list(model.parameters())
                    torch.autograd.grad(scores.output, weights, materialize_grads=True)
                    with torch.no_grad():
                        for weight in weights:
                            weight.mul_(1)
                num_words += window.target.numel()
        return num_words / (time.perf_counter() - start)

    return read


def line_reading(lm: TrainedLanguageModel, lines: Sequence[str]) -> Reading:
    """A reading of lines of text, each from fresh state."""

    def read() -> float:
        start = time.perf_counter()
        num_words = sum(len(line.tokens) for line in lm.score_stream(lines))
        return num_words / (time.perf_counter() - start)

    return read


def lines_of(tokens: Tensor, dictionary: Dictionary, *, num_lines: int) -> List[str]:
    """The first lines of a stream of n tokens as text without end marks."""
    ends = (tokens == dictionary.eos()).nonzero().flatten().tolist()[:num_lines]
    starts = [0, *(end + 1 for end in ends)]
    return [dictionary.string(tokens[start:end]) for start, end in zip(starts, ends)]


def as_markdown(speeds: Mapping[str, float]) -> str:
    """Speeds, and their ratios to the speeds of their references."""
    rows = [
        (name, f"{speed:,.0f}", *(_ratio(speeds, name, reference) for reference in (PLAIN, FLOOR, PLAIN_ROWS)))
        for name, speed in speeds.items()
    ]
    columns = ["", "words per second", *(f"/ {reference}" for reference in (PLAIN, FLOOR, PLAIN_ROWS))]
    return as_table(columns, rows)


def _ratio(speeds: Mapping[str, float], name: str, reference: str) -> Optional[str]:
    return f"{speeds[name] / speeds[reference]:.2f}" if reference in REFERENCES.get(name, ()) else None


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    add_checkpoints(parser, help="one or more checkpoints")
    add_split(parser)
    parser.add_argument(
        "--words",
        type=whole_number(at_least=2),
        default=2000,
        help="that are read in one row; the first is not predicted (default: %(default)s)",
    )
    parser.add_argument(
        "--lines", type=count, default=10000, help="that are read at most in many rows (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=count, default=3, help="timed readings of each (default: %(default)s)")
    parser.add_argument("--name", metavar="NAME", default="", help="of the models, for the report (default: none)")
    add_cpu(parser)
    add_out(parser, help="directory for the report", default="results/benchmarks")


def run(args: argparse.Namespace) -> None:
    """Time all readings, and write and print the report."""
    device = choose_device(args)
    models = [model.to(device) for model in load_language_models(args.path, args.data)]
    dictionary = models[0].decoder.dictionary
    evaluator = Evaluator(models, checkpoints=[Path(path) for path in args.path], data=args.data, window=1000)
    tokens = evaluator.text(args.split, num_rows=1).tokens
    lines = lines_of(tokens, dictionary, num_lines=args.lines)
    num_tokens = sum(len(line.split()) + 1 for line in lines)
    if num_tokens < 2 * NUM_ROWS:
        raise UserError(
            f"--lines {args.lines}: {len(lines)} lines of {args.split} have {num_tokens} words, and {NUM_ROWS} "
            f"rows need {2 * NUM_ROWS}: give more lines, or another --split"
        )
    few = EvaluatedText(tokens[: args.words], dictionary=dictionary, num_rows=1)
    many = EvaluatedText(tokens[:num_tokens], dictionary=dictionary, num_rows=NUM_ROWS)
    lm = TrainedLanguageModel(models, load_side_text(args.data, kind="tokenised"))
    readings = {
        **method_readings(evaluator, few),
        FLOOR: gradient_reading(models, few.tokens),
        PLAIN_ROWS: lambda: evaluator.evaluate(many, read_methods({}))[1],
        LINES: line_reading(lm, lines),
    }
    found = readings_by_turns(readings, num_rounds=args.rounds)
    speeds = {name: median(values) for name, values in found.items()}
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
    )
    write_report(report, args, "evaluation", device, args.name)


BENCHMARK = Command(
    add_arguments=_add_arguments,
    run=run,
    description=__doc__ or "",
    example="data-bin/ptb --path checkpoints/doc --words 500 --out benchmarks",
)

if __name__ == "__main__":
    main(BENCHMARK)
