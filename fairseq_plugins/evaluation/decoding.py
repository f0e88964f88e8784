"""A split decoded by ``fairseq-generate``, once for the same models, data and flags."""

import hashlib
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import List, Sequence

import fairseq_plugins
from fairseq_plugins.evaluation.binarised_pairs import target_language
from fairseq_plugins.evaluation.checkpoints import check_checkpoints
from fairseq_plugins.flags.command import ProgramFailed

USER_DIR = Path(fairseq_plugins.__file__).resolve().parent
NUM_TOLD_LINES = 5


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """What is decoded, and where to.

    Attributes:
        data: directory of sentence pairs.
        models: checkpoints; several are an ensemble.
        split: such as "test".
        out: folder for ``generate.txt``, the output, and ``generate.log``.
        flags: more of ``fairseq-generate``.
    """

    data: Path
    models: Sequence[str]
    split: str
    out: Path
    flags: Sequence[str] = ()

    @property
    def generated(self) -> Path:
        """The output of ``fairseq-generate``, with subwords joined."""
        return self.out / "generate.txt"

    @property
    def arguments(self) -> List[str]:
        """Of ``fairseq-generate``; its beam, its batches and the kind of subwords are taken from the environment."""
        chosen = {
            "--user-dir": str(USER_DIR),
            "--path": os.pathsep.join(self.models),
            "--gen-subset": self.split,
            "--beam": os.environ.get("BEAM", "5"),
            "--max-tokens": os.environ.get("MAX_TOKENS", "4000"),
        }
        subwords = f"--remove-bpe={os.environ.get('BPE', 'subword_nmt')}"
        return [str(self.data), *(part for pair in chosen.items() for part in pair), subwords, *self.flags]

    def check(self) -> None:
        """Refuse what could not be decoded.

        Raises:
            ValueError: if a model, the data or the split is missing.
        """
        check_checkpoints(self.models)
        target_language(self.data, self.split)

    def run(self) -> None:
        """Decode, unless that was done; the output is written aside and renamed.

        Raises:
            ValueError: as :meth:`check`.
            ProgramFailed: if ``fairseq-generate`` fails.
        """
        self.check()
        asked_file, log = self.out / "asked.txt", self.out / "generate.log"
        asked = self._describe()
        if _holds(self.generated) and _holds(asked_file) and asked_file.read_text(encoding="utf-8") == asked:
            return
        print(f"== decode {self.split} (log: {log})", file=sys.stderr, flush=True)
        self.out.mkdir(parents=True, exist_ok=True)
        aside = self.out / "generate.txt.tmp"
        for path in (self.generated, aside):  # what a killed run still writes is lost with the name
            path.unlink(missing_ok=True)
        with aside.open("wb") as output, log.open("wb") as errors:
            command = [sys.executable, "-m", "fairseq_cli.generate", *self.arguments]
            ended = subprocess.run(command, stdout=output, stderr=errors)
        if ended.returncode != 0:
            told = log.read_text(encoding="utf-8", errors="replace").splitlines()
            raise ProgramFailed("\n".join(told[-NUM_TOLD_LINES:]))
        asked_file.write_text(asked, encoding="utf-8")
        aside.replace(self.generated)

    def _describe(self) -> str:
        """What decides the output: the checksums of all that is read, and the arguments."""
        read = [
            *map(Path, self.models),
            *sorted(self.data.glob("dict.*.txt")),
            *sorted(self.data.glob(f"{self.split}.*")),
        ]
        sums = [f"{_checksum(path)}  {path}" for path in read]
        return "\n".join([*sums, shlex.join(self.arguments), ""])


def _holds(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
