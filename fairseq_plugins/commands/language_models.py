"""Language models: perplexity, scores of text, and text that they write."""

import argparse
import os
import shlex
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any, List, Optional

from fairseq_plugins.command_line import (
    add_checkpoints,
    add_cpu,
    add_data,
    add_input,
    add_output_precision,
    add_plot,
    add_sampling,
    add_split,
    add_tokenised,
    choose_device,
)
from fairseq_plugins.commands.method_flags import (
    add_method_flags,
    given_flags,
    grid_points,
    read_methods,
)
from fairseq_plugins.commands.report import report_command
from fairseq_plugins.console import Command, progress_bar
from fairseq_plugins.evaluation.checkpoints import load_language_models
from fairseq_plugins.evaluation.evaluator import Evaluator
from fairseq_plugins.evaluation.generation import STOPS, UNKNOWN_WORDS, GenerationOptions
from fairseq_plugins.evaluation.language_model import (
    CONTEXTS,
    ScoredLine,
    TrainedLanguageModel,
    load_trained_language_model,
)
from fairseq_plugins.evaluation.raw_text import TextKind, raise_empty, stream_lines
from fairseq_plugins.evaluation.scoring import exponential, prepare_to_score
from fairseq_plugins.files import STANDARD_INPUT, given_path, name_of, numbered_lines
from fairseq_plugins.options import UserError, count
from fairseq_plugins.reports.analyses import perplexity_report
from fairseq_plugins.reports.pictures import save_picture
from fairseq_plugins.reports.report import Report, json_text, write_figures
from fairseq_plugins.reports.sentences import draw_surprisal

TUNED_SPLIT = "valid"

CHOICE_SUFFIX = ".methods.json"
"""The file that --tune writes has this suffix in place of the first checkpoint's.

It has the flags and the perplexity of all points of the grid, the best first. null stands for inf.
"""


def _add_eval_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    add_checkpoints(parser, help="one or more checkpoints")
    add_split(parser)
    parser.add_argument(
        "--rows",
        type=count,
        default=1,
        help="parallel rows the stream is cut into; the first token of each is not scored (default: %(default)s). "
        "With the rows of a run's validation (--batch-size-valid times processes) the result is the loss that "
        "the run logged",
    )
    parser.add_argument(
        "--window",
        type=count,
        default=1000,
        help="tokens of a forward pass, which change the result with --dropout-samples only (default: %(default)s)",
    )
    add_output_precision(parser)
    add_cpu(parser)
    add_method_flags(parser)
    parser.add_argument(
        "--tune",
        nargs="+",
        action="extend",
        default=[],
        metavar="FLAG=VALUES",
        help=f"try all combinations of these values of test-time methods on {TUNED_SPLIT}, and take the best. Colons "
        "separate values: cache=500:2000,0.05:0.1,1 temperature=0.9:1 tries 2 x 2 x 2. Names of files do not vary. "
        f"The choice is written beside the first checkpoint CKPT.pt, to CKPT{CHOICE_SUFFIX}",
    )


def _evaluate(args: argparse.Namespace) -> Report:
    points = [(flags, read_methods(flags)) for flags in grid_points(args.tune, fixed=given_flags(args))]
    models = load_language_models(args.path, args.data)
    first = Path(args.path[0])
    choice = first.with_name(f"{first.stem}{CHOICE_SUFFIX}") if args.tune else None
    if choice is not None and not os.access(choice.parent, os.W_OK | os.X_OK):
        raise UserError(
            f"--tune writes its choice to {choice}, and nothing can be written there: copy the checkpoint to another "
            "folder, or give one value of each method and leave out --tune"
        )
    evaluator = Evaluator(
        prepare_to_score(models, device=choose_device(args), precision=args.output_precision),
        checkpoints=[Path(path) for path in args.path],
        data=args.data,
        window=args.window,
    )
    for _, methods in points:
        evaluator.check(methods.passes)
    text = evaluator.text(args.split, num_rows=args.rows)
    if choice is not None:
        tuned = evaluator.text(TUNED_SPLIT, num_rows=args.rows)
        nll = evaluator.tune(tuned, [methods for _, methods in points])
        ranked = sorted(zip(nll, points), key=lambda one: one[0])
        points = [point for _, point in ranked]
        grid = [{"flags": flags, "perplexity": exponential(mean)} for mean, (flags, _) in ranked]
        write_figures(choice, {"split": TUNED_SPLIT, **grid[0], "grid": grid}, command=args.command_line)
    flags, methods = points[0]  # the best, or the given flags
    result, speed = evaluator.evaluate(text, methods)
    return perplexity_report(
        result,
        f"words per second    {speed:,.0f}",
        f"test-time methods   {shlex.join(f'--{name}={value}' for name, value in flags.items()) or 'none'}",
        words_per_second=speed,
        methods=flags,
    )


