"""A training that is refused leaves no ``crash.pt``.

Mends: the host saves the whole training beside its checkpoints on every error of an update, also where the error says
that a flag does not fit the model.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_saves_a_refused_training`` passes.
"""

import logging
import sys
from typing import Any, Callable, Optional

from fairseq.trainer import Trainer

from fairseq_plugins.flags.refusal import is_refusal
from fairseq_plugins.host.wrapping import wrap

logger = logging.getLogger(__name__)


def mend() -> None:
    """Wrap ``save_checkpoint`` of the host's ``Trainer``."""
    wrap(Trainer, "save_checkpoint", _save_unless_refused)


def _save_unless_refused(
    save_checkpoint: Callable[..., Optional[str]], trainer: Trainer, *args: Any, **kwargs: Any
) -> Optional[str]:
    error = sys.exception()
    if error is not None and is_refusal(error):
        return None
    try:
        return save_checkpoint(trainer, *args, **kwargs)
    except ValueError as refused:
        if error is None or not is_refusal(refused):
            raise
        logger.warning(f"no crash.pt is saved: {refused}")  # and the error itself is told
        return None
