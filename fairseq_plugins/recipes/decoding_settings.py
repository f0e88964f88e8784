"""How a recipe's translators are decoded for its table."""

from dataclasses import dataclass
from typing import Sequence


@dataclass(frozen=True, kw_only=True)
class DecodingSettings:
    """What published figures were decoded with.

    Attributes:
        split: whose translations are scored.
        beam: hypotheses that are kept.
        flags: more of ``fairseq-generate``.
    """

    split: str = "test"
    beam: int = 5
    flags: Sequence[str] = ()

    def scoring_command(self, command: str) -> str:
        """A line that decodes and scores a checkpoint with them, by a command of this package."""
        split = [] if self.split == "test" else ["--split", self.split]
        beam = [] if self.beam == DecodingSettings.beam else ["--beam", str(self.beam)]
        more = ["--", *self.flags] if self.flags else []
        words = ["DATA", "--path", "CKPT", *split, *beam, "--out", "OUT", *more]
        return " ".join(["python", "-m", f"fairseq_plugins.cli.{command}", *words])