EVAL = report_command(
    _evaluate,
    _add_eval_arguments,
    description="""\
Every token but the first is predicted once, the end mark of each line included. The probabilities of several
checkpoints are averaged.""",
    example="data-bin/ptb --path checkpoints/doc --split test",
)


LINES_AT_ONCE = 4096

UNKNOWN_MARK = "unknown"
"""Marks unknown words in the last column."""


def _add_score_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    add_checkpoints(parser, help="one language model, or several as an ensemble")
    add_input(parser, help="text (default: the standard input)")
    add_tokenised(parser)
    parser.add_argument(
        "--context",
        choices=CONTEXTS,
        default="line",
        help="line: each line starts from fresh state; document: state is carried through each file, or the standard "
        "input; paragraph: state is carried through each paragraph, which ends with a blank line (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--per",
        choices=("line", "token"),
        default="line",
        help="print a line for each line of text or for each token (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object for each line of text")
    add_plot(
        parser,
        help="draw the surprisal of the first 100 words of the first line that is not blank, such as surprisal.png",
    )
    parser.add_argument(
        "--buffer",
        type=count,
        metavar="N",
        help="lines that are read before any of them is scored; results stay in the order of the text "
        f"(default: {LINES_AT_ONCE}, 1 on a terminal; give 1 if a program waits for each answer)",
    )
    parser.add_argument(
        "--max-tokens", type=count, default=4096, metavar="N", help="tokens of a batch (default: %(default)s)"
    )
    add_output_precision(parser)
    add_cpu(parser)


def _score(args: argparse.Namespace) -> None:
    paths: List[Path] = args.input or [STANDARD_INPUT]
    buffer: Optional[int] = args.buffer
    if buffer is None:
        buffer = 1 if STANDARD_INPUT in paths and sys.stdin.isatty() else LINES_AT_ONCE
    if args.json and args.per == "token":
        raise UserError("--per token --json: an object holds a line with its tokens; leave out --per token")
    texts = [numbered_lines(path) for path in paths]  # missing files are refused here
    lm = _load(args, max_tokens=args.max_tokens)
    scored = (
        line
        for path, text in zip(paths, texts)
        for line in lm.score_stream((line for _, line in text), context=args.context, buffer=buffer, name=name_of(path))
    )
    start, draws = time.perf_counter(), args.plot is not None
    number = num_tokens = num_unknown = 0
    try:
        with progress_bar("scoring", unit="token") as bar:
            for number, line in enumerate(scored, start=1):
                num_tokens += len(line.tokens)
                num_unknown += sum(line.unknown)
                if draws and len(line.tokens) > 1:
                    save_picture(draw_surprisal(line, lm.text), args.plot)
                    draws = False
                if args.json:
                    print(json_text({"line": number, **line.figures()}, letters="kept"), flush=True)
                else:
                    print(_line_text(line, number, per=args.per), flush=True)
                bar.update(len(line.tokens))
    finally:
        seconds = time.perf_counter() - start
        print(
            f"{number:,} {'line' if number == 1 else 'lines'}, {num_tokens:,} tokens with end marks, "
            f"{num_unknown:,} unknown; {seconds:,.1f} s, {num_tokens / seconds:,.0f} tokens/s",
            file=sys.stderr,
        )
    if number == 0:
        raise_empty(paths)
    if draws:
        raise UserError(f"--plot {args.plot}: there is no line to draw, all lines are blank")


