"""Recipes: tables of systems, and the flags of ``fairseq-train`` that train one."""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Literal, Mapping, Optional, Sequence, Set, Tuple, Union

from fairseq.utils import split_paths

from fairseq_plugins.components import Registry, option_names
from fairseq_plugins.evaluation.raw_text import SubwordNMT, subword_kind
from fairseq_plugins.models.presets import ARCHITECTURES, GATED_LANGUAGE_MODELS, Value, apply_preset, command_line
from fairseq_plugins.modules.cell import RECURRENT_CELLS
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS
from fairseq_plugins.output_layers.copying import COPYING
from fairseq_plugins.output_layers.gates import OUTPUT_GATES
from fairseq_plugins.processes import USER_DIR

# Systems: the rows of a recipe.


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


# How a recipe's translators are decoded for its table.


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


# Validation that decodes, so that the log and the curves have BLEU or ROUGE by epoch.


JOINING_FLAG = "eval-scorer-remove-bpe"


def scored_validation(metric: str) -> Dict[str, Value]:
    """Flags of ``fairseq-train`` for a training on subwords; it stays the same to the bit.

    Args:
        metric: a value of ``--eval-scorer``; texts for BLEU and chrF are detokenised.
    """
    detokenised = {"eval-scorer-detok": "moses"} if metric in ("bleu", "chrf") else {}
    return {
        "task": "scored_translation",
        "eval-scorer": metric,
        "eval-scorer-args": '{"beam": 1, "max_len_a": 1.2, "max_len_b": 10}',
        JOINING_FLAG: True,
        **detokenised,
    }


def joined_subwords(data: Path) -> Value:
    """The value of ``--eval-scorer-remove-bpe`` for a folder's text; True for ``@@``, which needs none.

    Raises:
        ValueError: if data-prep left subwords of several kinds there.
    """
    kind = subword_kind(data)
    return True if kind == SubwordNMT.kind else kind


COMMON = {"num-workers": 0, "no-epoch-checkpoints": True, "log-format": "simple", "log-interval": 50}
"""Flags of every recipe, before its own."""

FULL_SIZE = {"num-workers": 1, "log-interval": 200}
"""Flags of recipes that train for days."""

ON_CPUS = {"output-precision": "auto"}
"""Flags of recipes for CPUs: the output layer in 16 bits where the processor is faster so."""


_MIXTURES_OPTION, _MIXTURES_PENALTY = "experts_per_layer", "balance"
"""What output layers that are mixtures have, and what the criterion adds for no others."""

AVERAGED = "-averaged"
"""Ends the name of a system that is trained on with averaged weights."""


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
        decoding: how translators are decoded before that.
        averaged_epochs: of averaged SGD, by which a system NAME-averaged trains NAME on; 0 where there are no such
            systems. Gates have none.
        notes: what else a user must know; may be empty.
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
    averaged_epochs: int = 0
    notes: str = ""

    def system(self, name: str) -> System:
        """The system of that name.

        Raises:
            ValueError: if there is none.
        """
        if name in self.systems:
            return self.systems[name]
        trained = self.systems.get(name.removesuffix(AVERAGED))
        if trained is None or not self.averaged_epochs or trained.flags["arch"] in GATED_LANGUAGE_MODELS:
            raise ValueError(f"recipe {self.name} has no system {name}: choose one of {', '.join(self.systems)}")
        return System(
            {**trained.flags, "averaging": "immediate", "max-epoch": self.averaged_epochs},
            label=trained.label and f"{trained.label}, averaged",
            base=Base(system=name.removesuffix(AVERAGED), flag="finetune-from-model"),
        )

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
        preset = ARCHITECTURES.get(str(own["arch"]))  # fairseq's architectures have none
        taken = preset.training if preset is not None and self.training_of_presets == "taken" else {}
        return {**COMMON, **taken, **self.training, **own}

    def settings(self, system: str) -> Dict[str, Value]:
        """What a system is trained with: its flags, and those that its architecture supplies; names have underscores.

        Raises:
            ValueError: if the recipe has no such system.
        """
        args = Namespace(**{name.replace("-", "_"): value for name, value in self.flags(system).items()})
        preset = ARCHITECTURES.get(args.arch)
        if preset is not None:
            apply_preset(preset, args)
        return vars(args)


