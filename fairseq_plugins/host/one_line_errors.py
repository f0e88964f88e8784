"""A user error ends fairseq's commands with one line and exit status 2.

Mends: fairseq lets Python print a traceback above the line, with status 1. With ``--num-workers 0`` and
``--data-buffer-size`` a background thread still makes batches while the interpreter ends, which then dies by SIGABRT,
status 134, whatever ended the command. Errors of other kinds, and those that no ``raise`` of this package made, keep
their traceback; so do all errors in processes that fairseq starts, one for each GPU.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as fairseq's ``call_main`` lets ``ValueError`` pass, and its ``BackgroundConsumer`` is a daemon thread
that nothing stops.
"""

import atexit
import queue
import sys
import threading
import time
import traceback
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, Iterable, Iterator, Optional, Type

from fairseq import tasks
from fairseq.data.iterators import BackgroundConsumer
from fairseq.distributed import utils as distributed_utils
from omegaconf import DictConfig

from fairseq_plugins.flags.refusal import is_refusal
from fairseq_plugins.host.wrapping import wrap

USER_ERROR = 2
"""Exit status of a command that was given something wrong, as argparse has it."""
LONGEST_BATCH = 60
"""Seconds that the end of a command waits for a thread to finish its batch; one that hangs is left behind."""

_ending = threading.Event()
_consumers: "weakref.WeakSet[BackgroundConsumer]" = weakref.WeakSet()


def mend() -> None:
    """Wrap ``call_main``, by which fairseq runs a command, and ``setup_task``, the first call of its generate.

    Threads that make batches are stopped before the interpreter ends.
    """
    wrap(distributed_utils, "call_main", _show_lines)
    wrap(tasks, "setup_task", _show_lines_of_generate)
    wrap(BackgroundConsumer, "run", _make_batches)
    atexit.register(_stop_threads)


def _show_lines(call_main: Callable[..., Any], cfg: DictConfig, *args: Any, **kwargs: Any) -> Any:
    _show_errors()
    return call_main(cfg, *args, **kwargs)


def _show_lines_of_generate(setup_task: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    program = Path(sys.argv[0])
    if program.name == "fairseq-generate" or (program.parent.name, program.name) == ("fairseq_cli", "generate.py"):
        _show_errors()
    return setup_task(*args, **kwargs)


def _show_errors() -> None:
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = show_error


def show_error(kind: Type[BaseException], error: BaseException, frames: Optional[TracebackType]) -> None:
    """Print a ``ValueError`` of this package as one line, and other errors as Python does.

    Raises:
        SystemExit: after the line; Python would end with status 1.
    """
    if not is_refusal(error):
        sys.__excepthook__(kind, error, frames)
        return
    print(*"".join(traceback.format_exception_only(kind, error)).splitlines(), file=sys.stderr)
    raise SystemExit(USER_ERROR)


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
