"""What the benchmarks of trainings share: their arguments and the checks of these."""

import argparse
from typing import Dict, Mapping

import torch

from fairseq_plugins.benchmarks.suite import Suite
from fairseq_plugins.flags.common_arguments import add_cpu, add_data, add_out, choose_device
from fairseq_plugins.flags.values import check_at_least_one
from fairseq_plugins.ops.native_bfloat16 import has_native_bfloat16

MIN_UPDATES = 10


def add_training_limits(
    parser: argparse.ArgumentParser, *, suites: Mapping[str, Suite], written_by: str, num_rounds: int
) -> None:
    """Declare DATA, ``--suite``, ``--updates``, ``--rounds``, ``--output-precision``, ``--cpu`` and ``--out``.

    Args:
        parser: of the command.
        suites: by the values of ``--suite``.
        written_by: command that writes the data.
        num_rounds: default of ``--rounds``.
    """
    add_data(parser, written_by=written_by)
    parser.add_argument("--suite", required=True, choices=list(suites), metavar="NAME", help=", ".join(suites))
    parser.add_argument(
        "--updates", type=int, default=40, metavar="N", help=f"updates a run, at least {MIN_UPDATES} (default: 40)"
    )
    parser.add_argument(
        "--rounds", type=int, default=num_rounds, metavar="N", help="runs of each system (default: %(default)s)"
    )
    parser.add_argument(
        "--output-precision",
        nargs="+",
        action="extend",
        choices=["float32", "bfloat16"],
        default=[],
        help="of the output layers, in training and decoding; of several, every system is measured in each by turns. "
        "fairseq's own models and the plain loss have none and stay as they are (default: the systems' own)",
    )
    add_cpu(parser)
    add_out(parser, help="directory for the report", default="results/benchmarks")


def check_training_limits(args: argparse.Namespace) -> None:
    """Refuse what no training could be timed with.

    Raises:
        ValueError: on too few updates or rounds, or on a precision that the device does not have.
    """
    if args.updates < MIN_UPDATES:
        raise ValueError(f"--updates {args.updates}: give at least {MIN_UPDATES}")
    check_at_least_one(args.rounds, flag="--rounds")
    device = choose_device(args)
    if "bfloat16" in args.output_precision and not has_native_bfloat16(torch.device(device)):
        raise ValueError(f"--output-precision bfloat16: this {device} has no matrix products in bfloat16: leave it out")


def measured_with(args: argparse.Namespace) -> Dict[str, int]:
    """What decides a measurement beside the systems, by name, for machines; of threads, those that trainings use."""
    return {"num_threads": torch.get_num_threads(), "updates": args.updates, "rounds": args.rounds}
