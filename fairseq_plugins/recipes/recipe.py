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
from fairseq_plugins.options import UserError
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS
from fairseq_plugins.output_layers.copying import COPYING
from fairseq_plugins.output_layers.gates import OUTPUT_GATES
from fairseq_plugins.parts import user_dir

Result = Literal["best", "last"]
"""The checkpoint that counts as the result of a run: ``checkpoint_best.pt`` or ``checkpoint_last.pt``."""


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
        result: the checkpoint that tables measure, and from which systems with this base start.
    """

    flags: Mapping[str, Value]
    label: str = ""
    published: Mapping[str, str] = field(default_factory=dict)
    base: Optional[Base] = None
    result: Result = "best"


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
    """Flags that decode the validation set, so that the log has a score, a value of ``--eval-scorer``, by epoch.

    They do not change the training itself, which stays the same bit for bit. Text for BLEU and chrF is detokenised.
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
"""Flags of all recipes. Those of a recipe override them."""

FULL_SIZE = {"num-workers": 1, "log-interval": 200}
"""Flags of recipes that train for days."""

ON_CPUS = {"output-precision": "auto"}
"""Flags of recipes for CPUs: the output layer runs in 16 bits where that is faster."""

_MIXTURES_OPTION, _MIXTURES_PENALTY = "experts_per_layer", "balance"
"""The option that marks an output layer as a mixture, and the penalty that the criterion adds for mixtures only."""

AVERAGED = "-averaged"
"""Suffix of the name of a system that continues another one with averaged weights."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Systems that are trained on one corpus and compared.

    Attributes:
        name: as the user types it.
        title: one line with what is compared, the corpus and the origin of the settings.
        corpus: command that writes the data.
        systems: systems by name.
        training: flags of all systems, which override those of their presets.
        training_of_presets: "left out" if the recipe does not use the training flags of presets.
        metric: name of the published figures.
        compared_by: metric of ``compare_runs``.
        decoding: settings of decoding for a metric of text.
        averaged_epochs: epochs of averaged SGD by which a system NAME-averaged continues NAME. 0 means that there are
            no such systems. Gates never have one.
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
    averaged_epochs: int = 0
    notes: str = ""

    def system(self, name: str) -> System:
        """The system of that name. Raises UserError if there is none."""
        if name in self.systems:
            return self.systems[name]
        trained = self.systems.get(name.removesuffix(AVERAGED))
        if trained is None or not self.averaged_epochs or trained.flags["arch"] in GATED_LANGUAGE_MODELS:
            raise UserError(f"recipe {self.name} has no system {name}: choose one of {', '.join(self.systems)}")
        return System(
            {**trained.flags, "averaging": "immediate", "max-epoch": self.averaged_epochs},
            label=trained.label and f"{trained.label}, averaged",
            base=Base(system=name.removesuffix(AVERAGED), flag="finetune-from-model"),
        )

    def label(self, system: str) -> str:
        """Name of a system in tables. Raises UserError if the recipe has no such system."""
        return self.system(system).label or system

    def flags(self, system: str) -> Dict[str, Value]:
        """Flags of a system: those of its architecture's preset, overridden by the recipe's and then by its own.

        Raises UserError if the recipe has no such system.
        """
        own = self.system(system).flags
        preset = ARCHITECTURES.get(str(own["arch"]))  # fairseq's architectures have none
        taken = preset.training if preset is not None and self.training_of_presets == "taken" else {}
        return {**COMMON, **taken, **self.training, **own}

    def settings(self, system: str) -> Dict[str, Value]:
        """All settings of a system: its flags and the defaults of its architecture. Names have underscores.

        Raises UserError if the recipe has no such system.
        """
        args = Namespace(**{name.replace("-", "_"): value for name, value in self.flags(system).items()})
        preset = ARCHITECTURES.get(args.arch)
        if preset is not None:
            apply_preset(preset, args)
        return vars(args)


def training_arguments(
    recipe: Recipe, system: str, *, data: str, save_dir: str, seed: Optional[int] = None, more: Sequence[str] = ()
) -> List[str]:
    """All arguments of ``fairseq-train`` for a system of a recipe, with DATA as data-prep wrote it.

    The seed is the preset's by default, or fairseq's if the preset has none. ``more`` are further arguments, which come
    last and win. An output layer, gate, recurrent cell or copy mechanism among them replaces that of the recipe, so the
    recipe's options of the replaced one are dropped. A single softmax drops the penalty of mixtures, too.

    Raises UserError if the recipe has no such system, if ``data`` has subwords of two kinds, or if the system starts
    from trained models and ``more`` names a wrong number of them. Naming none is an error only if there is no run to
    resume.
    """
    flags = _for_chosen_parts(recipe.flags(system), more)
    if JOINING_FLAG in flags:
        kind = subword_kind(Path(data))
        flags[JOINING_FLAG] = True if kind == SubwordNMT.kind else kind  # True stands for @@, the default
    _check_base(recipe, system, save_dir=save_dir, more=more)
    if seed is not None:
        flags["seed"] = seed
    return fairseq_arguments(flags, data=data, save_dir=save_dir, more=more)


def fairseq_arguments(flags: Mapping[str, Value], *, data: str, save_dir: str, more: Sequence[str] = ()) -> List[str]:
    """All arguments of ``fairseq-train``. Further ones, ``more``, come last and win.

    ``--keep-last-epochs`` among them keeps checkpoints of epochs.
    """
    given = {"user-dir": user_dir(), "save-dir": str(save_dir), **flags}
    if any(argument.partition("=")[0] == "--keep-last-epochs" for argument in more):
        del given["no-epoch-checkpoints"]
    return [str(data), *command_line(given), *more]


def _for_chosen_parts(flags: Mapping[str, Value], more: Sequence[str]) -> Dict[str, Value]:
    """Flags without the options of components that ``more`` replaces by others without these options."""
    registries: Tuple[Registry[Any], ...] = (OUTPUT_LAYERS, OUTPUT_GATES, RECURRENT_CELLS, COPYING)
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    for registry in registries:
        parser.add_argument(registry.flag, nargs="?")
    chosen = parser.parse_known_args(list(more))[0]
    left_out: Set[str] = set()
    for registry in registries:
        part = registry.get(getattr(chosen, registry.destination))
        if part is not None:  # fairseq reports names that do not exist
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
        raise UserError(
            f"{system} of recipe {recipe.name} {what} a trained {trained}: "
            f"give its checkpoint by --{flag} CKPT{several}"
        )
    number = len(split_paths(given or ""))
    if given and base is not None and flag == "base-model" and number != base.num:
        raise UserError(
            f"--base-model names {number}: {system} of recipe {recipe.name} is a gate on {base.num}; name that many "
            "checkpoints, joined by colons"
        )