def training_arguments(
    recipe: Recipe, system: str, *, data: str, save_dir: str, seed: Optional[int] = None, more: Sequence[str] = ()
) -> List[str]:
    """All arguments of ``fairseq-train``.

    Args:
        recipe: whose flags are taken.
        system: its name in the recipe.
        data: directory that data-prep wrote.
        save_dir: directory for checkpoints.
        seed: None takes the preset's, or fairseq's where the preset has none.
        more: arguments that come last and win; with ``--keep-last-epochs`` there are checkpoints of epochs. An output
            layer, gate, recurrent cell or way to copy among them comes without the recipe's options of others, and one
            softmax without the penalty of mixtures.

    Raises:
        ValueError: if the recipe has no such system, ``data`` has subwords of two kinds, or the system begins with
            trained models and ``more`` names none, unless its training is resumed, or another number of them.
    """
    flags = _for_chosen_parts(recipe.flags(system), more)
    if JOINING_FLAG in flags:
        flags[JOINING_FLAG] = joined_subwords(Path(data))
    _check_base(recipe, system, save_dir=save_dir, more=more)
    if seed is not None:
        flags["seed"] = seed
    return fairseq_arguments(flags, data=data, save_dir=save_dir, more=more)


def fairseq_arguments(flags: Mapping[str, Value], *, data: str, save_dir: str, more: Sequence[str] = ()) -> List[str]:
    """All arguments of ``fairseq-train``.

    Args:
        flags: those of every recipe, :data:`COMMON`, among them.
        data: directory that data-prep wrote.
        save_dir: directory for checkpoints.
        more: arguments that come last and win; with ``--keep-last-epochs`` there are checkpoints of epochs.
    """
    given = {"user-dir": str(USER_DIR), "save-dir": str(save_dir), **flags}
    if any(argument.partition("=")[0] == "--keep-last-epochs" for argument in more):
        del given["no-epoch-checkpoints"]
    return [str(data), *command_line(given), *more]


def _for_chosen_parts(flags: Mapping[str, Value], more: Sequence[str]) -> Dict[str, Value]:
    """Flags without the options of parts in whose place ``more`` has others that do not have them."""
    registries: Tuple[Registry[Any], ...] = (OUTPUT_LAYERS, OUTPUT_GATES, RECURRENT_CELLS, COPYING)
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    for registry in registries:
        parser.add_argument(registry.flag, nargs="?")
    chosen = parser.parse_known_args(list(more))[0]
    left_out: Set[str] = set()
    for registry in registries:
        part = registry.get(getattr(chosen, registry.destination))
        if part is not None:  # fairseq refuses names that do not exist
            left_out |= registry.all_option_names() - option_names(part.Options)
    layer = OUTPUT_LAYERS.get(chosen.output_layer)
    if layer is not None and _MIXTURES_OPTION not in option_names(layer.Options):
        left_out.add(_MIXTURES_PENALTY)
    return {flag: value for flag, value in flags.items() if flag.replace("-", "_") not in left_out}


def _check_base(recipe: Recipe, system: str, *, save_dir: Union[str, Path], more: Sequence[str]) -> None:
    base = recipe.system(system).base
    if base is None and recipe.flags(system)["arch"] not in GATED_LANGUAGE_MODELS:
        return
    flag = "base-model" if base is None else base.flag
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(f"--{flag}", nargs="?", dest="given")
    given: Optional[str] = parser.parse_known_args(list(more))[0].given
    if not given and not Path(save_dir, "checkpoint_last.pt").is_file():
        what = "is a gate on" if flag == "base-model" else "goes on from"
        trained = "language model" if base is None else base.system
        several = "" if base is not None and base.num == 1 else f", or those of an ensemble by --{flag} CKPT:CKPT"
        raise ValueError(
            f"{system} of recipe {recipe.name} {what} a trained {trained}: "
            f"give its checkpoint by --{flag} CKPT{several}"
        )
    number = len(split_paths(given or ""))
    if given and base is not None and flag == "base-model" and number != base.num:
        raise ValueError(
            f"--base-model names {number}: {system} of recipe {recipe.name} is a gate on {base.num}; name that many "
            "checkpoints, joined by colons"
        )
