"""Estimation of n-gram language models: ``python -m fairseq_plugins.cli.train_ngram --help``."""

import argparse
import sys
from dataclasses import asdict
from typing import List

from fairseq_plugins.command_line import Command, add_data, add_json, add_output_file, add_split
from fairseq_plugins.data.text import load_dictionary, load_training_stream
from fairseq_plugins.ngrams.kneser_ney import FALLBACK, Estimate, estimate_model
from fairseq_plugins.options import check_at_least_one
from fairseq_plugins.reports.tables import json_text
from fairseq_plugins.reports.training_log import with_origin


class TrainNGram(Command):
    """Estimates an n-gram model."""

    name = "train_ngram"
    summary = "Estimate an n-gram model with interpolated modified Kneser-Ney smoothing."
    description = """\
The model is that of Chen & Goodman (1998). It predicts the words of dict.txt, the unknown word and the end mark; the
sentence start is context only, padding nothing. The unknown word of the text is a word like others. n-grams do not
cross lines. The file is of the ARPA format, which KenLM and SRILM read; evaluate_ngram measures its perplexity."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_data(parser)
        add_split(parser, help="split to count", default="train")
        parser.add_argument("--order", type=int, default=5, help="words of the longest n-grams (default: %(default)s)")
        add_output_file(
            parser, "--out", required=True, help="ARPA file to write, compressed where its name ends in .gz"
        )
        add_json(parser)

    def run(self, args: argparse.Namespace) -> None:
        check_at_least_one(args.order, flag="--order")
        show_progress = sys.stderr.isatty()
        dictionary = load_dictionary(args.data)
        tokens = load_training_stream(args.data, dictionary, subset=args.split)
        estimate = estimate_model(tokens, dictionary, order=args.order, show_progress=show_progress)
        estimate.model.write_arpa(args.out, show_progress=show_progress)
        not_estimated = [order for order, one in enumerate(estimate.discounts, 1) if one.source == "fallback"]
        if not_estimated:
            print(
                f"{self.program}: the counts of order {', '.join(map(str, not_estimated))} define no discounts (small "
                f"texts, few different words): {', '.join(f'{one:g}' for one in FALLBACK)} are taken there",
                file=sys.stderr,
            )
        print(as_json(estimate, command=args.command_line) if args.json else as_text(estimate))


def as_json(estimate: Estimate, *, command: str) -> str:
    """Number of words, and n-grams, discounts and their source for each order, in JSON."""
    orders = [
        {"order": order, "ngrams": estimate.model.num_ngrams(order), **asdict(discounts)}
        for order, discounts in enumerate(estimate.discounts, 1)
    ]
    return json_text(with_origin({"words": estimate.num_words, "orders": orders}, command=command))


def as_text(estimate: Estimate) -> str:
    """Number of words, and a line with n-grams and discounts for each order."""
    lines: List[str] = [
        f"words predicted {estimate.num_words:,}",
        f"{'order':>5} {'n-grams':>13} {'D1':>9} {'D2':>9} {'D3+':>9}",
    ]
    for order, discounts in enumerate(estimate.discounts, 1):
        size = estimate.model.num_ngrams(order)
        lines.append(" ".join([f"{order:>5} {size:>13,}", *(f"{value:>9.6f}" for value in discounts.values)]))
    return "\n".join(lines)


if __name__ == "__main__":
    TrainNGram().main()
