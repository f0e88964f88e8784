"""A training in a folder of its own, which is gone on with where it was stopped."""

import re
import shlex
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from fairseq.utils import split_paths
from filelock import FileLock, Timeout

from fairseq_plugins.data.text import file_digest
from fairseq_plugins.options import check_output_folder, write_text
from fairseq_plugins.processes import fairseq_command, run_logged, training_environment
from fairseq_plugins.recipes.recipe import Recipe, training_arguments

BEGUN_FILE = "begun.txt"
"""In the folder of a training that has left something to go on with: the command line by which it did so."""
FINISHED_FILE = "trained.txt"
"""In the folder of a training that ended by itself: its command line."""
START_FILE = "started_from.txt"
"""In the folder of a training that began with the weights of checkpoints: the digest of each file, a line each."""
DATA_FILE = "data.txt"
"""In the folder of a training: digest and name of each file of data that it reads, as ``sha256sum`` has them."""

LOCK_FILE = ".recipe.lock"
"""In the folder of a training: what is locked by the call that trains."""

STOPPING_FLAG = "--stop-time-hours"
"""Ends a training that is to go on."""
_LENGTHS = ("--max-epoch", "--max-update", "--patience", "--stop-min-lr", STOPPING_FLAG)
_STARTING_FLAGS = ("--finetune-from-model", "--base-model")
_PATHS = ("", "--user-dir", "--save-dir", *_STARTING_FLAGS)  # "": DATA, which comes first
_SUBSETS = {"--train-subset": "train", "--valid-subset": "valid"}
_LOG = ("--log-interval", "--log-format", "--log-file", "--no-progress-bar", "--tensorboard-logdir", "--wandb-project")
_MACHINE = ("--num-workers", "--cpu", "--device-id", "--distributed-world-size")
_KEPT = ("--no-epoch-checkpoints", "--keep-last-epochs", "--save-interval-updates", "--keep-interval-updates")
_RESETS = ("--reset-optimizer", "--reset-lr-scheduler", "--reset-meters", "--reset-dataloader")
MAY_DIFFER = frozenset((*_LENGTHS, *_PATHS, *_LOG, *_MACHINE, *_KEPT, *_RESETS))
"""Flags with whose other values a training goes on; what the paths hold is compared where it is read."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """What is trained, and where to.

    Attributes:
        arguments: of ``fairseq-train``, ``--save-dir`` among them.
        save_dir: directory for checkpoints and ``train.log``.
    """

    arguments: Sequence[str]
    save_dir: Path

    @property
    def command_line(self) -> str:
        """What a shell reads."""
        return shlex.join(["fairseq-train", *self.arguments])

    @property
    def is_finished(self) -> bool:
        """Whether it ended by itself, with these arguments."""
        return self._read(FINISHED_FILE) == self.command_line

    def check(self) -> None:
        """Refuse a folder that holds something else than this training.

        Raises:
            ValueError: if nothing can be written to ``save_dir``, a training with other flags is there, or one that
                began with another checkpoint's weights, or has read other data.
        """
        self._check_start()
        self._check_data()
        if not self.is_finished:
            check_output_folder(self.save_dir)
            self._check_flags()

    def run(self) -> None:
        """Train, or go on where an earlier call was stopped; the output is shown and appended to ``train.log``.

        A training that is finished is left as it is.

        Raises:
            ValueError: as :meth:`check` does, or if another call trains there.
            SystemExit: with the status of ``fairseq-train`` where it fails.
        """
        self.check()
        if self.is_finished:
            return
        self.save_dir.mkdir(parents=True, exist_ok=True)
        with self._locked():
            self._keep_start()
            self._keep_data()
            command, environment = fairseq_command("train", self.arguments), training_environment()
            with self._noted():
                status = run_logged(command, log=self.save_dir / "train.log", environment=environment)
            if status != 0:
                raise SystemExit(status)
            if STOPPING_FLAG not in _by_flag(self.arguments):
                self._write(FINISHED_FILE, self.command_line)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """What is noted here is of one call at a time; the training itself locks the folder only once it has begun.

        A file system without locks is left unlocked; the training tells of it.
        """
        lock = FileLock(self.save_dir / LOCK_FILE)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise ValueError(
                f"another call trains to --save-dir {self.save_dir}: wait until it has ended, end it, or give another "
                "--save-dir"
            ) from error
        except (NotImplementedError, OSError):
            pass
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Note the command line; where it leaves nothing to go on with, what was noted before stays."""
        former, saved = self._read(BEGUN_FILE), self._last_saved
        self._write(BEGUN_FILE, self.command_line)
        try:
            yield
        finally:
            if self._last_saved == saved:
                self._write(BEGUN_FILE, former)

    @property
    def _last_saved(self) -> Optional[Tuple[int, int]]:
        """What tells a checkpoint from that of before."""
        path = self.save_dir / "checkpoint_last.pt"
        return (path.stat().st_ino, path.stat().st_mtime_ns) if path.is_file() else None

    def _read(self, name: str) -> str:
        """A command line that an earlier call wrote, or nothing."""
        path = self.save_dir / name
        return path.read_text(encoding="utf-8", errors="replace").rstrip("\n") if path.is_file() else ""

    def _write(self, name: str, command_line: str) -> None:
        """Keep a command line, or, of nothing, no file."""
        if command_line:
            write_text(self.save_dir / name, f"{command_line}\n")
        else:
            (self.save_dir / name).unlink(missing_ok=True)

    @property
    def _start(self) -> List[Path]:
        """The checkpoints whose weights it begins with, if all of the files are there."""
        given = _by_flag(self.arguments)
        values = [value for flag in _STARTING_FLAGS for value in given.get(flag, [])]
        paths = [Path(path) for value in values for path in split_paths(value)]
        return paths if all(path.is_file() for path in paths) else []

    @property
    def _goes_on(self) -> bool:
        """Whether there is a training to go on with, of which fairseq does not read the start again."""
        return bool(self._read(FINISHED_FILE)) or self._last_saved is not None

    def _check_start(self) -> None:
        start, kept = self._start, self.save_dir / START_FILE
        if not start or not self._goes_on or not kept.is_file():
            return
        for path, digest in zip(start, _lines(kept)):
            if digest != file_digest(path):
                raise ValueError(
                    f"{self.save_dir} holds a training that began with other weights than those in {path} today: give "
                    "another --save-dir, or remove that folder to begin anew"
                )

    def _keep_start(self) -> None:
        start = self._start
        if start and not self._goes_on:
            write_text(self.save_dir / START_FILE, "".join(f"{file_digest(path)}\n" for path in start))

    @property
    def _data(self) -> Dict[str, Path]:
        """The dictionaries and the binarised text that it reads, by name."""
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

    def _check_data(self) -> None:
        kept = self.save_dir / DATA_FILE
        if not self._goes_on or not kept.is_file():
            return
        former = {name: digest for digest, _, name in (line.partition("  ") for line in _lines(kept))}
        data = self._data
        for name in dict.fromkeys([*former, *data]):
            if name not in data or former.get(name) != file_digest(data[name]):
                raise ValueError(
                    f"{self.save_dir} holds a training on other data than those of today, which differ in {name}: give "
                    "another --save-dir, or remove that folder to begin anew"
                )

    def _keep_data(self) -> None:
        """Note the data, unless a training that is resumed has done so."""
        if not (self._goes_on and (self.save_dir / DATA_FILE).is_file()):
            lines = (f"{file_digest(path)}  {name}\n" for name, path in self._data.items())
            write_text(self.save_dir / DATA_FILE, "".join(lines))

    def _check_flags(self) -> None:
        if not self._goes_on:
            return
        names = [name for name in (BEGUN_FILE, FINISHED_FILE) if self._read(name)]
        if not names:  # a training of fairseq-train's own
            return
        try:
            words = shlex.split(self._read(names[0]))
        except ValueError as error:
            raise ValueError(f"{self.save_dir / names[0]} holds no command line: remove it") from error
        former, now = _by_flag(words[1:]), _by_flag(self.arguments)
        for flag in dict.fromkeys([*former, *now]):
            if former.get(flag) != now.get(flag) and flag not in MAY_DIFFER:
                raise ValueError(
                    f"{self.save_dir} holds a training with {_told(flag, former)}, and this one has "
                    f"{_told(flag, now)}: give another --save-dir, or remove {' and '.join(names)} there to go on with "
                    "the flags of this one"
                )


