"""A training says what does not fit in a checkpoint that it starts from.

Mends: the host says that architectures must match and leaves the reason to the traceback; it gives a task no chance to
compare its data with a checkpoint's when it fine-tunes.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as the host's ``Trainer.load_checkpoint`` raises "please ensure that the architectures match".
"""

import textwrap
from typing import Any, Callable, Dict, Optional

from fairseq.trainer import Trainer

from fairseq_plugins.host.wrapping import wrap


def mend() -> None:
    """Wrap the host's ``Trainer.load_checkpoint``."""
    wrap(Trainer, "load_checkpoint", _check_checkpoint)


def _check_checkpoint(
    load_checkpoint: Callable[..., Optional[Dict[str, Any]]],
    trainer: Trainer,
    filename: str,
    *args: Any,
    **kwargs: Any,
) -> Optional[Dict[str, Any]]:
    """Name what does not fit.

    Raises:
        ValueError: if model or data are not the checkpoint's.
    """
    try:
        extra_state = load_checkpoint(trainer, filename, *args, **kwargs)
    except Exception as error:
        cause = error.__context__
        if isinstance(cause, ValueError):
            raise cause from None
        if isinstance(cause, RuntimeError) and "state_dict" in str(cause):
            difference = textwrap.shorten(
                str(cause).partition("\n")[2].partition("\n")[0], width=300, placeholder=" ..."
            )
            raise ValueError(
                f"{filename} does not fit this model: give the --arch and the flags that it was trained with, or "
                f"another --save-dir ({difference.rstrip('. ')})"
            ) from None
        raise
    saved = (extra_state or {}).get(type(trainer.task).__name__)
    if saved and hasattr(trainer.task, "check_vocabulary"):
        trainer.task.check_vocabulary(saved)
    return extra_state