SCORE = Command(
    add_arguments=_add_score_arguments,
    run=_score,
    description=f"""\
Prints a line for each line of text: log-probability in nats, number of tokens with the end mark, number of unknown
tokens, and the text, separated by tabs. With --per token, a line for each token: number of the line from 1, token,
surprisal in nats and in bits, and "{UNKNOWN_MARK}" or "-". With --json, an object for each line with all of these.

Raw text is split into words (and subwords) as DATA was. Every token is scored, the end mark too. The first
is predicted from an end mark. Several checkpoints are averaged as probabilities. A blank line is an end mark alone.""",
    example="data-bin/ptb --path checkpoints/doc --input text.txt --per token",
)


def _line_text(line: ScoredLine, number: int, *, per: str) -> str:
    if per == "line":
        return f"{line.total:.6f}\t{len(line.tokens)}\t{sum(line.unknown)}\t{line.text}"
    rows = zip(line.tokens, line.nats, line.bits, line.unknown)
    return "\n".join(
        f"{number}\t{token}\t{nats:.6f}\t{bits:.6f}\t{UNKNOWN_MARK if unknown else '-'}"
        for token, nats, bits, unknown in rows
    )


def _load(args: argparse.Namespace, **options: Any) -> TrainedLanguageModel:
    kind: TextKind = "tokenised" if args.tokenised else "raw"
    options.update(text=kind, device=choose_device(args), precision=args.output_precision)
    return load_trained_language_model(args.path, args.data, **options)


def _add_generate_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    add_checkpoints(parser, help="one language model, or several as an ensemble")
    add_input(parser, help="beginnings, one a line (default: the standard input)")
    add_tokenised(parser)
    parser.add_argument(
        "--after",
        type=given_path,
        metavar="FILE",
        help="text that every beginning follows; for models that carry state",
    )
    parser.add_argument(
        "--num",
        type=count,
        default=1,
        metavar="N",
        help="texts for each beginning; a beam search may find fewer (default: %(default)s)",
    )
    parser.add_argument(
        "--beam",
        type=count,
        metavar="N",
        help="beam search of this size, the best texts first, by mean log-probability of a token (default: sampling)",
    )
    add_sampling(parser)
    parser.add_argument(
        "--max-length", type=count, default=100, metavar="N", help="maximum number of tokens to write (default: 100)"
    )
    parser.add_argument(
        "--stop",
        choices=STOPS,
        default="end",
        help="end: at an end mark or the maximum length; length: at the maximum length (default: %(default)s)",
    )
    parser.add_argument(
        "--unknown",
        choices=UNKNOWN_WORDS,
        default="allowed",
        help="whether the unknown word may be written (default: %(default)s)",
    )
    add_output_precision(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON object for each text")
    add_cpu(parser)


def _generate(args: argparse.Namespace) -> None:
    paths: List[Path] = args.input or [STANDARD_INPUT]
    options = GenerationOptions(**{option.name: getattr(args, option.name) for option in fields(GenerationOptions)})
    if args.after == STANDARD_INPUT and STANDARD_INPUT in paths:
        raise UserError("--after - and --input -: the standard input is read once, give a file for one of them")
    lines = stream_lines(paths)
    earlier = [] if args.after is None else list(stream_lines([args.after]))
    lm = _load(args)
    if args.after is not None:
        earlier = list(lm.text.watched(earlier, name=name_of(args.after)))
    with progress_bar("generating", unit="line") as bar:
        for found in lm.continue_stream(lines, options, after=earlier, name=name_of(*paths)):
            for one in found:
                if args.json:
                    print(json_text(one.figures(), letters="kept"), flush=True)
                else:
                    print(one.text.replace("\n", " </s> "), flush=True)
            bar.update()


GENERATE = Command(
    add_arguments=_add_generate_arguments,
    run=_generate,
    description="""\
Each input line is the beginning of a text. A blank line is an empty beginning. Prints up to --num texts for each
beginning, one a line. Samples depend only on the beginning and the seed. The probabilities of several checkpoints are
averaged. With --stop length, end marks are words like others and are printed as </s>. --json prints an object for each
text, in which end marks are line breaks.""",
    example="data-bin/ptb --path checkpoints/doc --input beginnings.txt --num 3",
)
