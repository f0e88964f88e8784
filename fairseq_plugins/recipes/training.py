"""Run a training in its own folder, resume it if it was interrupted, and plan the runs of a table."""

import json
import re
import shlex
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from fairseq.utils import split_paths

import fairseq_plugins
from fairseq_plugins.data.text import file_digest
from fairseq_plugins.fairseq_patches.saving import locked_for_command, newest_checkpoint
from fairseq_plugins.options import UserError, check_output_folder, write_text
from fairseq_plugins.processes import fairseq_command, run_logged
from fairseq_plugins.recipes.recipe import Recipe, training_arguments

RUN_FILE = "run.json"
"""File in the folder of a run: the record of the last call that saved a checkpoint.

It has the ``command`` line, the ``status``, "begun" or "finished", the digests of the checkpoints whose weights the run
``started_from`` and of the ``data`` files that it reads, and the package's ``version``.
"""

STOPPING_FLAG = "--stop-time-hours"
"""Flag that stops a run which is not finished."""
_LENGTHS = ("--max-epoch", "--max-update", "--patience", "--stop-min-lr", STOPPING_FLAG)
_STARTING_FLAGS = ("--finetune-from-model", "--base-model")
_PATHS = ("", "--user-dir", "--save-dir", *_STARTING_FLAGS)  # "": DATA, which comes first
_SUBSETS = {"--train-subset": "train", "--valid-subset": "valid"}
_LOG = ("--log-interval", "--log-format", "--log-file", "--no-progress-bar", "--tensorboard-logdir", "--wandb-project")
_MACHINE = ("--num-workers", "--cpu", "--device-id", "--distributed-world-size")
_CHECKPOINTS = ("--no-epoch-checkpoints", "--keep-last-epochs", "--save-interval-updates", "--keep-interval-updates")
_RESETS = ("--reset-optimizer", "--reset-lr-scheduler", "--reset-meters", "--reset-dataloader")
MAY_DIFFER = frozenset((*_LENGTHS, *_PATHS, *_LOG, *_MACHINE, *_CHECKPOINTS, *_RESETS))
"""Flags that may change when a run is resumed. The contents behind the paths are compared by digests."""


