"""Decode a split by ``fairseq-generate``, once for the same models, data and flags."""

import fcntl
import os
import re
import shlex
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Dict, Iterator, List, NoReturn, Optional, Sequence

from fairseq import options

import fairseq_plugins
from fairseq_plugins.console import ProgramFailed
from fairseq_plugins.data.pairs import Languages, check_split
from fairseq_plugins.evaluation.checkpoints import translation_languages
from fairseq_plugins.files import file_digest, read_json, replaced_file, write_json
from fairseq_plugins.options import UserError
from fairseq_plugins.own_parts import PACKAGE, user_dir
from fairseq_plugins.processes import run_fairseq

GENERATED_FILE = "generate.txt"
"""File in the folder of a decoding: the output of ``fairseq-generate``."""

HYPOTHESES_FILE = "hypotheses.txt"
"""File beside it: the last scored text, a sentence a line."""

SCORED_FILES = (HYPOTHESES_FILE, "scores.txt", "rouge.txt")
"""Files beside it of commands that score it."""

RUN_FILE = "run.json"
"""File beside it: the record of the decoding.

It has the ``command`` line, the digests of the ``models`` by path, of the ``data`` files by name and of the user's own
``parts`` by path in their folder, ``flags`` without model and data, ``max_tokens``, the ``languages``, and the
``version`` of the package.
"""

Record = Dict[str, Any]
"""The content of :data:`RUN_FILE`."""

_DECIDING = {"data": dict, "parts": dict, "flags": list, "max_tokens": int, "languages": list, "version": str}
"""Fields of a record that decide what is written, beside the digests of the models. Folders are left out: files may
move."""

_WRONG_FLAGS = re.compile(r"^(?:Assertion|Value)Error: (?=.*(?:--|max_len))(.+)\Z", re.MULTILINE)
"""Last line of ``fairseq-generate`` when fairseq itself refuses the value of a flag."""

