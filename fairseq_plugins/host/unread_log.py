"""A training whose log nobody reads any more ends.

Works around: ``logging`` passes over lines that it cannot write. Where ``fairseq-train ... | tee train.log`` has lost
``tee``, or the command that kept the log was killed, fairseq trains on for days without a log.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_fairseq_alone_trains_on_without_a_log`` passes.
"""

import logging
import os
import sys
from typing import Any, Callable

from fairseq import checkpoint_utils

from fairseq_plugins.flags.command import UNREAD
from fairseq_plugins.host.wrapping import wrap


def mend() -> None:
    """Wrap fairseq's ``load_checkpoint``, which every process of a training, and of no other command, calls."""
    wrap(checkpoint_utils, "load_checkpoint", _heed_and_load)


def _heed_and_load(load_checkpoint: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    wrap(logging.StreamHandler, "handleError", _end_unread)
    return load_checkpoint(*args, **kwargs)


def _end_unread(
    handle_error: Callable[..., None], handler: "logging.StreamHandler[Any]", record: logging.LogRecord
) -> None:
    if isinstance(sys.exception(), BrokenPipeError) and handler.stream in (sys.stdout, sys.stderr):
        os._exit(UNREAD)  # from any thread; checkpoints are written aside and renamed
    handle_error(handler, record)
