"""Plugins of fairseq: recurrent models, and output layers that work in any model.

Importing the package registers everything with fairseq; fairseq's commands import it by ``--user-dir fairseq_plugins``.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Optional, Sequence, Union

if TYPE_CHECKING:
    from fairseq_plugins.evaluation.language_model import TrainedLanguageModel
    from fairseq_plugins.evaluation.raw_text import TextKind
    from fairseq_plugins.evaluation.translation import Translator

__version__ = "0.1.0"
"""Checkpoints keep it. setup.py reads it."""


def _is_console_script() -> bool:
    """Whether ``fairseq-plugins`` imports the package. It registers when it knows its command: lists come at once."""
    is_module = sys.argv[:1] == ["-m"] and "fairseq_plugins" in sys.orig_argv  # python -m has not begun to run it
    return is_module or Path(sys.argv[0] if sys.argv else "").name == "fairseq-plugins"


def load(
    path: Union[str, Path, Sequence[Union[str, Path]]],
    data: Optional[Union[str, Path]] = None,
    *,
    device: str = "cpu",
    text: "TextKind" = "raw",
    precision: str = "float32",
    max_tokens: int = 4096,
) -> "Union[TrainedLanguageModel, Translator]":
    """Load a trained model that reads and writes raw text. Import parts of your own that it needs first.

    Args:
        path: a checkpoint; a folder with ``checkpoint_best.pt`` or else ``checkpoint_last.pt``, such as an export; or
            several of them for an ensemble.
        data: the folder that data-prep wrote; by default the folder of the training, or the export itself.
        device: such as "cuda".
        text: "raw", or "tokenised" if lines of a language model are words and subwords between blanks.
        precision: of the output layer's scores, "float32", "bfloat16" or "auto" (``--output-precision``).
        max_tokens: of a batch of lines that a language model scores.

    Returns:
        a language model with ``score``, ``perplexity``, ``sample`` and ``continuations``, or an encoder-decoder with
        ``translate`` and ``attention``.

    Raises:
        UserError: if a file is missing, unreadable or refused, if the vocabulary differs from the data's, or if
            the folder lacks files that raw text needs; the message names it.
    """
    from fairseq_plugins.evaluation.api import load_trained  # not above, which would slow down every import

    return load_trained(path, data, device=device, text=text, precision=precision, max_tokens=max_tokens)


if not _is_console_script():  # at the end, because installed parts may import all of the above
    from fairseq_plugins import registration  # noqa: F401
