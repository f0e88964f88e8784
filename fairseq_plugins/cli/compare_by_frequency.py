"""Two language models compared by word frequency: ``python -m fairseq_plugins.cli.compare_by_frequency --help``."""

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, List, Sequence

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.data.corpus import load_token_stream
from fairseq_plugins.evaluation.checkpoints import load_language_models
from fairseq_plugins.evaluation.frequency_bands import FrequencyBand, compare_bands, losses_by_type
from fairseq_plugins.flags.command import Command
from fairseq_plugins.flags.common_arguments import (
    add_cpu,
    add_data,
    add_json,
    add_named_models,
    add_plot,
    add_split,
    choose_device,
)
from fairseq_plugins.flags.values import named_paths
from fairseq_plugins.reports.pictures import new_picture, save_picture
from fairseq_plugins.reports.tables import as_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class CompareByFrequency(Command):
    """Compares two language models by the frequency of words."""

    name = "compare_by_frequency"
    summary = "How much better one language model predicts rare and frequent words than another."
    description = """\
For each band of training frequency, in per cent: the mean over word types of (B - O) / O, as in figure 3 of Pappas &
Henderson 2019, with the summed losses B of the first model, the baseline, and O of the second; and (B - O) / B of the
whole band's loss. The end mark is left out."""
    named_models = "on"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_data(parser)
        add_named_models(parser, help="two models, the baseline first")
        add_split(parser)
        add_plot(parser, help="draw both statistics, such as bands.png")
        add_cpu(parser)
        add_json(parser)

    def run(self, args: argparse.Namespace) -> None:
        names, paths = zip(*named_paths(args.path))
        if len(paths) != 2:
            raise ValueError(f"--path: give two models, the baseline first; there are {len(paths)}")
        device = choose_device(args)
        models, dictionary = load_language_models(paths, args.data)
        tokens = load_token_stream(args.data, args.split, dictionary)
        train_tokens = load_token_stream(args.data, "train", dictionary)
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
        print(json.dumps([asdict(band) for band in bands]) if args.json else as_markdown(bands))
        if args.plot:
            save_picture(draw(bands, names=names), args.plot)


def title(band: FrequencyBand) -> str:
    """The band's bounds."""
    return f"{band.lowest:,} and more" if band.below is None else f"{band.lowest:,} to {band.below - 1:,}"


def as_markdown(bands: List[FrequencyBand]) -> str:
    """A band a line."""
    columns = ["occurrences in train", "types", "tokens", "mean over types, %", "of the loss, %"]
    return as_table(
        columns,
        [
            (title(band), f"{band.num_types:,}", f"{band.num_tokens:,}", f"{band.mean_of_types:.2f}")
            + (f"{band.of_the_loss:.2f}",)
            for band in bands
        ],
    )


def draw(bands: List[FrequencyBand], *, names: Sequence[str]) -> "Figure":
    """Both statistics, bars by band; ``names`` are those of the baseline and of the other model."""
    picture = new_picture()
    axes = picture.subplots()
    places = range(len(bands))
    for shift, values, label in (
        (-0.2, [band.mean_of_types for band in bands], "mean over types, (B - O) / O"),
        (0.2, [band.of_the_loss for band in bands], "of the band's loss, (B - O) / B"),
    ):
        axes.bar([place + shift for place in places], values, width=0.4, label=label)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(places, [title(band) for band in bands], rotation=30, ha="right")
    axes.set(xlabel="occurrences in the training text", ylabel=f"gain of {names[1]} over {names[0]}, %")
    axes.legend()
    return picture


if __name__ == "__main__":
    CompareByFrequency().main()
