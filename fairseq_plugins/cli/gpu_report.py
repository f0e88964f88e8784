"""Checks and measurements of a GPU: ``python -m fairseq_plugins.cli.gpu_report --help``."""

import argparse
import math
from pathlib import Path
from typing import Dict, List, Tuple, Type

import torch

from fairseq_plugins.benchmarks.device.check import Check
from fairseq_plugins.benchmarks.device.record import Step, run_step
from fairseq_plugins.benchmarks.device.setting import Setting
from fairseq_plugins.benchmarks.device.speed import Models, Output, TimedTraining, Translation
from fairseq_plugins.command_line import Command, add_cpu, add_out, choose_device
from fairseq_plugins.options import UserError, check_data_folder, check_positive, output_folder

STEPS: Dict[str, Type[Step]] = {step.name: step for step in (Check, Output, Models, Translation)}
TRAIN = "train"
MAX_DATA = {"check": 2, "output": 0, "models": 2, "translation": 1}
"""Number of corpora that a step reads at most."""
MINUTES = 8
"""Default time limit of a call."""
FAILED, UNFINISHED = 1, 3
"""Exit statuses: an item failed, or items are left for the next call."""


class GpuReport(Command):
    """Checks and measures a GPU."""

    name = "gpu_report"
    summary = "Check this machine's GPU against its CPU, and measure speed and memory on it, in steps that resume."
    description = """\
Steps:

  check                values and gradients of every op, recurrent cell, attention, output layer and gate equal the
                       CPU's, in float64 and float32; cells run by cuDNN without warnings; --fp16, --bf16 and --amp
                       train; two processes equal one where there are two GPUs. DATA: text, pairs, or both
  output               loss of the output layer in float32, TF32, bfloat16 chunks, and of bfloat16 and float16 inputs,
                       against its matrix products, in 1 to 32 chunks
  models               training of all presets for Penn Treebank and WikiText-2, of lstm_lm_awd and of fairseq's
                       lstm_lm. DATA: those two corpora in this order, by default random words
  translation          training and decoding of encoder-decoders and of fairseq's lstm. DATA: pairs
  train ARCH MINUTES   training of a preset that stops after so many minutes with a checkpoint in --save-dir, and goes
                       on from there when it is called again. DATA: the preset's corpus

DATA are folders that data-prep wrote; without any, steps take the short sentences that ship with the package. Nothing
is downloaded. Every step writes DIR/STEP.md and .json, after each item that takes time. What the file holds is not
measured again, unless code, machine, device, DATA or flags have changed; items that failed are tried again. A call
begins no item after --minutes; the exit status is then 3, and the same line goes on. It is 1 where an item failed.

Flags of fairseq-train follow a --, such as -- --bf16; the files have their names appended. With --cpu everything
is of toy size, to try the command out."""
    forwards_to = "fairseq-train"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = "%(prog)s STEP --out DIR [options] [DATA ...] [-- fairseq-train flags]"
        parser.add_argument("step", metavar="STEP", choices=[*STEPS, TRAIN], help=", ".join([*STEPS, TRAIN]))
        parser.add_argument("words", nargs="*", metavar="DATA", help="folders that data-prep wrote")
        add_out(parser, help="folder of the report")
        add_cpu(parser)
        parser.add_argument("--again", action="store_true", help="measure again what the folder holds")
        parser.add_argument(
            "--only",
            nargs="+",
            action="extend",
            default=[],
            metavar="TEXT",
            help="only items whose name contains one of these",
        )
        parser.add_argument(
            "--minutes", type=float, metavar="N", help=f"of a call; then no item is begun (default: {MINUTES})"
        )
        parser.add_argument(
            "--save-dir",
            type=output_folder,
            metavar="DIR",
            help="train: folder for checkpoints and train.log "
            "(default: checkpoints/ARCH in the folder of the report, names of further flags appended)",
        )

    def _read_own(self, parser: argparse.ArgumentParser, own: List[str]) -> Tuple[argparse.Namespace, List[str]]:
        return parser.parse_known_intermixed_args(own)  # DATA may follow flags

    def run(self, args: argparse.Namespace) -> None:
        minutes = MINUTES if args.minutes is None else check_positive(args.minutes, flag="--minutes")
        if "--cpu" in args.forwarded:
            raise UserError("--cpu: give it before the --")
        if not args.cpu and not torch.cuda.is_available():
            raise UserError("torch finds no GPU here: give --cpu to try the command out at toy size")
        if args.step == TRAIN:
            self._train(args)
            return
        if args.save_dir is not None:
            raise UserError(f"--save-dir: {args.step} keeps no checkpoints")
        if len(args.words) > MAX_DATA[args.step]:
            raise UserError(f"{args.words[-1]}: {args.step} takes {MAX_DATA[args.step]} DATA at most")
        step = STEPS[args.step](_setting(args, args.words))
        kept = "measured again" if args.again else "used"
        result = run_step(step, command=args.command_line, minutes=minutes, kept=kept, only=args.only)
        print(result.text, end="")
        if result.num_left:
            line = "the same line again, without --again" if args.again else "the same line again"
            print(f"{result.num_left} items are left: type {line}")
            raise SystemExit(UNFINISHED)
        if result.num_failed:
            print(f"{result.num_failed} items FAILED")
            raise SystemExit(FAILED)

    def _train(self, args: argparse.Namespace) -> None:
        if args.again or args.only or args.minutes is not None:
            raise UserError(
                "--again, --only and --minutes are not for train, which goes on from its last checkpoint for MINUTES"
            )
        if not 2 <= len(args.words) <= 3:
            raise UserError("give train ARCH MINUTES, and one DATA or none")
        arch, minutes, *data = args.words
        try:
            limit = float(minutes)
        except ValueError:
            limit = math.nan
        check_positive(limit, flag=f'MINUTES "{minutes}": read as')
        training = TimedTraining(_setting(args, data), arch, save_dir=args.save_dir)
        print(training.run(minutes=limit, command=args.command_line), end="")


def _setting(args: argparse.Namespace, data: List[str]) -> Setting:
    folders = [Path(text) for text in data]
    for folder in folders:
        check_data_folder(folder)
    device = "cuda" if choose_device(args) == "cuda" else "cpu"
    return Setting(device=device, folder=args.out, data=folders, flags=args.forwarded)


if __name__ == "__main__":
    GpuReport().main()
