"""Commands: ``python -m fairseq_plugins.cli.<name> --help``; here is what they share."""

import argparse
import logging
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Optional

import torch


def quiet_host_logging() -> None:
    """Keep the notes that the host logs while importing and loading off a command's output."""
    logging.getLogger().setLevel(logging.WARNING)


@contextmanager
def one_line_errors(parser: argparse.ArgumentParser) -> Iterator[None]:
    """End the command with one line and exit status 2 where the user gave it something wrong."""
    try:
        yield
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--cpu`` and ``--json``."""
    parser.add_argument("--cpu", action="store_true", help="use the CPU even where there is a GPU")
    parser.add_argument("--json", action="store_true", help="print one JSON object for machines")


def check_parent(path: Path, *, flag: str) -> None:
    """Refuse a file that could not be written, before the work is done.

    Raises:
        ValueError: if its directory does not exist.
    """
    if not path.parent.is_dir():
        raise ValueError(f"{flag} {path}: {path.parent} is no directory: make it first")


def add_plot_option(parser: argparse.ArgumentParser, *, help: str) -> None:
    """Add ``--plot FILE``."""
    parser.add_argument("--plot", type=Path, metavar="FILE", help=help)


def check_plot(path: Optional[Path]) -> None:
    """Refuse a picture that could not be written, before the work is done.

    Raises:
        ValueError: if its directory does not exist or its suffix is no format.
    """
    # imported here, when the host's debug logging is off
    from matplotlib.figure import Figure

    if path is None:
        return
    check_parent(path, flag="--plot")
    formats = Figure().canvas.get_supported_filetypes()
    if path.suffix.lstrip(".") not in formats:
        raise ValueError(f"--plot {path}: give a name that ends in one of .{', .'.join(sorted(formats))}")


def choose_device(args: argparse.Namespace) -> str:
    """The GPU where there is one, unless ``--cpu`` was given."""
    return "cuda" if torch.cuda.is_available() and not args.cpu else "cpu"
