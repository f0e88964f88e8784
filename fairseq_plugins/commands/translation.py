"""Translation of raw text."""

import argparse
import os
import stat
import sys
from dataclasses import fields
from pathlib import Path
from typing import List

from fairseq_plugins.command_line import (
    add_beam,
    add_checkpoints,
    add_cpu,
    add_data,
    add_input,
    add_output_precision,
    add_plot,
    add_sampling,
    choose_device,
)
from fairseq_plugins.console import Command, progress_bar
from fairseq_plugins.evaluation.raw_text import stream_lines
from fairseq_plugins.evaluation.translation import EXTRA_PIECES, GENERATION_FLAGS, SearchOptions, load_translator
from fairseq_plugins.files import STANDARD_INPUT, name_of
from fairseq_plugins.options import UserError, count, flag_of
from fairseq_plugins.reports.report import json_text
from fairseq_plugins.reports.sentences import save_attention_map

BATCH_SIZE = 32

BATCHES_AT_ONCE = 32
"""Batches of a file that are read before they are translated."""


def _add_translate_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    add_checkpoints(parser, help="one encoder-decoder, or several as an ensemble")
    add_input(parser, help="sentences, one a line, - is the standard input (default)")
    add_beam(parser)
    parser.add_argument(
        "--nbest", type=count, default=1, metavar="N", help="translations of each line, the best first (default: 1)"
    )
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "--scores",
        action="store_true",
        help="print before each translation its score, as in fairseq-generate, and a tab",
    )
    shown.add_argument("--json", action="store_true", help="print a JSON object for each line")
    parser.add_argument(
        "--lenpen", type=float, default=1.0, metavar="L", help="divide scores by the length to this power (default: 1)"
    )
    parser.add_argument(
        "--max-len",
        type=count,
        metavar="N",
        help=f"maximum number of subwords of a translation (default: at least {EXTRA_PIECES - 1} more than the source)",
    )
    parser.add_argument(
        "--replace-unk",
        nargs="?",
        const=True,
        default=False,
        metavar="FILE",
        help="replace each unknown word by the source word with the highest attention weight, or by the entry of that "
        'word in FILE, lines "source target"',
    )
    parser.add_argument(
        "--sampling",
        action="store_true",
        help="draw --beam hypotheses instead of searching; the result depends only on the line and the seed",
    )
    add_sampling(parser)
    add_plot(
        parser,
        help="draw the attention of the first sentence, up to 100 words of either side, such as attention.png",
    )
    parser.add_argument(
        "--batch-size",
        type=count,
        help="lines that are translated at a time; it does not change translations "
        f"(default: {BATCH_SIZE} of files, 1 of a terminal or a pipe, where every line is answered at once)",
    )
    add_output_precision(parser)
    add_cpu(parser)


def _reads_file() -> bool:
    """Whether the standard input is a file, as after ``< FILE``, so that nobody waits for the answer to a line."""
    try:
        return stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)
    except OSError:  # a stream in memory
        return False


def _translate(args: argparse.Namespace) -> None:
    paths: List[Path] = args.input or [STANDARD_INPUT]
    is_typed = STANDARD_INPUT in paths and not _reads_file()
    batch_size: int = (1 if is_typed else BATCH_SIZE) if args.batch_size is None else args.batch_size
    names = [option.name for option in fields(SearchOptions) if option.name != "flags"]
    search = SearchOptions(**{name: getattr(args, name) for name in names}, flags=args.forwarded)
    lines = stream_lines(paths)
    translator = load_translator(args.path, args.data, device=choose_device(args), precision=args.output_precision)
    translated = translator.translate_stream(
        lines,
        search,
        batch_size=batch_size,
        buffer=batch_size * (1 if is_typed else BATCHES_AT_ONCE),
        name=name_of(*paths),
    )
    draws = args.plot is not None
    with progress_bar("translating", unit="line") as bar:
        for sentence in translated:
            if draws and sentence.source:
                save_attention_map(sentence, translator.source.subwords, args.plot)
                draws = False
            if args.json:
                print(json_text(sentence.figures(), letters="kept"), flush=True)
            else:
                for one in (sentence, *sentence.others):
                    print(f"{one.score:.6f}\t{one.text}" if args.scores else one.text, flush=True)
            bar.update()
    if draws:
        raise UserError(f"--plot {args.plot}: there is no sentence to draw, all lines are blank")


TAKEN_FLAGS = ", ".join(map(flag_of, GENERATION_FLAGS))


TRANSLATE = Command(
    add_arguments=_add_translate_arguments,
    run=_translate,
    description=f"""\
Reads one sentence a line and prints its translation, or --nbest translations, one a line in the same order. A blank
line stays blank. Sentences are tokenised, lower-cased and split into subwords as DATA was, by text.json and the subword
model there. Translations are detokenised. They do not depend on other lines. For Gigaword give its own tokens, such as
-lrb- and ##, separated by blanks. The output then has the same form.

A score is log2 of the probability, divided by the length to the power --lenpen. --json prints the line, the tokens that
the model reads, and for each translation its text, score, tokens (unknown words as <unk>) and alignment, which is pairs
of positions in source and translation. Flags of fairseq-generate may follow a --: {TAKEN_FLAGS}.""",
    example="data-bin/tatoeba.de-en --path checkpoints/tatoeba --input sentences.de --nbest 3 --scores",
    forwards_to="fairseq-generate",
)
