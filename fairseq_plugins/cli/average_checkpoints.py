"""Mean of the weights of checkpoints: ``python -m fairseq_plugins.cli.average_checkpoints --help``."""

import argparse
import sys
from pathlib import Path

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.command_line import Command, add_checkpoints, add_output_file
from fairseq_plugins.evaluation.average import average_checkpoints
from fairseq_plugins.models.checkpoints import last_epoch_checkpoints
from fairseq_plugins.options import UserError, check_not_read, write_tensors


class AverageCheckpoints(Command):
    """Averages checkpoints."""

    name = "average_checkpoints"
    summary = "Average the weights of several checkpoints of one training (Vaswani et al. 2017)."
    description = """\
Every command takes the result as it takes the checkpoints themselves. It has the flags of the latest of them and no
state of the optimiser: to train it on, give it to fairseq-train --finetune-from-model.

With --last N the one --path is a --save-dir, and its last N epoch checkpoints, checkpoint3.pt and so on, are averaged.
Recipes write them under --keep-last-epochs N."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_checkpoints(parser, help="two or more checkpoints, or with --last one --save-dir", folders="kept")
        parser.add_argument(
            "--last", type=int, metavar="N", help="average the last N epoch checkpoints of a --save-dir"
        )
        add_output_file(parser, "--out", help="checkpoint to write", required=True)

    def run(self, args: argparse.Namespace) -> None:
        paths = [Path(path) for path in args.path]
        if args.last is not None:
            if args.last < 2:
                raise UserError(f"--last {args.last}: give at least 2")
            if len(paths) > 1:
                raise UserError(f"--last takes one --save-dir after --path; there are {len(paths)} paths")
            paths = last_epoch_checkpoints(paths[0], args.last)
        elif len(paths) == 1 and paths[0].is_dir():
            raise UserError(f"{paths[0]} is a folder: give --last N to average its last N epoch checkpoints")
        check_not_read(args.out, paths, flag="--out")
        mean = average_checkpoints(paths, show_progress=sys.stderr.isatty())
        write_tensors(args.out, mean)
        updates = ", ".join(f"{num_updates:,}" for _, num_updates in mean["averaged_checkpoints"])
        print(f"mean of {len(paths)} checkpoints, of updates {updates}, written to {args.out}")


if __name__ == "__main__":
    AverageCheckpoints().main()
