"""A run of a recipe: its command line, its folder, and all runs of a table."""

import itertools
import re
import shlex
import signal
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, Union

import torch
from fairseq.utils import split_paths

import fairseq_plugins
from fairseq_plugins.evaluation.raw_text import SubwordNMT, subword_kind
from fairseq_plugins.fairseq_patches.saving import locked_for_command
from fairseq_plugins.files import file_digest, newest_checkpoint, output_folder, read_json, write_json
from fairseq_plugins.models.presets import GATED_LANGUAGE_MODELS, Value, as_arguments
from fairseq_plugins.modules.cell import RECURRENT_CELLS
from fairseq_plugins.ops.matmul import has_native_bfloat16
from fairseq_plugins.options import UserError
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS
from fairseq_plugins.output_layers.copying import COPYING
from fairseq_plugins.output_layers.gates import OUTPUT_GATES
from fairseq_plugins.own_parts import user_dir
from fairseq_plugins.parts import Registry, option_names
from fairseq_plugins.processes import fairseq_command, run_logged
from fairseq_plugins.recipes.recipe import JOINING_FLAG, Recipe

_MIXTURES_OPTION, _MIXTURES_PENALTY = "experts_per_layer", "balance"
"""The option that marks an output layer as a mixture, and the penalty that the criterion adds for mixtures only."""

# The command line


def training_arguments(
    recipe: Recipe,
    system: str,
    *,
    data: Union[str, Path],
    save_dir: Union[str, Path],
    seed: Optional[int] = None,
    more: Sequence[str] = (),
) -> List[str]:
    """All arguments of ``fairseq-train`` for a system of a recipe, with DATA as data-prep wrote it.

    The seed is the preset's by default, or fairseq's if the preset has none. ``more`` are further arguments, which come
    last and win. An output layer, gate, recurrent cell or copy mechanism among them replaces the recipe's. The
    options of the replaced part are dropped. A single softmax drops the penalty of mixtures, too. ``--no-FLAG`` among
    them removes a switch of the recipe. The recipe's ``--bf16`` is left out where the processor has no products in
    bfloat16: training would take thirty times as long there (measured on an AMD EPYC with AVX2).

    Raises UserError if the recipe has no such system, if ``data`` has subwords of two kinds, or if the system starts
    from trained models and ``more`` names a wrong number of them. Naming none is an error only if there is no run to
    resume.
    """
    flags = _for_chosen_parts(recipe.flags(system), values_by_flag(more))
    removing = {f"--no-{flag}" for flag, value in flags.items() if value is True}.intersection(more)
    flags = {flag: value for flag, value in flags.items() if f"--no-{flag}" not in removing}
    device = "cuda" if torch.cuda.is_available() and "--cpu" not in more else "cpu"
    if "bf16" in flags and not has_native_bfloat16(torch.device(device)):
        del flags["bf16"]
    more = [word for word in more if word not in removing]
    if JOINING_FLAG in flags:
        kind = subword_kind(Path(data))
        flags[JOINING_FLAG] = True if kind == SubwordNMT.kind else kind  # True stands for @@, the default
    _check_base(recipe, system, Path(save_dir), values_by_flag(more))
    if seed is not None:
        flags["seed"] = seed
    return fairseq_arguments(flags, data=data, save_dir=save_dir, more=more)


def fairseq_arguments(
    flags: Mapping[str, Value], *, data: Union[str, Path], save_dir: Union[str, Path], more: Sequence[str] = ()
) -> List[str]:
    """All arguments of ``fairseq-train``. Further ones, ``more``, come last and win.

    ``--keep-last-epochs`` among them keeps checkpoints of epochs.
    """
    given = {"user-dir": user_dir(), "save-dir": str(save_dir), **flags}
    if "--keep-last-epochs" in values_by_flag(more):
        given.pop("no-epoch-checkpoints", None)
    return [str(data), *as_arguments(given), *more]


