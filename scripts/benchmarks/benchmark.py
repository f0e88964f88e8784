"""Shared by all benchmarks: starting, interleaved measurements, and reports."""

import argparse
import logging
import re
import sys
import time
from typing import Callable, Dict, List, Mapping, Optional, Sequence

import torch

from fairseq_plugins.console import Command, OneLineParser, ended_in_a_line, progress
from fairseq_plugins.reports.report import Report

MAX_NAME_LENGTH = 200
"""File systems allow 255 bytes, and a file has a longer name while it is written."""


def by_turns(names: Sequence[str], *, num_rounds: int) -> List[str]:
    """The names in rounds that alternate in order, so that other load on the machine slows all of them alike."""
    return [name for turn in range(num_rounds) for name in (names if turn % 2 == 0 else names[::-1])]


def readings_by_turns(readings: Mapping[str, Callable[[], float]], *, num_rounds: int) -> Dict[str, List[float]]:
    """The values of each reading in every round, taken :func:`by_turns`. A first round warms up and is left out."""
    found: Dict[str, List[float]] = {name: [] for name in readings}
    for name in progress(by_turns(list(readings), num_rounds=1 + num_rounds), unit="reading"):
        found[name].append(readings[name]())
    return {name: values[1:] for name, values in found.items()}


def seconds_of(run: Callable[[], object], *, device: str) -> float:
    """Seconds of one call, until the device has finished."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    run()
    wait()
    return time.perf_counter() - start


def report_name(*parts: str) -> str:
    """Name of a report's files: parts joined by underscores, with dashes for unusual characters."""
    return re.sub(r"[^\w.-]+", "-", "_".join(filter(None, parts)), flags=re.ASCII)[:MAX_NAME_LENGTH]


def write_report(report: Report, args: argparse.Namespace, *parts: str) -> None:
    """Write a report to the directory ``--out``, to files with the :func:`report_name` of the parts, and print it."""
    print(report.write(args.out, command=args.command_line, name=report_name(*parts)), end="")


def main(benchmark: Command, typed: Optional[Sequence[str]] = None) -> None:
    """Run a benchmark with the arguments of the command line, or with those given. User errors end it with one line."""
    logging.getLogger().setLevel(logging.WARNING)  # hides fairseq's messages about imports and loading
    program = f"python {sys.argv[0]}"
    with ended_in_a_line(OneLineParser(prog=program)):
        benchmark.main(sys.argv[1:] if typed is None else typed, program=program)
