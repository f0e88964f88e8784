"""Recipes: tables of systems, each with its flags of ``fairseq-train``."""

from argparse import ArgumentParser
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Literal, Mapping, Optional, Sequence, Union

from fairseq.utils import split_paths

from fairseq_plugins.models.presets import ARCHITECTURES, GATED_LANGUAGE_MODELS, Value, command_line
from fairseq_plugins.programs.host_program import USER_DIR

COMMON = {"num-workers": 0, "no-epoch-checkpoints": True, "log-format": "simple", "log-interval": 50}
"""Flags of every recipe, before its own."""

FULL_SIZE = {"num-workers": 1, "log-interval": 200}
"""Flags of recipes that train for days."""

ON_CPUS = {"output-precision": "auto"}
"""Flags of recipes for CPUs: the output layer in 16 bits where the processor is faster so."""


@dataclass(frozen=True)
class System:
    """A row of a recipe's table.

    Attributes:
        flags: of ``fairseq-train``, without the leading dashes; one that is True has no value. ``arch`` is among them.
        label: how tables name the system; where empty, they take its name in the recipe.
        published: figures of the paper by column, such as ``{"fine-tuned": "58.2 / 55.7"}``.
        num_base_models: where the architecture is a gate, the trained models that it is put on; None is any number.
    """

    flags: Mapping[str, Value]
    label: str = ""
    published: Mapping[str, str] = field(default_factory=dict)
    num_base_models: Optional[int] = 1


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
        compared_by: what ``compare_runs`` compares the systems by.
        notes: what else a user must know, such as how to score the systems; may be empty.
    """

    name: str
    title: str
    corpus: str
    systems: Mapping[str, System]
    training: Mapping[str, Value] = field(default_factory=dict)
    training_of_presets: Literal["taken", "left out"] = "taken"
    metric: str = ""
    compared_by: Literal["perplexity", "bleu", "rouge"] = "perplexity"
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
        more: arguments that come last and win; with ``--keep-last-epochs`` there are checkpoints of epochs.

    Raises:
        ValueError: if the recipe has no such system, or the system is a gate and ``more`` names no base model, unless
            its training is resumed, or another number of them.
    """
    flags = recipe.flags(system)
    if flags["arch"] in GATED_LANGUAGE_MODELS:
        _check_base_models(recipe, system, save_dir=save_dir, more=more)
    if seed is not None:
        flags["seed"] = seed
    if any(argument.partition("=")[0] == "--keep-last-epochs" for argument in more):
        del flags["no-epoch-checkpoints"]
    where = {"user-dir": str(USER_DIR), "save-dir": str(save_dir)}
    return [str(data), *command_line({**where, **flags}), *more]


def _check_base_models(recipe: Recipe, system: str, *, save_dir: Union[str, Path], more: Sequence[str]) -> None:
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--base-model", nargs="?")
    given: Optional[str] = parser.parse_known_args(list(more))[0].base_model
    if not given and not Path(save_dir, "checkpoint_last.pt").is_file():
        raise ValueError(
            f"{system} of recipe {recipe.name} is a gate on a trained language model: give its checkpoint by "
            "--base-model CKPT, or those of an ensemble by --base-model CKPT:CKPT"
        )
    expected, number = recipe.system(system).num_base_models, len(split_paths(given or ""))
    if given and expected is not None and number != expected:
        raise ValueError(
            f"--base-model names {number}: {system} of recipe {recipe.name} is a gate on {expected}; name that many "
            "checkpoints, joined by colons"
        )
