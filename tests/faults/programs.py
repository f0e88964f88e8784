"""Command lines that are run as ``python -m MODULE ARGUMENTS`` or ``python FILE.py ARGUMENTS``."""

import logging
import runpy
import sys
from typing import Callable, Sequence


def program(words: Sequence[str]) -> Callable[[], None]:
    """What a process does that was started with the words."""

    def work() -> None:
        logging.root.handlers.clear()  # of tests before, whose streams are closed
        sys.argv = list(words)
        if words[0].endswith(".py"):
            sys.path.insert(0, words[0].rpartition("/")[0])
            runpy.run_path(words[0], run_name="__main__")
        else:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)

    return work
