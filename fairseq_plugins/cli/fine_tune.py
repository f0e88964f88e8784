"""Fine-tuning of a language model in rounds: ``python -m fairseq_plugins.cli.fine_tune --help``."""

import argparse

from fairseq_plugins.command_line import TrainingCommand, add_cpu, add_data, checkpoint, choose_device
from fairseq_plugins.models.presets import ARCHITECTURES
from fairseq_plugins.options import check_at_least_one, output_folder
from fairseq_plugins.recipes.fine_tuning import FineTuning
from fairseq_plugins.recipes.training import check_not_stopped_by_the_clock


class FineTune(TrainingCommand):
    """Fine-tunes a language model."""

    name = "fine_tune"
    summary = "Fine-tune a language model by fairseq-train, again and again until validation stops improving."
    description = """\
"fin" in Takase et al. 2018: averaged SGD from the first update, a fresh average every round, each round from the best
model so far. DIR gets round1, round2, ... and the best model as checkpoint_fin.pt. Run again to resume.

Flags that this command does not know go to fairseq-train after those of the preset, and win; those that shaped the
model in its training, such as --hidden-sizes, must be given again."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = "%(prog)s DATA --arch ARCH --path CKPT --save-dir DIR [--rounds N] [--cpu] [fairseq-train flags]"
        with_training = sorted(name for name, preset in ARCHITECTURES.items() if preset.training)
        tuned = [name for name in with_training if ARCHITECTURES[name].fine_tuning is not None]
        add_data(parser, written_by="data-prep/<corpus>/prepare.sh")
        parser.add_argument(
            "--arch",
            required=True,
            choices=with_training,
            metavar="ARCH",
            help=f"architecture of the checkpoint, with a fine-tuning in its paper: {', '.join(tuned)}",
        )
        parser.add_argument(
            "--path",
            type=checkpoint,
            required=True,
            metavar="CKPT",
            help="model to start from, such as SAVE_DIR/checkpoint_best.pt",
        )
        parser.add_argument(
            "--save-dir", type=output_folder, required=True, metavar="DIR", help="directory for what is written"
        )
        parser.add_argument(
            "--rounds",
            type=int,
            metavar="N",
            help="at most so many; 1 is the papers' single fine-tuning (default: until a round brings no gain)",
        )
        add_cpu(parser)

    def run(self, args: argparse.Namespace) -> None:
        if args.rounds is not None:
            check_at_least_one(args.rounds, flag="--rounds")
        check_not_stopped_by_the_clock(args.more)
        fine_tuning = FineTuning(
            arch=args.arch,
            start=args.path,
            data=str(args.data),
            save_dir=args.save_dir,
            device=choose_device(args),
            more=[*(["--cpu"] if args.cpu else []), *args.more],
        )
        fine_tuning.run(max_rounds=args.rounds)


if __name__ == "__main__":
    FineTune().main()
