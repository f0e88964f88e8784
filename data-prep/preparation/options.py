"""The options that every corpus has, and the values of options."""

import argparse
import os
from argparse import Namespace
from pathlib import Path

from .corpus import Corpus

LARGEST = 10**9  # number that an option takes


def parse_options(corpus: Corpus, arguments: list[str]) -> Namespace:
    """Options of the command line, with what EXPECTED_COUNTS says and what the corpus makes of them."""
    parser = argparse.ArgumentParser(
        prog="prepare.sh",
        description=f"Download, check and binarise {corpus.title}.",
        epilog="EXPECTED_COUNTS=skip in the environment turns off the checks that only the real corpus passes.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--from", dest="source", type=path, metavar="DIR", help="take the files from DIR; download nothing")
    add(
        "--mirror",
        action="append",
        metavar="URL",
        help="folder to download from, instead of the built-in mirrors; may be repeated",
    )
    add("--dest", type=path, metavar="DIR", help=f"where the result goes (default: data-bin/{corpus.result_pattern})")
    add("--work", type=path, metavar="DIR", help=f"downloads and text (default: downloads/{corpus.name})")
    add("--workers", type=positive, default=_num_cores(), metavar="N", help="processes (default: all cores)")
    text = "put text into the composed form of Unicode (default), or keep the form that it comes in"
    add("--nfc", action=argparse.BooleanOptionalAction, default=True, help=text)
    corpus.add_options(parser)
    options = parser.parse_args(arguments)
    expected = os.environ.get("EXPECTED_COUNTS", "check")
    if expected not in ("check", "skip"):
        parser.error(f"EXPECTED_COUNTS is check or skip, not {expected}")
    options.check = expected == "check"
    corpus.settle(options, parser.error)
    if options.source and options.mirror:
        parser.error("--mirror is a place to download from, and --from downloads nothing: give one of them")
    options.workers = min(options.workers, _num_cores())
    options.dest = options.dest or Path("data-bin") / options.result
    if options.dest.is_symlink() or not options.dest.name:  # it is replaced by renaming
        options.dest = Path(os.path.realpath(options.dest))
        if options.dest.is_symlink():
            parser.error(f"--dest {options.dest} is a symbolic link to itself: pass another --dest")
    options.work = options.work or Path("downloads") / corpus.name
    dest, work = (Path(os.path.realpath(folder)) for folder in (options.dest, options.work))
    if dest in (work, *work.parents):  # it is replaced as a whole
        parser.error(f"--dest {options.dest} is the folder of --work {options.work}, or holds it: pass another --dest")
    return options


def path(text: str) -> Path:
    """A path that is not empty."""
    if not text:
        raise argparse.ArgumentTypeError("a folder is expected, not ''")
    return Path(text)


def positive(text: str) -> int:
    """A number from 1 to LARGEST."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= LARGEST:
        raise argparse.ArgumentTypeError(f"a positive number to {LARGEST:,} is expected, not '{text}'")
    return int(text)


def natural(text: str) -> int:
    """A number from 0."""
    return 0 if text == "0" else positive(text)


def ratio(text: str) -> float:
    """0, or a number from 1."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if number != 0 and not 1 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"0 or a number from 1 is expected, not '{text}'")
    return number


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
