"""How every benchmark is started, and what its report is called."""

import logging
import re
import sys
from typing import Optional, Sequence

from fairseq_plugins.console import Command, OneLineParser, ended_in_a_line

MAX_NAME_LENGTH = 200
"""File systems allow 255 bytes, and a file has a longer name while it is written."""


def report_name(*parts: str) -> str:
    """Name of a report's files: parts joined by underscores, with dashes for unusual characters."""
    return re.sub(r"[^\w.-]+", "-", "_".join(parts), flags=re.ASCII)[:MAX_NAME_LENGTH]


def main(benchmark: Command, typed: Optional[Sequence[str]] = None) -> None:
    """Run a benchmark with the arguments of the command line, or with those given. User errors end it with one line."""
    logging.getLogger().setLevel(logging.WARNING)  # hides fairseq's messages about imports and loading
    program = f"python {sys.argv[0]}"
    with ended_in_a_line(OneLineParser(prog=program)):
        benchmark.main(sys.argv[1:] if typed is None else typed, program=program)
