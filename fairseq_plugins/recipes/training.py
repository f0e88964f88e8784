"""A training in a folder of its own, which is gone on with where it was stopped."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence

from fairseq_plugins.data.file_digest import file_digest
from fairseq_plugins.flags.output_paths import check_output_folder
from fairseq_plugins.flags.written_file import write_text
from fairseq_plugins.programs.allocator import training_environment
from fairseq_plugins.programs.host_program import host_command
from fairseq_plugins.programs.logged_process import run_logged

FINISHED_FILE = "trained.txt"
"""In the folder of a training that ended by itself: its command line."""
START_FILE = "started_from.txt"
"""In the folder of a training that began with the weights of a checkpoint: the digest of that file."""

STOPPING_FLAG = "--stop-time-hours"
"""Ends a training that is to go on."""
_LENGTHS = ("--max-epoch", "--max-update", "--patience", "--stop-min-lr", STOPPING_FLAG)
_STARTING_FLAG = "--finetune-from-model"
_PATHS = ("", "--user-dir", "--save-dir", "--base-model", _STARTING_FLAG)  # "": DATA, which comes first
_RUN = ("--log-interval", "--log-format", "--num-workers", "--cpu")
MAY_DIFFER = frozenset((*_LENGTHS, *_PATHS, *_RUN))
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
        return self._finished == self.command_line

    @property
    def _finished(self) -> str:
        """The command line that ended by itself, or nothing."""
        path = self.save_dir / FINISHED_FILE
        return path.read_text(encoding="utf-8").rstrip("\n") if path.is_file() else ""

    def run(self) -> None:
        """Train, or go on where an earlier call was stopped; the output is shown and appended to ``train.log``.

        A training that is finished is left as it is.

        Raises:
            ValueError: if nothing can be written to ``save_dir``, a training with other flags ended there, or one
                there began with another checkpoint's weights.
            SystemExit: with the status of ``fairseq-train`` where it fails.
        """
        check_output_folder(self.save_dir)
        self._check_start()
        if self.is_finished:
            print(
                f"{self.save_dir} is trained; to train on, remove {FINISHED_FILE} there, or give a larger --max-epoch"
            )
            return
        self._check_flags()
        self.save_dir.mkdir(parents=True, exist_ok=True)
        self._keep_start()
        command, environment = host_command("train", self.arguments), training_environment()
        status = run_logged(command, log=self.save_dir / "train.log", environment=environment)
        if status != 0:
            raise SystemExit(status)
        if STOPPING_FLAG not in _by_flag(self.arguments):
            write_text(self.save_dir / FINISHED_FILE, f"{self.command_line}\n")

    @property
    def _start(self) -> Optional[Path]:
        """The checkpoint whose weights it begins with, if there is one and the file is there."""
        given = _by_flag(self.arguments).get(_STARTING_FLAG)
        return Path(given[0]) if given and Path(given[0]).is_file() else None

    @property
    def _goes_on(self) -> bool:
        """Whether there is a training to go on with, of which the host does not read the start again."""
        return bool(self._finished) or (self.save_dir / "checkpoint_last.pt").exists()

    def _check_start(self) -> None:
        start, kept = self._start, self.save_dir / START_FILE
        if start is None or not self._goes_on or not kept.is_file():
            return
        if kept.read_text(encoding="utf-8").strip() != file_digest(start):
            raise ValueError(
                f"{self.save_dir} holds a training that began with other weights than those in {start} today: give "
                "another --save-dir, or remove that folder to begin anew"
            )

    def _keep_start(self) -> None:
        start = self._start
        if start is not None and not self._goes_on:
            write_text(self.save_dir / START_FILE, f"{file_digest(start)}\n")

    def _check_flags(self) -> None:
        if not self._finished:
            return
        try:
            finished = shlex.split(self._finished)
        except ValueError as error:
            raise ValueError(f"{self.save_dir / FINISHED_FILE} holds no command line: remove it") from error
        former, now = _by_flag(finished[1:]), _by_flag(self.arguments)
        for flag in dict.fromkeys([*former, *now]):
            if former.get(flag) != now.get(flag) and flag not in MAY_DIFFER:
                raise ValueError(
                    f"{self.save_dir} holds a training that ended with {_told(flag, former)}, and this one has "
                    f"{_told(flag, now)}: give another --save-dir"
                )


def _by_flag(arguments: Sequence[str]) -> Dict[str, List[str]]:
    """The values of each flag; of one that is given again they are the later ones."""
    found: Dict[str, List[str]] = {"": []}
    flag = ""
    for word in arguments:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            found[flag] = [value] if equals else []
        else:
            found[flag].append(word)
    return found


def _told(flag: str, given: Mapping[str, Sequence[str]]) -> str:
    if flag not in given:
        return f"no {flag}"
    return " ".join([flag, *given[flag]])
