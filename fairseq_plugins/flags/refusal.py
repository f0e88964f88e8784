"""What a user gave wrongly, told from a fault of a program: by what made the error."""

import dis
from pathlib import Path

import fairseq

PACKAGE = Path(__file__).resolve().parents[1]
HOST = Path(fairseq.__file__).resolve().parent


def is_raised_in(error: BaseException, *folders: Path) -> bool:
    """Whether a ``raise`` or an ``assert`` of the programs in one of the folders made the error.

    One that Python made, such as of too few values to unpack, is a fault of the program.
    """
    frames = error.__traceback__
    if frames is None:
        return False
    while frames.tb_next is not None:
        frames = frames.tb_next
    code = frames.tb_frame.f_code
    is_raised = dis.opname[code.co_code[frames.tb_lasti]] == "RAISE_VARARGS"
    return is_raised and not set(folders).isdisjoint(Path(code.co_filename).resolve().parents)


def is_refusal(error: BaseException) -> bool:
    """Whether it is a ``ValueError`` that a ``raise`` of this package made, of something that a user gave wrongly."""
    return isinstance(error, ValueError) and is_raised_in(error, PACKAGE)
