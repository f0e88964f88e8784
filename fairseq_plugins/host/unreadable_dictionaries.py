"""A dictionary that cannot be read, or is not as ``digests.json`` has it, is named, with the row and the remedy.

Mends: the host tells of a row of another form, or of a word that stands twice, without the file, and of text that is
not UTF-8 without the row.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_names_no_row`` passes.
"""

from pathlib import Path
from typing import Any, Callable

from fairseq.data import Dictionary

from fairseq_plugins.data.file_digest import check_digest
from fairseq_plugins.host.wrapping import wrap

REMEDY = "take the file of the training, or run fairseq-preprocess again"


def mend() -> None:
    """Wrap the host's ``Dictionary.add_from_file``."""
    wrap(Dictionary, "add_from_file", _name_row)


def _name_row(add_from_file: Callable[..., None], dictionary: Dictionary, file: Any) -> None:
    """Read a dictionary; ``file`` is a path or, where the host has opened it, the file.

    Raises:
        ValueError: if it is missing, cannot be read, is damaged or is not as ``digests.json`` has it.
    """
    num_before = len(dictionary)
    try:
        add_from_file(dictionary, file)
    except OSError as error:
        if not isinstance(file, str):
            raise
        raise ValueError(f"{file}: {error.strerror}: {REMEDY}") from error
    except Exception as error:
        row = len(dictionary) - num_before + 1  # every row is a word
        if not isinstance(file, str):
            raise
        elif isinstance(error.__context__, UnicodeDecodeError):
            row, wrong = _first_undecodable(file), "not UTF-8"
        elif isinstance(error, RuntimeError):
            wrong = "its word stands there twice"
        elif isinstance(error, ValueError):
            wrong = "not a word and its count"
        else:
            raise
        raise ValueError(f"{file}, line {row}: {wrong}: {REMEDY}") from error
    if isinstance(file, str):
        check_digest(Path(file))


def _first_undecodable(path: str) -> int:
    """The number of the first line that is not UTF-8, from 1."""
    with open(path, "rb") as file:
        return next(number for number, line in enumerate(file, start=1) if not _is_utf8(line))


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
