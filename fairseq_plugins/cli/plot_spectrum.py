"""Eigenvalues of recurrent matrices: ``python -m fairseq_plugins.cli.plot_spectrum --help``."""

import argparse
from typing import Mapping, Sequence

import torch

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.command_line import Command, add_data, add_json, add_named_models, add_plot
from fairseq_plugins.evaluation.analyses.layers import Spectrum, spectra
from fairseq_plugins.evaluation.checkpoints import check_layers, load_language_models
from fairseq_plugins.options import named_paths
from fairseq_plugins.reports.analyses import draw_spectra, spectrum_table
from fairseq_plugins.reports.tables import json_text, save_picture
from fairseq_plugins.reports.training_log import with_origin


class PlotSpectrum(Command):
    """Shows the eigenvalues of recurrent layers."""

    name = "plot_spectrum"
    summary = "Eigenvalues of the recurrent matrices of networks without gates."
    description = """\
Eigenvalues are drawn in the complex plane with the unit circle. The most negative real one is named, with the larger
share of entries of one sign in its eigenvectors (Pachitariu & Sahani 2013: it stabilises the network by inhibition of
all units when many fire)."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_data(parser)
        add_named_models(
            parser, help="models with --rnn-cell rectifier, smooth-rectifier, or diagonal with --transition full"
        )
        add_json(parser)
        add_plot(parser, help="draw them, such as spectrum.png")

    def run(self, args: argparse.Namespace) -> None:
        names, paths = zip(*named_paths(args.path, repeated_names="refused"))
        models, _ = load_language_models(paths, args.data)
        check_layers(models, paths)
        found = {name: spectra(model, path) for name, model, path in zip(names, models, paths)}
        print(as_json(found, args) if args.json else spectrum_table(found))
        if args.plot:
            save_picture(draw_spectra(found), args.plot)


def as_json(found: Mapping[str, Sequence[Spectrum]], args: argparse.Namespace) -> str:
    """All eigenvalues in JSON, as pairs of real and imaginary part."""
    models = [
        {
            "name": name,
            "layers": [
                {
                    "layer": one.layer,
                    "eigenvalues": torch.view_as_real(one.eigenvalues).tolist(),
                    "most_negative": one.most_negative,
                    "same_sign": one.same_sign,
                }
                for one in layers
            ],
        }
        for name, layers in found.items()
    ]
    return json_text(with_origin({"models": models}, command=args.command_line))


if __name__ == "__main__":
    PlotSpectrum().main()
