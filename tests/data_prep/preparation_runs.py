"""Runs of the preparation in this process or in a shell, and the text that fairseq reads from its results."""

import contextlib
import io
import logging
import os
import shutil
import subprocess
import sysconfig
import tempfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from paths import ROOT
from preparation import steps
from preparation.corpus import Corpus, parse_options
from preparation.lines import load_tokenizer, split_words
from preparation.main import main
from preparation.sources import Text

PATH = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])  # the environment may not be activated
FAIRSEQ_PREPROCESS = shutil.which("fairseq-preprocess", path=PATH)
run_fairseq_in_shell = steps.run_fairseq


def run_fairseq_here(command: list[str], folder: Path, log: Path, *, num_files: int) -> None:
    """fairseq-preprocess in this process, which has imported it already. A fake script on PATH runs in a shell."""
    if shutil.which("fairseq-preprocess") != FAIRSEQ_PREPROCESS:
        return run_fairseq_in_shell(command, folder, log, num_files=num_files)
    from fairseq.options import get_preprocessing_parser
    from fairseq_cli import preprocess

    handlers, level = list(preprocess.logger.handlers), preprocess.logger.level
    preprocess.logger.setLevel(logging.INFO)
    try:
        with contextlib.chdir(folder):
            preprocess.main(get_preprocessing_parser().parse_args(command[1:]))
    finally:
        preprocess.logger.setLevel(level)
        for handler in set(preprocess.logger.handlers) - set(handlers):
            handler.close()
            preprocess.logger.removeHandler(handler)
    shutil.copyfile(folder / "preprocess.log", log)


def prepare(corpus: str, *options: object, cwd: Path, check: bool = False, **env: str) -> subprocess.CompletedProcess:
    """Prepare a corpus in this process. ``check`` demands the counts of the real corpus."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, {"NO_PROXY": "*", "EXPECTED_COUNTS": "check" if check else "skip", **env}),
        mock.patch.object(steps, "run_fairseq", run_fairseq_here),
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        try:
            status = main([corpus, *map(str, options)])
        except SystemExit as end:
            status = end.code
    return subprocess.CompletedProcess(["prepare.sh", corpus], status, stdout.getvalue(), stderr.getvalue())


def prepare_in_shell(corpus: str, *options: object, cwd: Path, **env: str) -> subprocess.CompletedProcess:
    """Run a corpus' ``prepare.sh``."""
    return subprocess.run(
        ["bash", str(ROOT / "data-prep" / corpus / "prepare.sh"), *map(str, options)],
        check=False,
        cwd=cwd,
        env={**os.environ, "NO_PROXY": "*", "EXPECTED_COUNTS": "skip", **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def succeed(corpus: str, *options: object, **kwargs) -> subprocess.CompletedProcess:
    """A run that must succeed."""
    done = prepare(corpus, *options, **kwargs)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def fail(corpus: str, *options: object, cwd: Path, **kwargs) -> str:
    """The error line of a run that must fail with exactly one, its last line, and leave nothing incomplete."""
    before = set(cwd.glob("data-bin/*"))
    done = prepare(corpus, *options, cwd=cwd, **kwargs)
    assert done.returncode == 2, done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and done.stderr.splitlines()[-1] == errors[0]
    assert set(cwd.glob("data-bin/*")) == before
    assert not list(cwd.rglob("*.part")) and not list(cwd.rglob("*.partial-*"))
    return errors[0]


def options_of(corpus: Corpus, *arguments: object, check: bool = False) -> Namespace:
    """The options of a command line."""
    with mock.patch.dict(os.environ, {"EXPECTED_COUNTS": "check" if check else "skip"}):
        return parse_options(corpus, list(map(str, arguments)))


def moses(language: str, lowercase: bool) -> Callable[[str], str]:
    """A function from a raw line to Moses' tokens, joined by spaces."""
    words = load_tokenizer("moses", language=language, folder=Path())
    return lambda line: " ".join(split_words(line, words, "lower tokens" if lowercase else "kept"))


def read_all(corpus: Corpus, folder: Path, options: Namespace) -> dict[str, list[tuple[str, ...]]]:
    """All rows that a corpus reads from a folder, by split."""
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
        files = {name: Text(path) for name, path in corpus.find(folder, options).items()}
        return {split: list(rows) for split, rows in corpus.read(files, options, Path(scratch)).items()}


def binarised_text(folder: Path, split: str, dictionary: str = "dict.txt") -> list[list[str]]:
    """Lines that fairseq reads of a split, with end marks."""
    from fairseq.data import Dictionary
    from fairseq.data.indexed_dataset import make_dataset

    words = Dictionary.load(str(folder / dictionary))
    return [[words[index] for index in line.tolist()] for line in make_dataset(str(folder / split), impl="mmap")]


def binarised(folder: Path, split: str, pair: str, language: str) -> list[str]:
    """Lines of one side of a pair, without end marks."""
    lines = binarised_text(folder, f"{split}.{pair}.{language}", f"dict.{language}.txt")
    assert all(line[-1] == "</s>" for line in lines)
    return [" ".join(line[:-1]) for line in lines]


def words_of(dictionary: Path) -> set[str]:
    """The words of a dictionary's rows."""
    return {line.split(" ")[0] for line in dictionary.read_text().splitlines()}


def known(lines: list[list[str]], dictionary: Path) -> list[str]:
    """Lines of pieces as fairseq reads them: those that the dictionary lacks are unknown."""
    words = words_of(dictionary)
    return [" ".join(piece if piece in words else "<unk>" for piece in line) for line in lines]


def joined(line: str) -> str:
    """Join the pieces of subword-nmt in a line."""
    return (line + " ").replace("@@ ", "").strip()


def snapshot(folder: Path) -> dict[str, bytes]:
    """All files below a folder with their contents."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
