"""What went wrong, and what is going on, in one line for a person."""

import sys

PASS_OTHERS = "pass the right files with --from DIR"
CHECK_OR_PASS = f"delete it and run again, or {PASS_OTHERS}"
ACTIVATE = "activate the environment that fairseq is installed in"


class DataError(Exception):
    """The user's files, options or machine do not allow to go on; the text is the whole message."""


def note(message: str) -> None:
    """Tell on the standard error stream what is being done."""
    print(message, file=sys.stderr, flush=True)
