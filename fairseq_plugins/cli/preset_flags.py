"""Training flags of an architecture's preset: ``python -m fairseq_plugins.cli.preset_flags --help``."""

import argparse

from fairseq_plugins.command_line import Command
from fairseq_plugins.models.presets import ARCHITECTURES, command_line
from fairseq_plugins.options import UserError
from fairseq_plugins.recipes.fine_tuning import fine_tuning_flags


class PresetFlags(Command):
    """Prints the training flags of a preset."""

    name = "preset_flags"
    summary = "Print the fairseq-train flags of an architecture's preset, one a line."
    description = "The architecture itself supplies the model's hyper-parameters."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        with_flags = sorted(name for name, preset in ARCHITECTURES.items() if preset.training)
        parser.add_argument(
            "arch", choices=with_flags, metavar="ARCH", help=f"one that has a training: {', '.join(with_flags)}"
        )
        parser.add_argument(
            "--fine-tune",
            action="store_true",
            help="flags for training on from the best model, averaged from the start",
        )

    def run(self, args: argparse.Namespace) -> None:
        flags = {"arch": args.arch, **ARCHITECTURES[args.arch].training}
        if args.fine_tune:
            try:
                flags = fine_tuning_flags(args.arch)
            except ValueError as error:
                raise UserError(f"{error}: leave out --fine-tune") from error
        print("\n".join(command_line(flags)))


if __name__ == "__main__":
    PresetFlags().main()
