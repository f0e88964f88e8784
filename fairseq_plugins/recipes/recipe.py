"""Recipes: tables of systems, each with its flags of ``fairseq-train``."""

from dataclasses import dataclass, field
from typing import Dict, List, Literal, Mapping, Optional, Sequence

from fairseq_plugins.models.presets import ARCHITECTURES, Value, command_line
from fairseq_plugins.programs.host_program import USER_DIR

COMMON = {"num-workers": 0, "no-epoch-checkpoints": True, "log-format": "simple", "log-interval": 50}
"""Flags of every recipe, before its own."""

FULL_SIZE = {"num-workers": 1, "log-interval": 200}
"""Flags of recipes that train for days."""

GATED = "gated_lm"
"""Architectures of this name, with or without a corpus, are built on trained models."""


@dataclass(frozen=True)
class System:
    """A row of a recipe's table.

    Attributes:
        flags: of ``fairseq-train``, without the leading dashes; one that is True has no value. ``arch`` is among them.
        label: how tables name the system; where empty, they take its name in the recipe.
        published: figures of the paper by column, such as ``{"fine-tuned": "58.2 / 55.7"}``.
    """

    flags: Mapping[str, Value]
    label: str = ""
    published: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Systems that are trained on one corpus and compared.

    Attributes:
        name: as the user types it.
        title: one line: what is compared, on which corpus, whose settings.
        corpus: command that writes the data.
        systems: by name.
        training: flags that all systems share, above those of their presets.
        training_of_presets: "left out" where the recipe's own flags are the whole training.
        metric: what the published figures are.
        notes: what else a user must know, such as how to score the systems.
    """

    name: str
    title: str
    corpus: str
    systems: Mapping[str, System]
    training: Mapping[str, Value] = field(default_factory=dict)
    training_of_presets: Literal["taken", "left out"] = "taken"
    metric: str = ""
    notes: str = ""

    def system(self, name: str) -> System:
        """The system of that name.

        Raises:
            ValueError: if there is none.
        """
        if name not in self.systems:
            raise ValueError(f"recipe {self.name} has no system {name}: choose one of {', '.join(self.systems)}")
        return self.systems[name]

    def label(self, system: str) -> str:
        """How tables name a system.

        Raises:
            ValueError: if the recipe has no such system.
        """
        return self.system(system).label or system

    def flags(self, system: str) -> Dict[str, Value]:
        """Flags of a system: of its architecture's preset, then the recipe's, then its own; later ones win.

        Raises:
            ValueError: if the recipe has no such system.
        """
        own = self.system(system).flags
        preset = ARCHITECTURES.get(str(own["arch"]))  # the host's architectures have none
        taken = preset.training if preset is not None and self.training_of_presets == "taken" else {}
        return {**COMMON, **taken, **self.training, **own}


def training_arguments(
    recipe: Recipe, system: str, *, data: str, save_dir: str, seed: Optional[int] = None, more: Sequence[str] = ()
) -> List[str]:
    """All arguments of ``fairseq-train``.

    Args:
        recipe: whose flags are taken.
        system: its name in the recipe.
        data: directory that data-prep wrote.
        save_dir: directory for checkpoints.
        seed: None takes the preset's, or the host's where the preset has none.
        more: arguments that come last and win.

    Raises:
        ValueError: if the recipe has no such system, or the system is a gate and ``more`` names no base model.
    """
    flags = recipe.flags(system)
    if str(flags["arch"]).startswith(GATED) and not any(word.partition("=")[0] == "--base-model" for word in more):
        raise ValueError(
            f"{system} of recipe {recipe.name} is a gate on a trained language model: give its checkpoint by "
            "--base-model CKPT, or those of an ensemble by --base-model CKPT:CKPT"
        )
    if seed is not None:
        flags["seed"] = seed
    where = {"user-dir": str(USER_DIR), "save-dir": str(save_dir)}
    return [str(data), *command_line({**where, **flags}), *more]
