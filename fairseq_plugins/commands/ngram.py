"""n-gram language models: estimation and perplexity."""

import argparse
import sys
from dataclasses import asdict
from typing import Any, Dict, List

from fairseq_plugins.command_line import add_data, add_output_file, add_split
from fairseq_plugins.commands.method_flags import FLAGS, given_flags, read_methods
from fairseq_plugins.commands.report import report_command
from fairseq_plugins.data.text import load_dictionary, load_token_stream, load_training_stream
from fairseq_plugins.evaluation.evaluator import evaluate_ngram_model
from fairseq_plugins.files import check_not_read, given_path
from fairseq_plugins.ngrams.kneser_ney import FALLBACK, Estimate, estimate_model
from fairseq_plugins.ngrams.model import NGramModel
from fairseq_plugins.options import count
from fairseq_plugins.reports.analyses import perplexity_report
from fairseq_plugins.reports.report import Report


def _add_train_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    add_split(parser, help="split to count", default="train")
    parser.add_argument("--order", type=count, default=5, help="words of the longest n-grams (default: %(default)s)")
    add_output_file(parser, "--out", required=True, help="ARPA file to write, compressed where its name ends in .gz")


def _estimate(args: argparse.Namespace) -> Report:
    dictionary = load_dictionary(args.data)
    check_not_read(args.out, args.data.iterdir(), flag="--out")
    tokens = load_training_stream(args.data, dictionary, subset=args.split)
    estimate = estimate_model(tokens, dictionary, order=args.order)
    estimate.model.write_arpa(args.out)
    not_estimated = [order for order, one in enumerate(estimate.discounts, 1) if one.source == "fallback"]
    if not_estimated:
        orders, values = ", ".join(map(str, not_estimated)), ", ".join(f"{one:g}" for one in FALLBACK)
        print(
            f"fairseq-plugins ngram train: the counts of order {orders} define no discounts (small texts, few "
            f"different words): {values} are used instead",
            file=sys.stderr,
        )
    return _estimate_report(estimate)


TRAIN = report_command(
    _estimate,
    _add_train_arguments,
    description="""\
Estimates the model of Chen & Goodman (1998). It predicts the words of dict.txt, the unknown word and the end mark. The
start of a sentence is context only. The unknown word is counted like other words. n-grams do not cross lines. The file
is in the ARPA format, which KenLM and SRILM read. ngram eval measures its perplexity.""",
    example="data-bin/ptb --order 5 --out kn5.arpa",
)


def _estimate_report(estimate: Estimate) -> Report:
    """Number of words, and n-grams, discounts and their source for each order."""
    figures: List[Dict[str, Any]] = []
    lines = [
        f"words predicted {estimate.num_words:,}",
        f"{'order':>5} {'n-grams':>13} {'D1':>9} {'D2':>9} {'D3+':>9}",
    ]
    for order, discounts in enumerate(estimate.discounts, 1):
        size = estimate.model.num_ngrams(order)
        figures.append({"order": order, "ngrams": size, **asdict(discounts)})
        lines.append(" ".join([f"{order:>5} {size:>13,}", *(f"{value:>9.6f}" for value in discounts.values)]))
    return Report({"words": estimate.num_words, "orders": figures}, "\n".join(lines))


def _add_eval_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    parser.add_argument(
        "--path", type=given_path, required=True, metavar="ARPA", help="ARPA file, compressed by gzip or not"
    )
    add_split(parser)
    metavar, help = FLAGS["unigram-cache"]
    parser.add_argument("--unigram-cache", metavar=metavar, help=help)


def _evaluate(args: argparse.Namespace) -> Report:
    methods = read_methods(given_flags(args))
    dictionary = load_dictionary(args.data)
    tokens = load_token_stream(args.data, args.split, dictionary)
    model = NGramModel.read_arpa(args.path, dictionary)
    result, without_first = evaluate_ngram_model(model, tokens, mixed=methods.mixed)
    perplexity = without_first.perplexity
    return perplexity_report(result, f"without first token {perplexity:.4f}", perplexity_without_first_token=perplexity)


EVAL = report_command(
    _evaluate,
    _add_eval_arguments,
    description="""\
Every token is predicted, the first token and the end mark of each line included, as is usual for n-gram models. The
last figure leaves the first token out, as lm eval does. Reads files of ngram train, KenLM and SRILM. Words of dict.txt
that the file lacks share the probability of its <unk>.""",
    example="data-bin/ptb --path kn5.arpa --split test",
)
