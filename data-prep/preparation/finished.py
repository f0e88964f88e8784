"""Whether a result is there already, and whether it is the one that is wanted."""

import itertools
import re
from argparse import Namespace

from .errors import DataError, note
from .lines import read_lines

RECORD = "prepared.txt"
OF_THE_HOST = re.compile(r"dict\.(.+\.)?txt|.+\.(bin|idx)|preprocess\.log")


def binary_name(split: str, side: str, options: Namespace) -> str:
    """Name of a split's binaries, without ``.bin`` and ``.idx``."""
    return split if len(options.kept_sides) == 1 else f"{split}.{'-'.join(options.kept_sides)}.{side}"


def dictionary_name(side: str, options: Namespace) -> str:
    """Name of a side's dictionary."""
    return "dict.txt" if len(options.kept_sides) == 1 else f"dict.{side}.txt"


def is_finished(recipe: str, options: Namespace) -> bool:
    """Whether the destination needs no work; DataError if it holds something else than what is wanted."""
    dest = options.dest
    if (dest / RECORD).is_file():
        try:
            found = next(read_lines(dest / RECORD), "")
        except UnicodeDecodeError:
            found = ""
        if not found:
            raise DataError(f"{dest / RECORD} does not say what {dest} holds: delete it or pass another --dest")
        if recipe not in (found, f"{found}, not checked"):
            raise DataError(f"{dest} already holds '{found}', not '{recipe}': delete it or pass another --dest")
        note(f"{dest} is already complete; delete it to prepare it again")
        return True
    if not dest.exists():
        return False
    if not dest.is_dir():
        raise DataError(f"{dest} is not a directory: pass another --dest")
    found = {file.name for file in dest.iterdir()}
    if any(not OF_THE_HOST.fullmatch(name) for name in found):
        raise DataError(f"{dest} holds files that this script did not write: pass another --dest")
    wanted = {dictionary_name(side, options) for side in options.kept_sides}
    for split, side in itertools.product(["train", "valid", "test"], options.kept_sides):
        wanted |= {f"{binary_name(split, side, options)}.{end}" for end in ("bin", "idx")}
    if wanted <= found:
        note(f"{dest} already holds a binarised corpus that this script did not write; left alone, not checked")
        return True
    if any(name.endswith((".bin", ".idx")) for name in found):
        # this script's own binaries come all at once
        raise DataError(
            f"{dest} holds other binaries than {recipe.partition(',')[0]}: delete it or pass another --dest"
        )
    if found:
        note(f"{dest} is incomplete and will be made again")
    return False
