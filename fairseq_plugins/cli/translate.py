"""Translation of raw text: ``python -m fairseq_plugins.cli.translate --help``."""

import argparse
import sys
from itertools import islice
from pathlib import Path
from typing import Iterable, Iterator, List, Optional, TypeVar

from tqdm import tqdm

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.command_line import (
    Command,
    add_beam,
    add_checkpoints,
    add_cpu,
    add_data,
    add_input,
    add_output_precision,
    add_plot,
    choose_device,
)
from fairseq_plugins.data.text import STANDARD_INPUT, name_of
from fairseq_plugins.evaluation.raw_text import stream_lines
from fairseq_plugins.evaluation.scoring import prepare_to_score
from fairseq_plugins.evaluation.translation import EXTRA_PIECES, load_translator
from fairseq_plugins.options import UserError, check_at_least_one
from fairseq_plugins.output_layers.base import OUTPUT_PRECISIONS
from fairseq_plugins.reports.plots import save_attention_map

FILE_BATCH_SIZE = 32

Item = TypeVar("Item")


class Translate(Command):
    """Translates raw text."""

    name = "translate"
    summary = "Translate raw sentences from files or the standard input by beam search."
    description = f"""\
A sentence a line becomes a translation a line, in the same order; a blank line stays blank. Sentences are tokenised,
put into lower case and split into subwords as DATA was, by the subword model that lies there; translations are
detokenised. They are printed as soon as a batch is translated; one that does not end by itself is cut {EXTRA_PIECES}
subwords beyond the length of the longest sentence of its batch. Of Gigaword, which comes in tokens of its own, such
as -lrb- and ##, give such tokens between blanks; translations are such, too."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_data(parser, written_by="data-prep/<corpus>/prepare.sh")
        add_checkpoints(parser, help="one encoder-decoder, or several as an ensemble")
        add_input(parser, help="sentences, one a line (default: the standard input)")
        add_plot(
            parser,
            help="draw the attention of the first sentence, up to 100 words of either side, such as attention.png",
        )
        add_beam(parser)
        parser.add_argument(
            "--batch-size",
            type=int,
            help="lines that are translated at a time "
            f"(default: {FILE_BATCH_SIZE} of files, 1 of the standard input, which answers every line at once)",
        )
        add_output_precision(parser, choices=OUTPUT_PRECISIONS)
        add_cpu(parser)

    def run(self, args: argparse.Namespace) -> None:
        paths: List[Path] = args.input or [STANDARD_INPUT]
        batch_size: Optional[int] = args.batch_size
        if batch_size is None:
            batch_size = 1 if STANDARD_INPUT in paths else FILE_BATCH_SIZE
        check_at_least_one(args.beam, flag="--beam")
        check_at_least_one(batch_size, flag="--batch-size")
        lines = stream_lines(paths)
        device = choose_device(args)
        translator = load_translator(args.path, args.data, device=device)
        prepare_to_score(translator.models, device=device, precision=args.output_precision)
        draws = args.plot is not None
        shows_progress = sys.stderr.isatty() and not sys.stdout.isatty()
        lines = translator.preparation.watched(lines, name=name_of(*paths))
        with tqdm(unit="line", desc="translating", disable=not shows_progress) as bar:
            for batch in batches(lines, batch_size):
                sentences = translator.translate(batch, beam=args.beam)
                first = next((sentence for sentence in sentences if sentence.source), None)
                if draws and first:
                    save_attention_map(first, translator.preparation, args.plot)
                    draws = False
                for sentence in sentences:
                    print(sentence.text, flush=True)
                bar.update(len(batch))
        if draws:
            raise UserError(f"--plot {args.plot}: there is no sentence to draw, all lines are blank")


def batches(items: Iterable[Item], size: int) -> Iterator[List[Item]]:
    """Lists of ``size`` items. The last may be shorter. Each is yielded as soon as it is complete."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


if __name__ == "__main__":
    Translate().main()
