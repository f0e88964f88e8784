"""Recipes: tables of systems, with the flags of ``fairseq-train`` of each."""

from dataclasses import dataclass, field
from typing import Any, Dict, Literal, Mapping, Optional, Sequence, Tuple

from fairseq_plugins.files import BEST
from fairseq_plugins.models.presets import ARCHITECTURES, Value
from fairseq_plugins.options import UserError


@dataclass(frozen=True, kw_only=True)
class Base:
    """Trained models of another system of the recipe, from which a run starts; they differ in their seeds.

    ``flag`` of ``fairseq-train`` takes the ``num`` checkpoints, joined by colons.
    """

    system: str
    flag: Literal["base-model", "finetune-from-model"]
    num: int = 1


@dataclass(frozen=True)
class System:
    """A row of a recipe's table.

    Attributes:
        flags: flags of ``fairseq-train`` without leading dashes, including ``arch``. True stands for a flag without
            a value.
        label: name of the system in tables. Empty takes its name in the recipe.
        published: figures of the paper by column, such as ``{"fine-tuned": "58.2 / 55.7"}``.
        base: models from which it is trained. A gate without a base takes any number of models from the user.
        result: file name of the checkpoint that tables measure, and from which systems with this base start.
    """

    flags: Mapping[str, Value]
    label: str = ""
    published: Mapping[str, str] = field(default_factory=dict)
    base: Optional[Base] = None
    result: str = BEST


def table(rows: Mapping[str, Tuple[Any, ...]], *columns: str) -> Dict[str, System]:
    """Systems of rows (flags, figure, ...) with the paper's figures in ``columns``; empty ones are left out."""
    return {
        name: System(flags, published={column: figure for column, figure in zip(columns, figures) if figure})
        for name, (flags, *figures) in rows.items()
    }


def labelled(rows: Mapping[str, Tuple[str, Mapping[str, Value]]]) -> Dict[str, System]:
    """Systems by name, of rows (label, flags)."""
    return {name: System(flags, label=label) for name, (label, flags) in rows.items()}


@dataclass(frozen=True, kw_only=True)
class DecodingSettings:
    """Split, size of the beam and further flags of ``fairseq-generate``, as for the published figures of a recipe."""

    split: str = "test"
    beam: int = 5
    flags: Sequence[str] = ()

    def scoring_command(self, command: str) -> str:
        """Command line that decodes and scores a checkpoint, with a command such as "evaluate bleu"."""
        split = [] if self.split == "test" else ["--split", self.split]
        beam = [] if self.beam == DecodingSettings.beam else ["--beam", str(self.beam)]
        more = ["--", *self.flags] if self.flags else []
        words = ["DATA", "--path", "CKPT", *split, *beam, "--out", "OUT", *more]
        return " ".join(["fairseq-plugins", command, *words])


JOINING_FLAG = "eval-scorer-remove-bpe"
"""Flag that joins subwords before they are scored."""


def scored_validation(metric: str) -> Dict[str, Value]:
    """Flags that decode the validation set, so that the log has a score by ``--eval-scorer`` for each epoch.

    They do not change the run itself, which stays the same bit for bit. Text for BLEU and chrF is detokenised.
    """
    detokenised = {"eval-scorer-detok": "moses"} if metric in ("bleu", "chrf") else {}
    return {
        "task": "scored_translation",
        "eval-scorer": metric,
        "eval-scorer-args": '{"beam": 1, "max_len_a": 1.2, "max_len_b": 10}',
        JOINING_FLAG: True,
        **detokenised,
    }


COMMON = {"num-workers": 0, "no-epoch-checkpoints": True, "log-format": "simple", "log-interval": 50}
"""Flags of all recipes. A recipe's own flags override them."""

FULL_SIZE = {"num-workers": 1, "log-interval": 200}
"""Flags of recipes that train for days."""

ON_CPUS = {"output-precision": "auto"}
"""Flags of recipes for CPUs: the output layer runs in 16 bits where that is faster."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Systems that are trained on one corpus and compared.

    Attributes:
        name: as the user types it.
        title: one line with what is compared, the corpus and the origin of the settings.
        corpus: command that writes the data.
        systems: systems by name.
        training: flags of all systems, which override the flags of their presets.
        training_of_presets: "left out" if the recipe does not use the training flags of presets.
        metric: name of the published figures.
        compared_by: metric of ``compare_runs``.
        decoding: settings of decoding for a metric of text.
        notes: what else a user must know.
    """

    name: str
    title: str
    corpus: str
    systems: Mapping[str, System]
    training: Mapping[str, Value] = field(default_factory=dict)
    training_of_presets: Literal["taken", "left out"] = "taken"
    metric: str = ""
    compared_by: Literal["perplexity", "bleu", "rouge"] = "perplexity"
    decoding: DecodingSettings = DecodingSettings()
    notes: str = ""

    def system(self, name: str) -> System:
        """The system of that name. Raises UserError if there is none."""
        if name not in self.systems:
            raise UserError(f"recipe {self.name} has no system {name}: choose one of {', '.join(self.systems)}")
        return self.systems[name]

    def label(self, system: str) -> str:
        """Name of a system in tables. Raises UserError if the recipe has no such system."""
        return self.system(system).label or system

    def flags(self, system: str) -> Dict[str, Value]:
        """Flags of a system: its architecture's preset, overridden by the recipe's flags and then by its own.

        Raises UserError if the recipe has no such system.
        """
        own = self.system(system).flags
        preset = ARCHITECTURES.get(str(own["arch"]))  # fairseq's architectures have none
        taken = preset.training if preset is not None and self.training_of_presets == "taken" else {}
        return {**COMMON, **taken, **self.training, **own}