def _lines(path: Path) -> List[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def check_not_stopped_by_the_clock(arguments: Sequence[str]) -> None:
    """Refuse the flag that ends a training which is to go on, where something else is made of what it leaves.

    Raises:
        ValueError: if it is there.
    """
    if STOPPING_FLAG in _by_flag(arguments):
        raise ValueError(
            f"{STOPPING_FLAG}: what follows would begin with a training that is to go on. Leave it out: a command that "
            "is interrupted goes on where it was"
        )


def _by_flag(arguments: Sequence[str]) -> Dict[str, List[str]]:
    """The values of each flag; of one that is given again they are the later ones."""
    found: Dict[str, List[str]] = {"": []}
    flag = ""
    for word in arguments:
        if re.match("--|-[A-Za-z]$", word):  # no negative number
            flag, equals, value = word.partition("=")
            found[flag] = [value] if equals else []
        else:
            found[flag].append(word)
    return found


def _told(flag: str, given: Mapping[str, Sequence[str]]) -> str:
    if flag not in given:
        return f"no {flag}"
    return " ".join([flag, *given[flag]])


# Which trainings make a table: systems with several seeds, and before them those that they begin with.


@dataclass(frozen=True, kw_only=True)
class PlannedTraining:
    """A system with a seed.

    Attributes:
        system: its name in the recipe.
        seed: of the training.
        label: how tables name it.
        training: in a folder of its own.
        result: the checkpoint that it is for.
        begins_with: the trainings whose models it begins with.
    """

    system: str
    seed: int
    label: str
    training: Training
    result: Path
    begins_with: Sequence["PlannedTraining"]

    @property
    def name(self) -> str:
        """Of its folder."""
        return self.training.save_dir.name


class TrainingPlan:
    """Trainings of a recipe, each in ``save_dir/SYSTEM-SEED``, with a dash for a colon, which would part checkpoints.

    Args:
        recipe: whose systems are trained.
        data: directory that data-prep wrote.
        save_dir: directory for a folder of each training.
        more: arguments of every training, which come last and win.

    Attributes:
        trainings: all of them, each after those that it begins with.
    """

    def __init__(self, recipe: Recipe, *, data: str, save_dir: Path, more: Sequence[str] = ()) -> None:
        self.recipe, self.data, self.save_dir, self.more = recipe, data, save_dir, list(more)
        self._planned: Dict[Tuple[str, int], PlannedTraining] = {}

    @property
    def trainings(self) -> List[PlannedTraining]:
        return list(self._planned.values())

    def add(self, system: str, *, seed: int) -> PlannedTraining:
        """Plan a system with a seed.

        What it begins with has the same seed; of ``num`` models, those of seed 1 have 1 to ``num``, those of seed 2 the
        next ``num``, and so on, so that no two seeds share one.

        Raises:
            ValueError: if the recipe has no such system, a gate has no base in the recipe, the seed of one on several
                models is below 1, or a path of its base models has a colon, which parts them.
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
            raise ValueError(f"--save-dir {self.save_dir}: a colon parts base models, give a directory without")
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
    """Those of the ``num`` models that a system begins with."""
    if num == 1:
        return [seed]
    if seed < 1:
        raise ValueError(f"--seeds {seed}: {system} begins with {num} models, whose seeds count from 1: give 1 or more")
    return range((seed - 1) * num + 1, seed * num + 1)