def values_by_flag(arguments: Sequence[str]) -> Dict[str, List[str]]:
    """Values by flag, and under "" the words before the first flag. The last occurrence of a flag wins."""
    found: Dict[str, List[str]] = {"": []}
    flag = ""
    for word in arguments:
        if re.match("--|-[A-Za-z]$", word):  # no negative number
            flag, equals, value = word.partition("=")
            found[flag] = [value] if equals else []
        else:
            found[flag].append(word)
    return found


def value_of(given: Mapping[str, List[str]], *flags: str) -> str:
    """The first value of the first of these flags that has one, or an empty text."""
    return next((given[flag][0] for flag in flags if given.get(flag)), "")


def _for_chosen_parts(flags: Mapping[str, Value], given: Mapping[str, List[str]]) -> Dict[str, Value]:
    """Flags without the options of parts that ``given`` flags replace, unless the new part has the same option."""
    registries: Tuple[Registry[Any], ...] = (OUTPUT_LAYERS, OUTPUT_GATES, RECURRENT_CELLS, COPYING)
    left_out: Set[str] = set()
    for registry in registries:
        part = registry.get(value_of(given, registry.flag))
        if part is not None:  # fairseq reports names that do not exist
            options = option_names(part.Options)
            left_out |= registry.all_option_names() - options
            if registry is OUTPUT_LAYERS and _MIXTURES_OPTION not in options:
                left_out.add(_MIXTURES_PENALTY)
    return {flag: value for flag, value in flags.items() if flag.replace("-", "_") not in left_out}


def _check_base(recipe: Recipe, system: str, save_dir: Path, flags: Mapping[str, List[str]]) -> None:
    """Check that flags name the trained models that a system starts from, or that there is a run to resume."""
    base = recipe.system(system).base
    if base is None and recipe.flags(system)["arch"] not in GATED_LANGUAGE_MODELS:
        return
    flag = "base-model" if base is None else base.flag
    given = value_of(flags, f"--{flag}")
    if not given and newest_checkpoint(save_dir) is None:
        what = "is a gate on" if flag == "base-model" else "goes on from"
        trained = "language model" if base is None else base.system
        several = "" if base is not None and base.num == 1 else f", or those of an ensemble by --{flag} CKPT:CKPT"
        raise UserError(
            f"{system} of recipe {recipe.name} {what} a trained {trained}: "
            f"give its checkpoint by --{flag} CKPT{several}"
        )
    number = len(split_paths(given))
    if given and base is not None and flag == "base-model" and number != base.num:
        raise UserError(
            f"--base-model names {number}: {system} of recipe {recipe.name} is a gate on {base.num}; name that many "
            "checkpoints, joined by colons"
        )


# The run

RUN_FILE = "run.json"
"""File in the folder of a run: the record of the last call that saved a checkpoint.

It has the ``command`` line, the ``status``, "begun" or "finished", the digests of the checkpoints whose weights the run
``started_from`` and of the ``data`` files that it reads, and the package's ``version``.
"""

