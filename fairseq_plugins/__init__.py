"""Plugins of fairseq: recurrent models, and output layers that work in any model.

Importing the package registers everything with fairseq; fairseq's commands import it by ``--user-dir fairseq_plugins``.
"""

import logging
from typing import TYPE_CHECKING, Optional, Sequence, Union

if TYPE_CHECKING:
    from pathlib import Path

    from fairseq_plugins.evaluation.api import TrainedLanguageModel, TrainedTranslator
    from fairseq_plugins.evaluation.raw_text import TextKind

__version__ = "0.1.0"
"""Checkpoints keep it. setup.py reads it."""

_ROOT = logging.getLogger()
_ROOT_LEVEL, _ROOT_HANDLERS = _ROOT.level, [*_ROOT.handlers]  # one of fairseq's models sets DEBUG on import
logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)  # asks for tensorboardX on import

from fairseq_plugins.fairseq_patches import apply_patches  # noqa: E402

apply_patches()

from fairseq_plugins.criterions import noise_contrastive, regularized_cross_entropy  # noqa: E402, F401
from fairseq_plugins.metrics import rouge  # noqa: E402, F401
from fairseq_plugins.models import gated_lm, recurrent_encdec, recurrent_lm, transformer  # noqa: E402, F401
from fairseq_plugins.optim import adaptive, nt_asgd  # noqa: E402, F401
from fairseq_plugins.tasks import scored_translation, stateful_lm  # noqa: E402, F401

_ROOT.setLevel(_ROOT_LEVEL)
_ROOT.handlers[:] = _ROOT_HANDLERS


def load(
    path: "Union[str, Path, Sequence[Union[str, Path]]]",
    data: "Optional[Union[str, Path]]" = None,
    *,
    device: str = "cpu",
    text: "TextKind" = "raw",
    precision: str = "float32",
    max_tokens: int = 4096,
) -> "Union[TrainedLanguageModel, TrainedTranslator]":
    """Load a trained model that reads and writes raw text.

    Args:
        path: a checkpoint; a folder with ``checkpoint_best.pt`` or else ``checkpoint_last.pt``; or several of them for
            an ensemble.
        data: the folder that data-prep wrote; by default that of the training.
        device: such as "cuda".
        text: "raw", or "tokenised" if lines of a language model are words and subwords between blanks.
        precision: of the output layer's scores, "float32", "bfloat16" or "auto" (``--output-precision``).
        max_tokens: of a batch of lines that a language model scores.

    Returns:
        a language model with ``score``, ``perplexity``, ``sample`` and ``continuations``, or an encoder-decoder with
        ``translate`` and ``attention``.

    Raises:
        UserError: if a file is missing, unreadable or refused, if the vocabulary differs from that of the data, or if
            the folder lacks files that raw text needs; the message names it.
    """
    from fairseq_plugins.evaluation.api import load_trained  # not above, which would slow down every import

    return load_trained(path, data, device=device, text=text, precision=precision, max_tokens=max_tokens)
