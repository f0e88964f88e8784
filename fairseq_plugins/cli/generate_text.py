"""Text that language models write: ``python -m fairseq_plugins.cli.generate_text --help``."""

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import List

from tqdm import tqdm

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.command_line import (
    Command,
    add_checkpoints,
    add_cpu,
    add_data,
    add_input,
    add_output_precision,
    add_tokenised,
    choose_device,
)
from fairseq_plugins.data.text import STANDARD_INPUT, name_of, read_lines
from fairseq_plugins.evaluation.checkpoints import load_scoring_models
from fairseq_plugins.evaluation.generation import STOPS, UNKNOWN_WORDS, Continuation, Sampling, TextGenerator
from fairseq_plugins.evaluation.raw_text import load_side_text, stream_lines
from fairseq_plugins.evaluation.scoring import prepare_to_score
from fairseq_plugins.options import UserError, check_at_least_one, check_not_negative, given_path
from fairseq_plugins.output_layers.base import OUTPUT_PRECISIONS
from fairseq_plugins.reports.tables import json_text

SEED = 1
"""Default seed of sampling."""


class GenerateText(Command):
    """Continues prefixes."""

    name = "generate_text"
    summary = "Continue the beginnings of lines by language models: sampling, or beam search."
    description = """\
Each line of text is the beginning of a line, a blank one of a line of any kind; up to --num texts are printed for it,
a line each. What is drawn for a beginning depends on it and the seed alone, not on other lines. Several checkpoints are
averaged as probabilities. With --stop length, end marks are words like others and are printed as </s>; --json prints an
object for each text, in which they are line breaks."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_data(parser, written_by="data-prep/<corpus>/prepare.sh")
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
            type=int,
            default=1,
            metavar="N",
            help="texts for each beginning; a beam search may find fewer (default: %(default)s)",
        )
        parser.add_argument(
            "--beam",
            type=int,
            metavar="N",
            help="search with so many hypotheses; the best texts come first (default: texts are sampled)",
        )
        parser.add_argument(
            "--temperature", type=float, default=1.0, help="divides log-probabilities before sampling (default: 1)"
        )
        parser.add_argument(
            "--top-k", type=int, metavar="K", help="sample from the K most probable words (default: all)"
        )
        parser.add_argument(
            "--top-p",
            type=float,
            metavar="P",
            help="sample from the fewest words whose probabilities sum up to P (default: all)",
        )
        parser.add_argument(
            "--seed", type=int, help=f"of sampling: the same one draws the same texts (default: {SEED})"
        )
        parser.add_argument(
            "--max-length", type=int, default=100, metavar="N", help="tokens that are written at most (default: 100)"
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
        add_output_precision(parser, choices=OUTPUT_PRECISIONS)
        parser.add_argument("--json", action="store_true", help="print a JSON object for each text")
        add_cpu(parser)

    def run(self, args: argparse.Namespace) -> None:
        paths: List[Path] = args.input or [STANDARD_INPUT]
        check_at_least_one(args.num, flag="--num")
        check_at_least_one(args.max_length, flag="--max-length")
        seed = SEED if args.seed is None else args.seed
        check_not_negative(seed, flag="--seed")
        sampling = Sampling(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p)
        if args.beam is not None and args.num > args.beam:
            raise UserError(f"--num {args.num} --beam {args.beam}: give a beam of at least {args.num}")
        if args.beam is not None:
            sampling.check_unused(beam="--beam")
            if args.seed is not None:
                raise UserError(f"--seed {args.seed}: --beam draws nothing, leave out one of them")
        if args.after == STANDARD_INPUT and STANDARD_INPUT in paths:
            raise UserError("--after - and --input -: the standard input is read once, give a file for one of them")
        lines = stream_lines(paths)
        earlier: List[str] = [] if args.after is None else read_lines(args.after, unicode="kept")
        models = load_scoring_models(args.path, args.data)
        text = load_side_text(args.data, kind="tokenised" if args.tokenised else "raw")
        lines = text.watched(lines, name=name_of(*paths))
        if args.after is not None:
            earlier = list(text.watched(earlier, name=name_of(args.after)))
        device = choose_device(args)
        generator = TextGenerator(
            prepare_to_score(models, device=device, precision=args.output_precision),
            text,
            max_length=args.max_length,
            stop=args.stop,
            unknown=args.unknown,
            device=device,
        )
        shows_progress = sys.stderr.isatty() and not sys.stdout.isatty()
        with ExitStack() as contexts:
            after = contexts.enter_context(generator.open_stream(earlier)) if earlier else None
            for prefix in contexts.enter_context(tqdm(lines, unit="line", disable=not shows_progress)):
                if args.beam is None:
                    found = generator.sample(prefix, num=args.num, seed=seed, sampling=sampling, after=after)
                else:
                    found = generator.search(prefix, beam=args.beam, num=args.num, after=after)
                for one in found:
                    print(_as_json(prefix, one) if args.json else one.text.replace("\n", " </s> "), flush=True)


def _as_json(prefix: str, found: Continuation) -> str:
    figures = {"prefix": prefix, "text": found.text, "log_prob": found.total}
    return json_text({**figures, "tokens": found.tokens, "log_probs": found.log_probs}, letters="kept")


if __name__ == "__main__":
    GenerateText().main()
