"""Perplexity of n-gram language models: ``python -m fairseq_plugins.cli.evaluate_ngram --help``."""

import argparse
import sys

from fairseq_plugins.command_line import Command, add_data, add_json, add_split
from fairseq_plugins.data.text import load_dictionary, load_token_stream
from fairseq_plugins.evaluation.evaluator import FLAGS, NGramPerplexity, evaluate_ngram_model, read_methods
from fairseq_plugins.evaluation.test_time import EvaluatedText
from fairseq_plugins.ngrams.model import NGramModel
from fairseq_plugins.options import given_path
from fairseq_plugins.reports.analyses import perplexity_figures, perplexity_lines
from fairseq_plugins.reports.tables import json_text
from fairseq_plugins.reports.training_log import with_origin


class EvaluateNGram(Command):
    """Measures the perplexity of an n-gram model."""

    name = "evaluate_ngram"
    summary = "Perplexity of an n-gram model in an ARPA file, on a split."
    description = """\
Every token is predicted, the end mark of each line and the first token included, as the literature on n-gram models
counts; the last figure leaves the first token out, as evaluate_lm does. Files of train_ngram, KenLM and SRILM are read.
Words of dict.txt that the file lacks share the probability of its <unk>."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_data(parser)
        parser.add_argument(
            "--path", type=given_path, required=True, metavar="ARPA", help="ARPA file, compressed by gzip or not"
        )
        add_split(parser)
        metavar, help = FLAGS["unigram-cache"]
        parser.add_argument("--unigram-cache", metavar=metavar, help=help)
        add_json(parser)

    def run(self, args: argparse.Namespace) -> None:
        methods = read_methods({} if args.unigram_cache is None else {"unigram-cache": args.unigram_cache})
        show_progress = sys.stderr.isatty()
        dictionary = load_dictionary(args.data)
        tokens = load_token_stream(args.data, args.split, dictionary)
        model = NGramModel.read_arpa(args.path, dictionary, show_progress=show_progress)
        text = EvaluatedText(tokens, dictionary=dictionary, num_rows=1)
        mixed = [(options.build(text), weight) for options, weight in methods.mixed]
        result = evaluate_ngram_model(model, tokens, mixed=mixed, show_progress=show_progress)
        print(as_json(result, command=args.command_line) if args.json else as_text(result))


def as_json(result: NGramPerplexity, *, command: str) -> str:
    """All figures in JSON."""
    without_first = {"perplexity_without_first_token": result.without_first.perplexity}
    return json_text(with_origin({**perplexity_figures(result.all_tokens), **without_first}, command=command))


def as_text(result: NGramPerplexity) -> str:
    """Lines of the figures with their units."""
    return "\n".join(
        [*perplexity_lines(result.all_tokens), f"without first token {result.without_first.perplexity:.4f}"]
    )


if __name__ == "__main__":
    EvaluateNGram().main()
