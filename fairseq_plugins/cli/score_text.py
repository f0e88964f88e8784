"""Scores of plain text: ``python -m fairseq_plugins.cli.score_text --help``."""

import argparse
import sys
import time
from pathlib import Path
from typing import Iterable, Iterator, List, Optional

from tqdm import tqdm

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.command_line import (
    Command,
    add_checkpoints,
    add_cpu,
    add_data,
    add_input,
    add_output_precision,
    add_plot,
    add_tokenised,
    choose_device,
)
from fairseq_plugins.data.text import STANDARD_INPUT, name_of
from fairseq_plugins.evaluation.checkpoints import load_scoring_models
from fairseq_plugins.evaluation.raw_text import load_side_text, raise_empty, stream_lines
from fairseq_plugins.evaluation.scoring import prepare_to_score
from fairseq_plugins.evaluation.text_scorer import CONTEXTS, ScoredLine, TextScorer
from fairseq_plugins.options import UserError, check_at_least_one
from fairseq_plugins.output_layers.base import OUTPUT_PRECISIONS
from fairseq_plugins.reports.plots import draw_surprisal
from fairseq_plugins.reports.tables import json_text, save_picture

LINES_AT_ONCE = 4096

UNKNOWN_MARK = "unknown"
"""Marks unknown words in the last column."""


class ScoreText(Command):
    """Scores plain text."""

    name = "score_text"
    summary = "Log-probability of lines of plain text, and surprisal of their words, by language models."
    description = f"""\
A line of text becomes a line: its log-probability in nats, its tokens with the end mark, how many of them are unknown,
and the text, with tabs between. --per token: a line for each token: the number of the line from 1, the token, its
surprisal in nats and in bits, and "{UNKNOWN_MARK}" or "-". --json: an object for each line, with all of these.

Raw text is split into words (and subwords) as DATA was. Every token is predicted, the end mark too, the first one
after an end mark. Several checkpoints are averaged as probabilities. A blank line is an end mark alone."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_data(parser, written_by="data-prep/<corpus>/prepare.sh")
        add_checkpoints(parser, help="one language model, or several as an ensemble")
        add_input(parser, help="text (default: the standard input)")
        add_tokenised(parser)
        parser.add_argument(
            "--context",
            choices=CONTEXTS,
            default="line",
            help="line: each line from fresh state, whatever the others are; document: state is carried to the end of "
            "each file, or of the standard input; paragraph: to the next blank line, the last of the paragraph, or the "
            "end of the file (default: %(default)s)",
        )
        parser.add_argument(
            "--per", choices=("line", "token"), default="line", help="what a printed line is for (default: %(default)s)"
        )
        parser.add_argument("--json", action="store_true", help="print a JSON object for each line of text")
        add_plot(
            parser,
            help="draw the surprisal of the words of the first line that is not blank, its first 100, such as "
            "surprisal.png",
        )
        parser.add_argument(
            "--buffer",
            type=int,
            metavar="N",
            help="lines that are read before they are scored, sorted by length among themselves; their order is kept "
            f"(default: {LINES_AT_ONCE}, 1 of a terminal; give 1 where a program waits for each answer)",
        )
        parser.add_argument(
            "--max-tokens", type=int, default=4096, metavar="N", help="tokens of a batch (default: %(default)s)"
        )
        add_output_precision(parser, choices=OUTPUT_PRECISIONS)
        add_cpu(parser)

    def run(self, args: argparse.Namespace) -> None:
        paths: List[Path] = args.input or [STANDARD_INPUT]
        buffer: Optional[int] = args.buffer
        if buffer is None:
            buffer = 1 if STANDARD_INPUT in paths and sys.stdin.isatty() else LINES_AT_ONCE
        check_at_least_one(buffer, flag="--buffer")
        check_at_least_one(args.max_tokens, flag="--max-tokens")
        if args.json and args.per == "token":
            raise UserError("--per token --json: an object holds a line with its tokens; leave out --per token")
        # an empty text is an error only if all texts are empty
        streams = [(name_of(path), stream_lines([path], when_empty="kept")) for path in paths]
        models = load_scoring_models(args.path, args.data)
        side = load_side_text(args.data, kind="tokenised" if args.tokenised else "raw")
        device = choose_device(args)
        models = prepare_to_score(models, device=device, precision=args.output_precision)
        scorer = TextScorer(models, side, max_tokens=args.max_tokens, device=device)
        scored = (
            line
            for name, lines in streams
            for line in scorer.score_stream(lines, context=args.context, buffer=buffer, name=name)
        )
        draws, number = args.plot is not None, 0
        with _Speed(scored) as lines:
            for number, line in enumerate(lines, start=1):
                if draws and len(line.tokens) > 1:
                    save_picture(draw_surprisal(line, side), args.plot)
                    draws = False
                print(_as_json(line, number) if args.json else _as_text(line, number, per=args.per), flush=True)
        if number == 0:
            raise_empty(paths)
        if draws:
            raise UserError(f"--plot {args.plot}: there is no line to draw, all lines are blank")


class _Speed:
    """Iterates over lines and counts them. Prints the number of scored tokens and the time at the end."""

    def __init__(self, lines: Iterable[ScoredLine]):
        self._lines = lines

    def __enter__(self) -> Iterator[ScoredLine]:
        self._start = time.perf_counter()
        self._num_lines = self._num_tokens = self._num_unknown = 0
        return self._counted()

    def _counted(self) -> Iterator[ScoredLine]:
        shows_progress = sys.stderr.isatty() and not sys.stdout.isatty()
        with tqdm(unit="token", desc="scoring", disable=not shows_progress) as bar:
            for line in self._lines:
                self._num_lines += 1
                self._num_tokens += len(line.tokens)
                self._num_unknown += sum(line.unknown)
                yield line
                bar.update(len(line.tokens))

    def __exit__(self, *error: object) -> None:
        seconds = time.perf_counter() - self._start
        sys.stdout.flush()
        print(
            f"{self._num_lines:,} lines, {self._num_tokens:,} tokens with end marks, {self._num_unknown:,} unknown; "
            f"{seconds:,.1f} s, {self._num_tokens / seconds:,.0f} tokens/s",
            file=sys.stderr,
        )


def _as_text(line: ScoredLine, number: int, *, per: str) -> str:
    if per == "line":
        return f"{line.total:.6f}\t{len(line.tokens)}\t{sum(line.unknown)}\t{line.text}"
    rows = zip(line.tokens, line.nats, line.bits, line.unknown)
    return "\n".join(
        f"{number}\t{token}\t{nats:.6f}\t{bits:.6f}\t{UNKNOWN_MARK if unknown else '-'}"
        for token, nats, bits, unknown in rows
    )


def _as_json(line: ScoredLine, number: int) -> str:
    figures = {"line": number, "text": line.text, "log_prob": line.total, "tokens": line.tokens}
    return json_text({**figures, "nats": line.nats, "bits": line.bits, "unknown": line.unknown}, letters="kept")


if __name__ == "__main__":
    ScoreText().main()
