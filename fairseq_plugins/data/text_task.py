"""Tasks as models see them."""

from typing import Any, Protocol

from fairseq.data import Dictionary


class TextTask(Protocol):
    """A task of the host that reads text.

    Attributes:
        cfg: flags of the task, or None where they are in ``args``.
        args: flags of the command, of older tasks.
    """

    cfg: Any
    args: Any

    @property
    def source_dictionary(self) -> Dictionary:
        """Words that the model reads."""

    @property
    def target_dictionary(self) -> Dictionary:
        """Words that the model predicts."""
