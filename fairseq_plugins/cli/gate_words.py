"""Words that a gate raises after an input word: ``python -m fairseq_plugins.cli.gate_words --help``."""

import argparse
from dataclasses import asdict

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.command_line import Command, add_checkpoints, add_data, add_json
from fairseq_plugins.data.text import load_dictionary, load_training_stream
from fairseq_plugins.evaluation.analyses.words import raised_words, word_gate, word_indices
from fairseq_plugins.evaluation.checkpoints import load_language_models
from fairseq_plugins.options import UserError, check_at_least_one, check_not_negative
from fairseq_plugins.reports.tables import as_table, json_text
from fairseq_plugins.reports.training_log import with_origin


class GateWords(Command):
    """Shows which words a gate raises."""

    name = "gate_words"
    summary = "The words that an Input-to-Output Gate raises most after given input words."
    description = """\
Output words are ranked by the gate, which multiplies their logits, as in table 5 of Takase, Suzuki & Nagata 2017. Words
with few occurrences in the training text are left out, because their gates hardly learn."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_data(parser)
        add_checkpoints(parser, help="one checkpoint of a language model with --output-gate iog")
        parser.add_argument("--words", nargs="+", action="extend", required=True, metavar="WORD", help="input words")
        parser.add_argument(
            "--min-count",
            type=int,
            default=100,
            metavar="N",
            help="leave out words that the training text has less often (default: %(default)s)",
        )
        parser.add_argument(
            "--num", type=int, default=5, metavar="N", help="words to show after each input word (default: %(default)s)"
        )
        add_json(parser)

    def run(self, args: argparse.Namespace) -> None:
        check_not_negative(args.min_count, flag="--min-count")
        check_at_least_one(args.num, flag="--num")
        if len(args.path) > 1:
            raise UserError(f"--path: give one checkpoint; there are {len(args.path)}")
        word_indices(args.words, load_dictionary(args.data))
        (model,), dictionary = load_language_models(args.path, args.data)
        gate = word_gate(model, args.path[0])
        raised = raised_words(
            gate,
            args.words,
            dictionary=dictionary,
            counts=load_training_stream(args.data, dictionary).bincount(minlength=len(dictionary)),
            min_count=args.min_count,
            num_words=args.num,
        )
        if args.json:
            figures = {"words": {word: [asdict(one) for one in found] for word, found in raised.items()}}
            print(json_text(with_origin(figures, command=args.command_line)))
        else:
            rows = [
                (word, one.word, f"{one.gate:.4f}", f"{one.count:,}") for word, found in raised.items() for one in found
            ]
            print(as_table(["input word", "raised word", "gate", "occurrences in train"], rows))


if __name__ == "__main__":
    GateWords().main()