Record = Dict[str, Any]
"""The content of :data:`RUN_FILE`."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """A run of ``fairseq-train`` in its own folder, ``save_dir``, which its arguments name as ``--save-dir``.

    The folder keeps the command line, the digests of the data and those of the checkpoints it started from, so that a
    later call resumes the same run or reports what differs.
    """

    arguments: Sequence[str]
    save_dir: Path

    @property
    def command_line(self) -> str:
        """The command line, quoted for a shell."""
        return shlex.join(["fairseq-train", *self.arguments])

    @property
    def is_finished(self) -> bool:
        """Whether the run with these arguments is finished."""
        return (self._record.get("status"), self._record.get("command")) == ("finished", self.command_line)

    def check(self) -> None:
        """Check that the folder is empty or holds this run.

        Raises UserError if nothing can be written to ``save_dir``, or it holds a run with other flags, with other data,
        or with another checkpoint to start from.
        """
        record = self._record
        if self._is_resumed and record:
            self._check_start(record["started_from"])
            self._check_data(record["data"])
        if not self.is_finished:
            check_output_folder(self.save_dir)
            if self._is_resumed and record:
                self._check_flags(record["command"])

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
            record = self._new_record()
            with self._recorded(record):
                status = run_logged(fairseq_command("train", self.arguments), log=self.save_dir / "train.log")
            if status != 0:
                raise SystemExit(status)
            if STOPPING_FLAG not in _by_flag(self.arguments):
                self._write({**record, "status": "finished"})

    @contextmanager
    def _recorded(self, record: Record) -> Iterator[None]:
        """Write a record. If the call saves no checkpoint, restore the former one."""
        former, saved = self._record, self._last_saved
        self._write(record)
        try:
            yield
        finally:
            if self._last_saved == saved:
                self._write(former)

    @property
    def _last_saved(self) -> Optional[Tuple[int, int]]:
        """Inode and time of the newest checkpoint, which change whenever one is saved."""
        path = newest_checkpoint(self.save_dir)
        return None if path is None else (path.stat().st_ino, path.stat().st_mtime_ns)

    @property
    def _record(self) -> Record:
        """The record in the folder, empty if there is none. Raises UserError if it is damaged."""
        path = self.save_dir / RUN_FILE
        if not path.is_file():
            return {}
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            shlex.split(record["command"])
            is_whole = {"status": str, "started_from": list, "data": dict}
            assert all(isinstance(record[name], kind) for name, kind in is_whole.items())
        except (AssertionError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise UserError(f"{path} is no record of a training: remove it") from error
        return record

    def _write(self, record: Record) -> None:
        """Replace the record; an empty one removes it."""
        if record:
            write_text(self.save_dir / RUN_FILE, f"{json.dumps(record, indent=1)}\n")
        else:
            (self.save_dir / RUN_FILE).unlink(missing_ok=True)

    def _new_record(self) -> Record:
        """The record of this call. A run that is resumed keeps the digests of its first call."""
        former = self._record if self._is_resumed else {}
        start = () if self._is_resumed else self._start
        return {
            "command": self.command_line,
            "status": "begun",
            "started_from": former.get("started_from", [file_digest(path) for path in start]),
            "data": former.get("data") or {name: file_digest(path) for name, path in self._data.items()},
            "version": fairseq_plugins.__version__,
        }

    @property
    def _start(self) -> List[Path]:
        """The checkpoints from whose weights the run starts. Empty if a file is missing."""
        given = _by_flag(self.arguments)
        values = [value for flag in _STARTING_FLAGS for value in given.get(flag, [])]
        paths = [Path(path) for value in values for path in split_paths(value)]
        return paths if all(path.is_file() for path in paths) else []

    @property
    def _is_resumed(self) -> bool:
        """Whether there is a run to resume. fairseq then does not read the checkpoints of the start again."""
        return self._record.get("status") == "finished" or self._last_saved is not None

    def _check_start(self, digests: Sequence[str]) -> None:
        remedy = "give another --save-dir, or remove that folder to begin anew"
        if len(self._start) > len(digests):
            raise UserError(f"{self.save_dir} holds a training that did not start from {self._start[-1]}: {remedy}")
        for path, digest in zip(self._start, digests):
            if digest != file_digest(path):
                raise UserError(f"{self.save_dir} holds a training that started from another {path}: {remedy}")

    @property
    def _data(self) -> Dict[str, Path]:
        """The dictionaries and binarised files that the run reads, by name."""
        given = _by_flag(self.arguments)
        subsets = [",".join(given.get(flag) or [default]) for flag, default in _SUBSETS.items()]
        names = "|".join(map(re.escape, ",".join(subsets).split(",")))
        is_read = re.compile(rf"dict\.(.+\.)?txt|({names})\d*(\..+)?\.(bin|idx)")
        (data, *_) = [*given[""], ""]
        folders = [data] if Path(data).is_dir() else split_paths(data)
        return {
            path.name if len(folders) == 1 else f"{number}/{path.name}": path
            for number, folder in enumerate(folders, start=1)
            for path in sorted(Path(folder).glob("*"))
            if is_read.fullmatch(path.name) and path.is_file()
        }

    def _check_data(self, former: Mapping[str, str]) -> None:
        data = self._data
        for name in dict.fromkeys([*former, *data]):
            if name not in data or former.get(name) != file_digest(data[name]):
                raise UserError(
                    f"{self.save_dir} holds a training on other data than those of today, which differ in {name}: give "
                    "another --save-dir, or remove that folder to begin anew"
                )

    def _check_flags(self, command: str) -> None:
        former, now = _by_flag(shlex.split(command)[1:]), _by_flag(self.arguments)
        for flag in dict.fromkeys([*former, *now]):
            if former.get(flag) != now.get(flag) and flag not in MAY_DIFFER:
                raise UserError(
                    f"{self.save_dir} holds a training with {_flag_text(flag, former)}, and this one has "
                    f"{_flag_text(flag, now)}: give another --save-dir, or remove {RUN_FILE} there to go on with "
                    "the flags of this one"
                )


def check_not_stopped_by_the_clock(arguments: Sequence[str]) -> None:
    """Reject ``--stop-time-hours`` where later steps need a finished run. Raises UserError if the flag is given."""
    if STOPPING_FLAG in _by_flag(arguments):
        raise UserError(
            f"{STOPPING_FLAG}: what follows would begin with a training that is to go on. Leave it out: a command that "
            "is interrupted goes on where it was"
        )


def _by_flag(arguments: Sequence[str]) -> Dict[str, List[str]]:
    """Values by flag. The last occurrence of a flag wins."""
    found: Dict[str, List[str]] = {"": []}
    flag = ""
    for word in arguments:
        if re.match("--|-[A-Za-z]$", word):  # no negative number
            flag, equals, value = word.partition("=")
            found[flag] = [value] if equals else []
        else:
            found[flag].append(word)
    return found


def _flag_text(flag: str, given: Mapping[str, Sequence[str]]) -> str:
    if flag not in given:
        return f"no {flag}"
    return " ".join([flag, *given[flag]])


# The runs of a table: systems with several seeds, and before them the runs that they start from.


@dataclass(frozen=True, kw_only=True)
class PlannedTraining:
    """A run of a system of a recipe with a seed.

    ``label`` names the system in tables. ``result`` is the path of the checkpoint that counts. ``begins_with`` are the
    runs whose models it starts from.
    """

    system: str
    seed: int
    label: str
    training: Training
    result: Path
    begins_with: Sequence["PlannedTraining"]

    @property
    def name(self) -> str:
        """Name of its folder."""
        return self.training.save_dir.name


class TrainingPlan:
    """Runs of a recipe, each in ``save_dir/SYSTEM-SEED``. Further arguments, ``more``, come last in each and win.

    A dash replaces a colon in the name of a system, because colons separate checkpoints.

    Attributes:
        trainings: all runs, each after those that it starts from.
    """

    def __init__(self, recipe: Recipe, *, data: str, save_dir: Path, more: Sequence[str] = ()) -> None:
        self.recipe, self.data, self.save_dir, self.more = recipe, data, save_dir, list(more)
        self._planned: Dict[Tuple[str, int], PlannedTraining] = {}

    @property
    def trainings(self) -> List[PlannedTraining]:
        return list(self._planned.values())

    def add(self, system: str, *, seed: int) -> PlannedTraining:
        """Plan a run of a system with a seed, and the runs that it starts from.

        A run that starts from one model has its seed. A run with seed s that starts from ``num`` models takes the s-th
        block of ``num`` seeds (1 to ``num`` for s = 1), so that no two runs share a model. Raises UserError if the
        recipe has no such system, a gate has no base in the recipe, the seed of a gate on several models is below 1, or
        a path of its base models contains a colon, which separates them.
        """
        if (system, seed) not in self._planned:
            base = self.recipe.system(system).base
            seeds = _seeds_of_models(system, num=base.num, seed=seed) if base is not None else ()
            begins_with = [self.add(base.system, seed=one) for one in seeds] if base is not None else []
            self._planned[system, seed] = self._plan(system, seed=seed, begins_with=begins_with)
        return self._planned[system, seed]

    def _plan(self, system: str, *, seed: int, begins_with: Sequence[PlannedTraining]) -> PlannedTraining:
        save_dir = self.save_dir / f"{system}-{seed}".replace(":", "-")
        base = self.recipe.system(system).base
        checkpoints = [str(planned.result) for planned in begins_with]
        flags = [] if base is None else [f"--{base.flag}={':'.join(checkpoints)}"]
        if base is not None and base.flag == "base-model" and ":" in "".join(checkpoints):
            raise UserError(f"--save-dir {self.save_dir}: a colon parts base models, give a directory without")
        arguments = training_arguments(
            self.recipe, system, data=self.data, save_dir=str(save_dir), seed=seed, more=[*flags, *self.more]
        )
        return PlannedTraining(
            system=system,
            seed=seed,
            label=self.recipe.label(system),
            training=Training(arguments=arguments, save_dir=save_dir),
            result=save_dir / f"checkpoint_{self.recipe.system(system).result}.pt",
            begins_with=begins_with,
        )


def _seeds_of_models(system: str, *, num: int, seed: int) -> Sequence[int]:
    """Seeds of the ``num`` models that a run starts from."""
    if num == 1:
        return [seed]
    if seed < 1:
        raise UserError(f"--seeds {seed}: {system} begins with {num} models, whose seeds count from 1: give 1 or more")
    return range((seed - 1) * num + 1, seed * num + 1)
