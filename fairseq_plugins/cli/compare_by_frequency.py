"""Two language models compared by word frequency: ``python -m fairseq_plugins.cli.compare_by_frequency --help``."""

import argparse
import sys
from dataclasses import asdict

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.command_line import (
    Command,
    add_cpu,
    add_data,
    add_json,
    add_named_models,
    add_plot,
    add_split,
    choose_device,
)
from fairseq_plugins.data.text import load_token_stream, load_training_stream
from fairseq_plugins.evaluation.analyses.words import compare_bands, losses_by_type
from fairseq_plugins.evaluation.checkpoints import load_language_models
from fairseq_plugins.options import UserError, named_paths
from fairseq_plugins.reports.analyses import draw_frequency_bands, frequency_table
from fairseq_plugins.reports.tables import json_text, save_picture
from fairseq_plugins.reports.training_log import with_origin


class CompareByFrequency(Command):
    """Compares two language models by the frequency of words."""

    name = "compare_by_frequency"
    summary = "How much better one language model predicts rare and frequent words than another."
    description = """\
For each band of training frequency, in per cent: the mean over word types of (B - O) / O, as in figure 3 of Pappas &
Henderson 2019, with the summed losses B of the first model, the baseline, and O of the second; and (B - O) / B of the
whole band's loss. The end mark is left out."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_data(parser)
        add_named_models(parser, help="two models, the baseline first")
        add_split(parser)
        add_plot(parser, help="draw both statistics, such as bands.png")
        add_cpu(parser)
        add_json(parser)

    def run(self, args: argparse.Namespace) -> None:
        names, paths = zip(*named_paths(args.path, repeated_names="refused"))
        if len(paths) != 2:
            raise UserError(f"--path: give two models, the baseline first; there are {len(paths)}")
        device = choose_device(args)
        models, dictionary = load_language_models(paths, args.data)
        tokens = load_token_stream(args.data, args.split, dictionary)
        train_tokens = load_training_stream(args.data, dictionary)
        baseline, other = (
            losses_by_type(
                [model.to(device)],
                tokens,
                vocab_size=len(dictionary),
                device=device,
                show_progress=sys.stderr.isatty(),
            )
            for model in models
        )
        bands = compare_bands(
            baseline,
            other,
            train_counts=train_tokens.bincount(minlength=len(dictionary)),
            counts=tokens[1:].bincount(minlength=len(dictionary)),
            excluded=[dictionary.eos()],
        )
        if args.json:
            figures = {"bands": [asdict(band) for band in bands]}
            print(json_text(with_origin(figures, command=args.command_line)))
        else:
            print(frequency_table(bands))
        if args.plot:
            save_picture(draw_frequency_bands(bands, names=names), args.plot)


if __name__ == "__main__":
    CompareByFrequency().main()