STOPPING_FLAG = "--stop-time-hours"
"""Flag that stops a run before it is finished."""
_LENGTHS = ("--max-epoch", "--max-update", "--patience", "--stop-min-lr", STOPPING_FLAG)
_STARTING_FLAGS = ("--finetune-from-model", "--base-model")
_PATHS = ("", "--user-dir", "--save-dir", *_STARTING_FLAGS)  # "": DATA, which comes first
_SUBSETS = {"--train-subset": "train", "--valid-subset": "valid"}
_LOG = ("--log-interval", "--log-format", "--log-file", "--no-progress-bar", "--tensorboard-logdir", "--wandb-project")
_MACHINE = ("--num-workers", "--cpu", "--device-id", "--distributed-world-size")
_CHECKPOINTS = (
    *("--no-epoch-checkpoints", "--no-last-checkpoints", "--save-interval", "--save-interval-updates"),
    *("--keep-last-epochs", "--keep-best-checkpoints", "--keep-interval-updates"),
)
_RESETS = ("--reset-optimizer", "--reset-lr-scheduler", "--reset-meters", "--reset-dataloader")
RESTORE_FLAG = "--restore-file"
"""Flag that begins a run anew, or from any checkpoint."""
MAY_DIFFER = frozenset((*_LENGTHS, *_PATHS, *_LOG, *_MACHINE, *_CHECKPOINTS, *_RESETS, RESTORE_FLAG))
"""Flags that may change when a run is resumed. The contents behind the paths are compared by digests."""
_SCHEDULERS_OF_A_LENGTH = ("cosine", "polynomial_decay", "tri_stage")
"""Values of ``--lr-scheduler`` whose rates depend on ``--max-update``, so that it may not change."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """A run of ``fairseq-train`` in its own folder, the ``--save-dir`` of its arguments.

    The folder keeps the command line, the digests of the data and of the checkpoints that it started from, so that a
    later call resumes the same run or reports what differs.
    """

    arguments: Sequence[str]

    @cached_property
    def save_dir(self) -> Path:
        """The folder."""
        return Path(value_of(values_by_flag(self.arguments), "--save-dir"))

    @property
    def command_line(self) -> str:
        """The command line, quoted for a shell."""
        return shlex.join(["fairseq-train", *self.arguments])

    @property
    def is_finished(self) -> bool:
        """Whether the run with these arguments is finished."""
        record = _read_record(self.save_dir)
        return (record.get("status"), record.get("command")) == ("finished", self.command_line)

    def check(self) -> None:
        """Check that the folder is empty or holds this run.

        Raises UserError if ``save_dir`` cannot be written to, or holds a run with other flags, other data or another
        checkpoint to start from, or holds that checkpoint itself, or if ``--restore-file`` would begin this run again.
        """
        record, folder = _read_record(self.save_dir), self.save_dir.resolve()
        if not self.is_finished:
            output_folder(str(self.save_dir))
        if not record and any(path.resolve().parent == folder for path in _starting_checkpoints(self.arguments)):
            raise UserError(f"{self.save_dir} holds the model that this run starts from: give another --save-dir")
        if not self.is_resumed or not record:
            return
        for difference, remedy in _differences(record, self.arguments):
            raise UserError(f"{self.save_dir} holds a run {difference}: give another --save-dir, or remove {remedy}")
        start = values_by_flag(self.arguments).get(RESTORE_FLAG)
        if start is not None and not self.is_finished and start == _recorded_flags(record).get(RESTORE_FLAG):
            raise UserError(
                f"{self.save_dir} holds a run that began with {shlex.join([RESTORE_FLAG, *start])}, which would begin "
                f"again: leave out {RESTORE_FLAG} to resume it"
            )

    def check_kept(self) -> None:
        """Check that a finished run still has a checkpoint. Raises UserError."""
        if self.is_finished and newest_checkpoint(self.save_dir) is None:
            raise UserError(
                f"{self.save_dir} was trained, but its checkpoints are gone: remove {RUN_FILE} there to train it again"
            )

    def run(self) -> None:
        """Train, or resume an interrupted run. The output is shown and appended to ``train.log``.

        A finished run is left as it is. Raises UserError as :meth:`check` does, or if another run writes there. Raises
        SystemExit if ``fairseq-train`` fails, with its status.
        """
        self.check()
        if self.is_finished:
            return
        self.save_dir.mkdir(parents=True, exist_ok=True)
        with locked_for_command(self.save_dir):
            former, saved = _read_record(self.save_dir), _last_saved(self.save_dir)
            kept = former if self.is_resumed else {}
            start, data = _starting_checkpoints(self.arguments), _data_files(self.arguments)
            record = {
                "command": self.command_line,
                "status": "begun",
                "started_from": kept.get("started_from", [file_digest(path) for path in start]),
                "data": kept.get("data") or {name: file_digest(path) for name, path in data.items()},
                "version": fairseq_plugins.__version__,
            }
            _write_record(self.save_dir, record)
            try:
                status = run_logged(fairseq_command("train", self.arguments), log=self.save_dir / "train.log")
            finally:
                if _last_saved(self.save_dir) == saved:
                    _write_record(self.save_dir, former)
            if status == 128 + signal.SIGKILL:
                print("error: fairseq-train was killed, perhaps because memory ran out", file=sys.stderr)
            if status != 0:
                raise SystemExit(status)
            ends = not values_by_flag(self.arguments).keys() & {STOPPING_FLAG, "--no-save"}
            if ends and newest_checkpoint(self.save_dir) is not None:  # without one it made no update
                _write_record(self.save_dir, {**record, "status": "finished"})

    @property
    def is_resumed(self) -> bool:
        """Whether there is a run to resume. fairseq then does not read the starting checkpoints again."""
        return _read_record(self.save_dir).get("status") == "finished" or _last_saved(self.save_dir) is not None


def check_leaves_a_model(arguments: Sequence[str]) -> None:
    """Reject flags of a run that ends without its best checkpoint, which later steps need. Raises UserError."""
    for flag in (STOPPING_FLAG, "--no-save", "--disable-validation"):
        if flag in values_by_flag(arguments):
            raise UserError(
                f"{flag}: the steps after the training need the best checkpoint of a finished run. Leave it out; an "
                "interrupted command resumes where it stopped"
            )


def _last_saved(save_dir: Path) -> Optional[Tuple[int, int]]:
    """Inode and time of the newest checkpoint, which change whenever one is saved."""
    path = newest_checkpoint(save_dir)
    return None if path is None else (path.stat().st_ino, path.stat().st_mtime_ns)


def _read_record(save_dir: Path) -> Dict[str, Any]:
    """The content of :data:`RUN_FILE`, empty if there is none. Raises UserError if it is damaged."""
    path = save_dir / RUN_FILE
    if not path.is_file():
        return {}
    wrong = "is no record of a run: remove it"
    record = read_json(path, {"command": str, "status": str, "started_from": list, "data": dict}, wrong=wrong)
    try:
        shlex.split(record["command"])
    except ValueError as error:
        raise UserError(f"{path} {wrong}") from error
    return record


def _write_record(save_dir: Path, record: Dict[str, Any]) -> None:
    """Replace :data:`RUN_FILE`; an empty record removes it."""
    if record:
        write_json(save_dir / RUN_FILE, record)
    else:
        (save_dir / RUN_FILE).unlink(missing_ok=True)


def _differences(record: Mapping[str, Any], arguments: Sequence[str]) -> Iterator[Tuple[str, str]]:
    """How a run differs from the recorded one, and which file or folder the user may remove."""
    anew = "that folder to begin anew"
    start = _starting_checkpoints(arguments)
    if len(start) > len(record["started_from"]):
        yield f"that did not start from {start[-1]}", anew
    for path, digest in zip(start, record["started_from"]):
        if digest != file_digest(path):
            yield f"that started from another {path}", anew
    data = _data_files(arguments)
    for name in dict.fromkeys([*record["data"], *data]):
        if name not in data or record["data"].get(name) != file_digest(data[name]):
            yield f"on other data: {name} has changed", anew
    former, now = _recorded_flags(record), values_by_flag(arguments)
    fixed_length = value_of(now, "--lr-scheduler") in _SCHEDULERS_OF_A_LENGTH
    may_differ = MAY_DIFFER - ({"--max-update"} if fixed_length else set())
    for flag in dict.fromkeys([*former, *now]):
        if former.get(flag) != now.get(flag) and flag not in may_differ:
            old, new = (shlex.join([flag, *given[flag]]) if flag in given else f"no {flag}" for given in (former, now))
            yield f"with {old}, and this one has {new}", f"{RUN_FILE} there to resume it with the new flags"


def _recorded_flags(record: Mapping[str, Any]) -> Dict[str, List[str]]:
    return values_by_flag(shlex.split(record["command"])[1:])


def _starting_checkpoints(arguments: Sequence[str]) -> List[Path]:
    """The checkpoints from whose weights a run starts. Empty if a file is missing."""
    given = values_by_flag(arguments)
    values = [value for flag in _STARTING_FLAGS for value in given.get(flag, [])]
    paths = [Path(path) for value in values for path in split_paths(value)]
    return paths if all(path.is_file() for path in paths) else []


def _data_files(arguments: Sequence[str]) -> Dict[str, Path]:
    """The dictionaries and binarised files that a run reads, by name."""
    given = values_by_flag(arguments)
    subsets = [",".join(given.get(flag) or [default]) for flag, default in _SUBSETS.items()]
    names = "|".join(map(re.escape, ",".join(subsets).split(",")))
    is_read = re.compile(rf"dict\.(.+\.)?txt|({names})\d*(\..+)?\.(bin|idx)")
    data = value_of(given, "")
    folders = [data] if Path(data).is_dir() else split_paths(data)
    return {
        path.name if len(folders) == 1 else f"{number}/{path.name}": path
        for number, folder in enumerate(folders, start=1)
        for path in sorted(Path(folder).glob("*"))
        if is_read.fullmatch(path.name) and path.is_file()
    }


# The runs of a table


@dataclass(frozen=True, kw_only=True)
class SystemTraining(Training):
    """A training of a system of a recipe with a seed.

    ``label`` names the system in tables, ``result`` is the checkpoint that counts, and ``starts_from`` are the
    runs whose results the system starts from.
    """

    system: str
    seed: int
    label: str
    result: Path
    starts_from: Sequence["SystemTraining"]

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.save_dir.name


def plan_trainings(
    recipe: Recipe,
    systems: Sequence[str],
    seeds: Iterable[int],
    *,
    data: Union[str, Path],
    save_dir: Path,
    more: Sequence[str] = (),
) -> Dict[Tuple[str, int], SystemTraining]:
    """Trainings by system and seed, seed by seed. Each comes after the trainings that it starts from.

    Each has its folder ``save_dir/SYSTEM-SEED``. A dash replaces a colon in the name of a system, because colons
    separate checkpoints. Further arguments, ``more``, come last in each and win. A training that starts from one model
    has that model's seed. A training with seed s that starts from ``num`` models takes the s-th block of ``num`` seeds
    (1 to ``num`` for s = 1), so that no two runs share a model.

    Raises UserError if the recipe has no such system, a gate has no base in the recipe, the seed of a gate on several
    models is below 1, or a path of its base models contains a colon, which separates them.
    """
    planned: Dict[Tuple[str, int], SystemTraining] = {}

    def plan(name: str, seed: int) -> SystemTraining:
        if (name, seed) in planned:
            return planned[name, seed]
        system = recipe.system(name)
        folder = save_dir / f"{name}-{seed}".replace(":", "-")
        starts_from: List[SystemTraining] = []
        flags: List[str] = []
        if system.base is not None:
            base, num = system.base, system.base.num
            if num > 1 and seed < 1:
                raise UserError(
                    f"--seeds {seed}: {name} begins with {num} models, whose seeds count from 1: give 1 or more"
                )
            of_models = [seed] if num == 1 else range((seed - 1) * num + 1, seed * num + 1)
            starts_from = [plan(base.system, one) for one in of_models]
            checkpoints = [str(one.result) for one in starts_from]
            if base.flag == "base-model" and ":" in "".join(checkpoints):
                raise UserError(f"--save-dir {save_dir}: a colon separates base models, give a directory without")
            flags = [f"--{base.flag}={':'.join(checkpoints)}"]
        planned[name, seed] = SystemTraining(
            arguments=training_arguments(recipe, name, data=data, save_dir=folder, seed=seed, more=[*flags, *more]),
            system=name,
            seed=seed,
            label=recipe.label(name),
            result=folder / system.result,
            starts_from=starts_from,
        )
        return planned[name, seed]

    for seed, name in itertools.product(seeds, systems):
        plan(name, seed)
    return planned