IN_ONE_PROCESS = ("--num-workers", "0")
"""Flags of every decoding, before the user's. A data loading process takes up to five seconds to end.

They do not change the output, so the record lacks them.
"""


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """A split to decode, with all options.

    Attributes:
        data: folder of sentence pairs.
        models: checkpoints; several are an ensemble.
        split: such as "test".
        out: folder for ``generate.txt``, the output, ``generate.log`` and ``run.json``.
        beam: number of hypotheses.
        max_tokens: of a batch.
        subwords: the kind of subwords to join, a value of ``--remove-bpe``.
        flags: further flags of ``fairseq-generate``.
    """

    data: Path
    models: Sequence[str]
    split: str
    out: Path
    beam: int = 5
    max_tokens: int = 4000
    subwords: str = "subword_nmt"
    flags: Sequence[str] = ()

    @property
    def generated(self) -> Path:
        """The output of ``fairseq-generate``, with subwords joined."""
        return self.out / GENERATED_FILE

    @cached_property
    def languages(self) -> Languages:
        """Source and target language of the models. Raises UserError as :func:`translation_languages` does."""
        return translation_languages(self.models, self.data, self.split)

    @property
    def _deciding_flags(self) -> List[str]:
        own = ["--gen-subset", self.split, "--beam", str(self.beam), f"--remove-bpe={self.subwords}"]
        return [*own, *self.flags]

    @property
    def arguments(self) -> List[str]:
        """Arguments of ``fairseq-generate``."""
        source, target = self.languages
        models = ["--user-dir", user_dir(), "--path", os.pathsep.join(self.models)]
        languages = ["--source-lang", source, "--target-lang", target]
        return [str(self.data), *models, *languages, "--max-tokens", str(self.max_tokens), *self._deciding_flags]

    def check(self) -> None:
        """Check models, data and flags before any work.

        Raises UserError if a model, the data or the split is missing, a model is damaged or a language model, the
        models have several directions, ``fairseq-generate`` has no such flag or value, or ``out`` is the folder of a
        training.
        """
        check_generation_flags(self.arguments)
        check_split(self.data, self.split, self.languages)
        decoding_record(self.out)

    @property
    def is_done(self) -> bool:
        """Whether the output of these models, data and flags exists."""
        found = decoding_record(self.out)
        is_whole = self.generated.is_file() and self.generated.stat().st_size > 0
        return found is not None and is_whole and _deciding(found) == _deciding(self._new_record())

    def run(self) -> None:
        """Decode after :meth:`check`, unless it was done before. The output is written under another name and renamed.

        A second process that writes to the same folder waits. Raises UserError if ``fairseq-generate`` reports a user
        error or refuses a flag. Raises ProgramFailed if ``fairseq-generate`` fails in another way.
        """
        if self.is_done:
            return
        self.out.mkdir(parents=True, exist_ok=True)
        with self._locked():
            if not self.is_done:  # by the process that this one waited for
                self._run()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the folder itself. The lock ends with the process. File systems without locks get none."""
        folder = os.open(self.out, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another decoding that writes to {self.out}", file=sys.stderr, flush=True)
            fcntl.flock(folder, fcntl.LOCK_EX)
        except OSError:
            pass
        try:
            yield
        finally:
            os.close(folder)

    def _run(self) -> None:
        record = self._new_record()  # of the files as they are before they are read
        log = self.out / "generate.log"
        print(f"== decode {self.split} (log: {log})", file=sys.stderr, flush=True)
        for left in self.out.glob(f".{self.generated.stem}.*{self.generated.suffix}"):  # left by a killed decoding
            left.unlink(missing_ok=True)
        try:
            with replaced_file(self.generated) as aside:
                run_fairseq("generate", [*IN_ONE_PROCESS, *self.arguments], log=log, output=aside)
                for earlier in (GENERATED_FILE, *SCORED_FILES):  # they must never stand beside the new record
                    (self.out / earlier).unlink(missing_ok=True)
                write_json(self.out / RUN_FILE, record)
        except ProgramFailed as failure:
            if wrong := _WRONG_FLAGS.search(str(failure)):
                raise UserError(f"flags of fairseq-generate: {wrong[1]} (log: {log})") from failure
            raise

    def _new_record(self) -> Record:
        """Digests of all files that are read, and the flags: they determine the output."""
        values = [word.partition("=")[2] if word.startswith("-") else word for word in self.flags]
        given = [path for path in map(Path, filter(None, values)) if path.is_file()]  # such as --lm-path
        of_data = [*sorted(self.data.glob("dict.*.txt")), *sorted(self.data.glob(f"{self.split}.*"))]
        read = [*filter(Path.is_file, of_data), *given]
        parts = Path(user_dir())
        code = sorted(parts.rglob("*.py")) if parts != PACKAGE else []
        return {
            "command": shlex.join(["fairseq-generate", *self.arguments]),
            "models": {model: file_digest(Path(model)) for model in self.models},
            "data": {path.name: file_digest(path) for path in read},
            "parts": {str(path.relative_to(parts)): file_digest(path) for path in code},
            "flags": self._deciding_flags,
            "max_tokens": self.max_tokens,
            "languages": list(self.languages),
            "version": fairseq_plugins.__version__,
        }


def check_generation_flags(arguments: Sequence[str]) -> None:
    """Parse the arguments of ``fairseq-generate`` as it does, before a process starts."""
    parser = options.get_generation_parser()
    parser.add_argument("--arch", default="wav2vec2")  # as in fairseq-generate, for tasks that read its flags

    def refuse(text: str) -> NoReturn:
        raise UserError(f"flags of fairseq-generate: {' '.join(text.removeprefix(f'{parser.prog}: error: ').split())}")

    vars(parser).update(error=refuse, exit=lambda status=0, message="": refuse(message))
    at = arguments.index("--user-dir")  # the package is imported already
    options.parse_args_and_arch(parser, [*arguments[:at], *arguments[at + 2 :]])


def decoding_record(folder: Path) -> Optional[Record]:
    """The record of the decoding in a folder; None if there is none. Raises UserError if it is damaged."""
    path = folder / RUN_FILE
    if not path.is_file():
        return None
    fields = {"command": str, "models": dict, **_DECIDING}
    return read_json(path, fields, wrong="is no record of a decoding: give another folder, or remove it if damaged")


def _deciding(record: Record) -> Sequence[Any]:
    models = [(Path(path).name, digest) for path, digest in record["models"].items()]
    return [models, *(record[name] for name in _DECIDING)]


def check_decoded_by(checkpoint: Path, folder: Path) -> None:
    """Check that a checkpoint alone wrote the decoding in a folder. A folder without a record passes.

    If the checkpoint does not exist any more, only its name is compared, because its epoch is not known.
    """
    record = decoding_record(folder)
    if record is None:
        return
    if not checkpoint.exists():
        if [Path(model).name for model in record["models"]] != [checkpoint.name]:
            raise UserError(
                f"{folder} was not decoded by a {checkpoint.name} alone, and {checkpoint} is not there any more: fetch "
                "it, or what it wrote"
            )
    elif list(record["models"].values()) != [file_digest(checkpoint)]:
        raise UserError(
            f"{folder} was not decoded by {checkpoint} alone, or it was before the training went on: decode with "
            f"--path {checkpoint} --out {folder}, and give runs of one --save-dir one checkpoint"
        )
