"""What a user gave wrongly ends the host's commands with one line.

Mends: the host lets Python print a traceback above the line. Errors of other kinds, and those that no ``raise`` of
this package made, keep it; so do all errors in processes that the host starts, one for each GPU.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as the host's ``call_main`` lets ``ValueError`` pass.
"""

import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, Optional, Type

from fairseq import tasks
from fairseq.distributed import utils as distributed_utils
from omegaconf import DictConfig

from fairseq_plugins.flags.refusal import is_refusal
from fairseq_plugins.host.wrapping import wrap


def mend() -> None:
    """Wrap ``call_main``, through which the host's commands run, and ``setup_task``, with which its generate begins."""
    wrap(distributed_utils, "call_main", _show_lines)
    wrap(tasks, "setup_task", _show_lines_of_generate)


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
    """Print a ``ValueError`` of this package as one line, and other errors as Python does."""
    if is_refusal(error):
        print("".join(traceback.format_exception_only(kind, error)), end="", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, frames)
