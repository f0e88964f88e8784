"""Two language models compared by word frequency: ``python -m fairseq_plugins.cli.compare_by_frequency --help``."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import List

import torch

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.cli import (
    add_common_options,
    add_plot_option,
    check_plot,
    choose_device,
    one_line_errors,
    quiet_host_logging,
)
from fairseq_plugins.data.corpus import load_token_stream
from fairseq_plugins.evaluation.checkpoints import load_language_models
from fairseq_plugins.evaluation.frequency_bands import FrequencyBand, compare_bands, losses_by_type


def get_parser() -> argparse.ArgumentParser:
    """The command's flags."""
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_plugins.cli.compare_by_frequency",
        description="How much better the second model predicts words of each band of training frequency, in per cent: "
        "the mean over word types of (B - O) / O, as in figure 3 of Pappas & Henderson 2019, with the summed losses B "
        "of the first and O of the second model; and (B - O) / B of the whole band's loss. The end mark is left out.",
    )
    parser.add_argument("baseline", help="checkpoint of the first model")
    parser.add_argument("other", help="checkpoint of the second model")
    parser.add_argument("data", help="directory that fairseq-preprocess --only-source wrote")
    parser.add_argument("--split", default="test", help="split to score (default: %(default)s)")
    add_plot_option(parser, help="draw both statistics, such as bands.png")
    add_common_options(parser)
    return parser


def main() -> None:
    """Run the command; a user's mistake ends with one line and exit status 2."""
    quiet_host_logging()
    parser = get_parser()
    args = parser.parse_args()
    device = choose_device(args)
    with one_line_errors(parser):
        check_plot(args.plot)
        models, dictionary = load_language_models([args.baseline, args.other], args.data)
        tokens = load_token_stream(args.data, args.split, dictionary)
        train_tokens = load_token_stream(args.data, "train", dictionary)
        losses = [
            losses_by_type(
                [model.to(device)],
                tokens,
                vocab_size=len(dictionary),
                device=device,
                show_progress=sys.stderr.isatty(),
            )
            for model in models
        ]
    bands = compare_bands(
        *losses,
        train_counts=train_tokens.bincount(minlength=len(dictionary)),
        counts=tokens[1:].bincount(minlength=len(dictionary)),
        excluded=[dictionary.eos()],
    )
    print(json.dumps([asdict(band) for band in bands]) if args.json else as_markdown(bands))
    if args.plot:
        plot(bands, args.plot)


def title(band: FrequencyBand) -> str:
    """The band's bounds."""
    return f"{band.lowest:,} and more" if band.below is None else f"{band.lowest:,} to {band.below - 1:,}"


def as_markdown(bands: List[FrequencyBand]) -> str:
    """A band a line."""
    lines = [
        "| occurrences in train | types | tokens | mean over types, % | of the loss, % |",
        "|---|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {title(band)} | {band.num_types:,} | {band.num_tokens:,} | {band.mean_of_types:.2f} "
        f"| {band.of_the_loss:.2f} |"
        for band in bands
    ]
    return "\n".join(lines)


def plot(bands: List[FrequencyBand], path: Path) -> None:
    """Both statistics, bars by band."""
    # imported here, when the host's debug logging is off
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    places = torch.arange(len(bands))
    axes.bar(places - 0.2, [band.mean_of_types for band in bands], width=0.4, label="mean over types, (B - O) / O")
    axes.bar(places + 0.2, [band.of_the_loss for band in bands], width=0.4, label="of the band's loss, (B - O) / B")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(places, [title(band) for band in bands], rotation=30, ha="right")
    axes.set(xlabel="occurrences in the training text", ylabel="gain of the second model, %")
    axes.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
