"""ROUGE of headlines and summaries: ``python -m fairseq_plugins.cli.evaluate_rouge --help``."""

import argparse
import sys
from dataclasses import asdict
from typing import List

from fairseq_plugins.command_line import Command, add_json
from fairseq_plugins.data.text import read_lines
from fairseq_plugins.evaluation.scored_text import DECODING_HELP, HYPOTHESES_FILE, add_scored_text, read_scored_text
from fairseq_plugins.evaluation.translation_scores import read_headlines, score_headlines
from fairseq_plugins.metrics.rouge import NUM_BOOTSTRAP_SAMPLES, RougeScore, add_rouge_settings, read_rouge_settings
from fairseq_plugins.options import check_at_least_one, write_text
from fairseq_plugins.reports.tables import json_text
from fairseq_plugins.reports.training_log import with_origin


class EvaluateRouge(Command):
    """Scores headlines and summaries by ROUGE."""

    name = "evaluate_rouge"
    summary = "ROUGE-1, -2 and -L of a model's headlines for a split, or of headlines that are there."
    description = f"""\
With DATA, --path and --out the split is decoded, and OUT holds generate.txt, hypotheses.txt and rouge.txt.

Figures are from 0 to 100: F1 with a 95 % confidence interval from {NUM_BOOTSTRAP_SAMPLES:,} bootstrap samples, recall
and precision. Two scores can be compared if the last line, their signature, is the same.

{DECODING_HELP}"""
    forwards_to = "fairseq-generate"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_scored_text(parser, several_references=True)
        add_rouge_settings(parser)
        parser.add_argument(
            "--processes",
            type=int,
            help="processes that score, at most as many as cores and texts allow (default: one for each 500 texts)",
        )
        add_json(parser)

    def run(self, args: argparse.Namespace) -> None:
        settings = read_rouge_settings(args)
        if args.processes is not None:
            check_at_least_one(args.processes, flag="--processes")
        text = read_scored_text(args)
        text.decode(result="rouge.txt")
        if text.format == "generate":
            hypotheses = read_headlines(*text.files, references=text.references)
        else:
            hypotheses = [line for path in text.files for line in read_lines(path)]
        scores = score_headlines(
            hypotheses,
            text.name,
            text.references,
            settings,
            num_processes=args.processes,
            show_progress=sys.stderr.isatty(),
        )
        if text.decoding is not None:
            write_text(text.decoding.out / HYPOTHESES_FILE, "".join(f"{line}\n" for line in hypotheses))
        signature = settings.signature(num_references=len(text.references))
        text.write(as_text(scores, signature), result="rouge.txt")
        if args.json:
            print(as_json(scores, signature, command=args.command_line))
        else:
            print(as_text(scores, signature))


def as_json(scores: List[RougeScore], signature: str, *, command: str) -> str:
    """All figures in JSON."""
    figures = {"scores": [asdict(item) for item in scores], "signature": signature}
    return json_text(with_origin(figures, command=command))


def as_text(scores: List[RougeScore], signature: str) -> str:
    """A line for each metric, then the signature."""
    lines = [
        f"{item.metric}  F1 {item.f1:6.2f} +- {item.f1_interval:.2f}  recall {item.recall:6.2f}  "
        f"precision {item.precision:6.2f}"
        for item in scores
    ]
    return "\n".join([*lines, signature])


if __name__ == "__main__":
    EvaluateRouge().main()
