"""Perplexity of trained language models: ``python -m fairseq_plugins.cli.evaluate_lm --help``."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import List, Sequence

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.command_line import (
    Command,
    add_checkpoints,
    add_cpu,
    add_data,
    add_json,
    add_output_precision,
    add_split,
    choose_device,
)
from fairseq_plugins.evaluation.checkpoints import load_language_models
from fairseq_plugins.evaluation.evaluator import (
    Evaluation,
    Evaluator,
    FlagValues,
    TunedPoint,
    add_method_flags,
    given_flags,
    grid_points,
    read_methods,
)
from fairseq_plugins.evaluation.scoring import check_cut, prepare_to_score
from fairseq_plugins.models.checkpoints import check_checkpoints
from fairseq_plugins.options import UserError, check_replaceable, write_text
from fairseq_plugins.output_layers.base import OUTPUT_PRECISIONS
from fairseq_plugins.reports.analyses import perplexity_figures, perplexity_lines
from fairseq_plugins.reports.tables import json_text
from fairseq_plugins.reports.training_log import with_origin

TUNED_SPLIT = "valid"
CHOICE_SUFFIX = ".methods.json"
"""Suffix of the file that --tune writes, which replaces that of the first checkpoint."""


class EvaluateLanguageModels(Command):
    """Measures perplexity."""

    name = "evaluate_lm"
    summary = "Perplexity of language models on a split, read as one stream with carried state."
    description = (
        "Every token but the first is predicted once, the end mark of each line included. Several checkpoints are\n"
        "averaged as probabilities."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_data(parser)
        add_checkpoints(parser, help="one or more checkpoints")
        add_split(parser)
        parser.add_argument(
            "--rows",
            type=int,
            default=1,
            help="parallel rows the stream is cut into; the first token of each is not scored (default: %(default)s). "
            "With the rows of a training's validation (--batch-size-valid times processes) the result is the loss that "
            "the training logged",
        )
        parser.add_argument(
            "--window",
            type=int,
            default=1000,
            help="tokens a forward pass; not part of the result, but for masks of dropout (default: %(default)s)",
        )
        add_output_precision(parser, choices=OUTPUT_PRECISIONS)
        add_cpu(parser)
        add_json(parser)
        add_method_flags(parser)
        parser.add_argument(
            "--tune",
            nargs="+",
            action="extend",
            default=[],
            metavar="FLAG=VALUES",
            help=f"take the flags of test-time methods that do best on {TUNED_SPLIT}, of all combinations of these "
            "values: colons part the values, and those of each part of a flag, as in cache=500:2000,0.05:0.1:0.2,0.3:1 "
            f"temperature=0.9:1. The choice is written beside the first checkpoint CKPT.pt, to CKPT{CHOICE_SUFFIX}",
        )

    def run(self, args: argparse.Namespace) -> None:
        check_cut(num_rows=args.rows, window=args.window)
        flags = given_flags(args)
        points = grid_points(args.tune, fixed=flags)
        for point in points:
            read_methods(point)
        check_checkpoints(args.path)
        choice = choice_file(Path(args.path[0])) if args.tune else None
        device = choose_device(args)
        models, dictionary = load_language_models(args.path, args.data)
        evaluator = Evaluator(
            prepare_to_score(models, device=device, precision=args.output_precision),
            checkpoints=[Path(path) for path in args.path],
            data=args.data,
            dictionary=dictionary,
            num_rows=args.rows,
            window=args.window,
            device=device,
            show_progress=sys.stderr.isatty(),
        )
        for point in points:
            evaluator.check(read_methods(point))
        text = evaluator.text(args.split)
        tuned: List[TunedPoint] = []
        if choice is not None:
            tuned = evaluator.tune(evaluator.text(TUNED_SPLIT), points)
            flags = tuned[0].flags
            write_choice(choice, tuned, command=args.command_line)
        evaluation = evaluator.evaluate(text, read_methods(flags))
        if args.json:
            print(as_json(evaluation, flags=flags, command=args.command_line))
        else:
            print(as_text(evaluation, flags=flags))


def choice_file(checkpoint: Path) -> Path:
    """Path of the file with the tuned flags for a checkpoint.

    Raises:
        UserError: if it cannot be written.
    """
    path = checkpoint.with_name(f"{checkpoint.stem}{CHOICE_SUFFIX}")
    try:
        check_replaceable(path)
    except ValueError as error:
        raise UserError(f"--tune writes its choice beside the checkpoint: {error}") from error
    return path


def write_choice(path: Path, tuned: Sequence[TunedPoint], *, command: str) -> None:
    """Write the best flags and all points of the grid with their perplexity in JSON. null stands for inf."""
    points = [{"flags": point.flags, "perplexity": point.perplexity} for point in tuned]
    choice = with_origin({"split": TUNED_SPLIT, **points[0], "grid": points}, command=command)
    write_text(path, json_text(choice, indent=2) + "\n")


def as_json(evaluation: Evaluation, *, flags: FlagValues, command: str) -> str:
    """All figures and the flags of test-time methods in JSON."""
    speed = {"words_per_second": evaluation.words_per_second}
    figures = {**perplexity_figures(evaluation.perplexity), **speed, "methods": dict(flags)}
    return json_text(with_origin(figures, command=command))


def as_text(evaluation: Evaluation, *, flags: FlagValues) -> str:
    """Lines of the figures with their units."""
    return "\n".join(
        (
            *perplexity_lines(evaluation.perplexity),
            f"words per second    {evaluation.words_per_second:,.0f}",
            f"test-time methods   {shlex.join(f'--{name}={value}' for name, value in flags.items()) or 'none'}",
        )
    )


if __name__ == "__main__":
    EvaluateLanguageModels().main()
