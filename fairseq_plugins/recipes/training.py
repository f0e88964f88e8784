"""A training in a folder of its own, which is gone on with where it was stopped."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

from fairseq_plugins.flags.output_paths import check_output_folder
from fairseq_plugins.flags.written_file import write_text
from fairseq_plugins.programs.allocator import training_environment
from fairseq_plugins.programs.host_program import host_command
from fairseq_plugins.programs.logged_process import run_logged

FINISHED_FILE = "trained.txt"
"""In the folder of a training that ended by itself: its command line."""


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
        path = self.save_dir / FINISHED_FILE
        return path.is_file() and path.read_text(encoding="utf-8") == f"{self.command_line}\n"

    def run(self) -> None:
        """Train, or go on where an earlier call was stopped; the output is shown and appended to ``train.log``.

        Raises:
            ValueError: if nothing can be written to ``save_dir``.
            SystemExit: with the status of ``fairseq-train`` where it fails.
        """
        check_output_folder(self.save_dir)
        self.save_dir.mkdir(parents=True, exist_ok=True)
        command, environment = host_command("train", self.arguments), training_environment()
        status = run_logged(command, log=self.save_dir / "train.log", environment=environment)
        if status != 0:
            raise SystemExit(status)
        write_text(self.save_dir / FINISHED_FILE, f"{self.command_line}\n")
