"""Systems: the rows of a recipe."""

from dataclasses import dataclass, field
from typing import Literal, Mapping, Optional

from fairseq_plugins.models.presets import Value

Result = Literal["best", "last"]
"""The checkpoint that a training is for: ``checkpoint_best.pt``, or ``checkpoint_last.pt``."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """Trained models of another system of the recipe, which a training begins with.

    Attributes:
        system: its name.
        flag: of ``fairseq-train``, that takes their checkpoints, joined by colons.
        num: models, trained with different seeds.
    """

    system: str
    flag: Literal["base-model", "finetune-from-model"]
    num: int = 1


@dataclass(frozen=True)
class System:
    """A row of a recipe's table.

    Attributes:
        flags: of ``fairseq-train``, without the leading dashes; one that is True has no value. ``arch`` is among them.
        label: how tables name the system; where empty, they take its name in the recipe.
        published: figures of the paper by column, such as ``{"fine-tuned": "58.2 / 55.7"}``.
        base: what it is trained on; a gate without stands on any number of models that the user names.
        result: the checkpoint that tables are of, and that systems begin with whose base this is.
    """

    flags: Mapping[str, Value]
    label: str = ""
    published: Mapping[str, str] = field(default_factory=dict)
    base: Optional[Base] = None
    result: Result = "best"
