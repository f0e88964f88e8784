"""The attention of translations as pictures: ``python -m fairseq_plugins.cli.plot_attention --help``."""

import argparse
from itertools import islice
from pathlib import Path
from typing import List

from tqdm import tqdm

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.command_line import (
    Command,
    add_beam,
    add_checkpoints,
    add_cpu,
    add_data,
    add_input,
    add_out,
    add_output_precision,
    choose_device,
)
from fairseq_plugins.data.text import STANDARD_INPUT, name_of
from fairseq_plugins.evaluation.raw_text import stream_lines
from fairseq_plugins.evaluation.scoring import prepare_to_score
from fairseq_plugins.evaluation.translation import load_translator
from fairseq_plugins.options import UserError, check_at_least_one
from fairseq_plugins.output_layers.base import OUTPUT_PRECISIONS
from fairseq_plugins.reports.plots import save_attention_map


class PlotAttention(Command):
    """Draws the attention of an encoder-decoder for each output word."""

    name = "plot_attention"
    summary = "Heat maps of the attention, source by target, of sentences that are translated by beam search."
    description = """\
Raw sentences are prepared and translated as translate does it. Every sentence has a picture, OUT/sentence_1.png and so
on, whose name is printed before its translation: a row for each word of the translation, a column for each word of the
source, up to 100 of either. Weights of subwords are added over a source word and averaged over a target word; those of
several models, and of a Transformer's heads, are averaged."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_data(parser, written_by="data-prep/<corpus>/prepare.sh")
        add_checkpoints(parser, help="one encoder-decoder, or several as an ensemble")
        add_input(parser, help="sentences, one a line (default: the standard input)")
        parser.add_argument(
            "--num", type=int, default=10, metavar="N", help="sentences to draw, the first (default: %(default)s)"
        )
        add_beam(parser)
        add_out(parser, help="directory for the pictures")
        add_output_precision(parser, choices=OUTPUT_PRECISIONS)
        add_cpu(parser)

    def run(self, args: argparse.Namespace) -> None:
        check_at_least_one(args.num, flag="--num")
        check_at_least_one(args.beam, flag="--beam")
        paths: List[Path] = args.input or [STANDARD_INPUT]
        with_words = (line for line in stream_lines(paths) if line.strip())
        device = choose_device(args)
        translator = load_translator(args.path, args.data, device=device)
        prepare_to_score(translator.models, device=device, precision=args.output_precision)
        lines = list(translator.preparation.watched(islice(with_words, args.num), name=name_of(*paths)))
        if not lines:
            raise UserError("there is no sentence to draw, all lines are blank")
        for number, line in enumerate(tqdm(lines, unit="picture", disable=None, leave=False), start=1):
            (sentence,) = translator.translate([line], beam=args.beam)
            args.out.mkdir(parents=True, exist_ok=True)
            picture = args.out / f"sentence_{number}.png"
            save_attention_map(sentence, translator.preparation, picture)
            print(f"{picture}\t{sentence.text}", flush=True)


if __name__ == "__main__":
    PlotAttention().main()
