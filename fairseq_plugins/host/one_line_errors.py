"""A user error ends fairseq's commands with one line and exit status 2.

Mends: fairseq lets Python print a traceback above the line, with status 1. With ``--num-workers 0`` and
``--data-buffer-size`` a background thread still makes batches while the interpreter ends, which then dies by SIGABRT,
status 134, whatever ended the command. What fairseq itself refuses with a text, such as flags that do not go together,
and files that cannot be read or written are told in a line as well. Other errors keep their traceback; so do all errors
in processes that fairseq starts, one for each GPU. Where nobody reads the output any more, as after ``| head -1``, a
command ends quietly.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as fairseq's ``call_main`` lets ``ValueError`` pass, and its ``BackgroundConsumer`` is a daemon thread
that nothing stops.
"""

import atexit
import os
import queue
import re
import sys
import threading
import time
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, Iterable, Iterator, Optional, Type

import fairseq_cli
import torch
from fairseq import options
from fairseq.data.iterators import BackgroundConsumer
from fairseq.distributed import utils as distributed_utils
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig

from fairseq_plugins.flags.command import UNREAD
from fairseq_plugins.flags.refusal import HOST, is_raised_in, is_refusal
from fairseq_plugins.flags.values import flag_of
from fairseq_plugins.host.wrapping import wrap

PROGRAMS = Path(fairseq_cli.__file__).resolve().parent
REFUSALS_OF_FAIRSEQ = (AssertionError, ImportError, NotImplementedError, OSError, ValueError)
"""What fairseq raises, with a text, for flags, files and libraries that are not as they should be."""
STANDARD_OUTPUT = 1
USER_ERROR = 2
"""Exit status of a command that was given something wrong, as argparse has it."""
LONGEST_BATCH = 60
"""Seconds that the end of a command waits for a thread to finish its batch; one that hangs is left behind."""

_ending = threading.Event()
_consumers: "weakref.WeakSet[BackgroundConsumer]" = weakref.WeakSet()


def mend() -> None:
    """Wrap ``parse_args_and_arch``, with which fairseq's programs read their flags, and ``call_main``, which runs them.

    Threads that make batches are stopped before the interpreter ends.
    """
    wrap(distributed_utils, "call_main", _show_lines)
    wrap(options, "parse_args_and_arch", _show_lines_of_programs)
    wrap(BackgroundConsumer, "run", _make_batches)
    atexit.register(_stop_threads)


def _show_lines(call_main: Callable[..., Any], cfg: DictConfig, *args: Any, **kwargs: Any) -> Any:
    _show_errors()
    return call_main(cfg, *args, **kwargs)


def _show_lines_of_programs(parse_args_and_arch: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    program = Path(sys.argv[0])
    if program.name.startswith("fairseq-") or program.parent.name == "fairseq_cli":
        _show_errors()
    return parse_args_and_arch(*args, **kwargs)


def _show_errors() -> None:
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = show_error


def show_error(kind: Type[BaseException], error: BaseException, frames: Optional[TracebackType]) -> None:
    """Print a user's error as one line, and other errors as Python does.

    Raises:
        SystemExit: after the line; Python would end with status 1.
    """
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), STANDARD_OUTPUT)  # what is left would fail again
        raise SystemExit(UNREAD)
    told = _told(error)
    if told is None:
        sys.__excepthook__(kind, error, frames)
        return
    # Among several processes torch's hook calls this one with a buffer as sys.stderr, which an exit would lose.
    stream = sys.__stderr__ if torch.distributed.is_initialized() else sys.stderr
    print("ValueError:", *told.splitlines(), file=stream, flush=True)
    raise SystemExit(USER_ERROR)


def _told(error: BaseException) -> Optional[str]:
    """What a user's error says; None of a fault."""
    if is_refusal(error):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, ConfigCompositionException):  # hydra's, of a flag that must be given
        flag = re.search(r"override [\w.]*?(\w+)=null$", str(error))
        return flag and f"{flag_of(flag.group(1))} is missing: give it"
    is_told = isinstance(error, REFUSALS_OF_FAIRSEQ) and str(error)
    return str(error) if is_told and is_raised_in(error, HOST, PROGRAMS) else None


def _make_batches(run: Callable[..., None], consumer: Any) -> None:
    _consumers.add(consumer)
    consumer._source = _until_the_end(consumer._source)
    run(consumer)


def _until_the_end(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        if _ending.is_set():
            return
        yield batch


def _stop_threads() -> None:
    """Let the threads finish the batch that they are at, and make no other."""
    _ending.set()
    deadline = time.monotonic() + LONGEST_BATCH
    for consumer in list(_consumers):
        while consumer.is_alive() and time.monotonic() < deadline:
            _make_room(consumer)
            consumer.join(0.01)


def _make_room(consumer: Any) -> None:
    """A thread waits where its queue is full."""
    try:
        while True:
            consumer._queue.get_nowait()
    except queue.Empty:
        pass
