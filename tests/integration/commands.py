"""Runs the real commands on a small corpus."""

import os
import re
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Iterator, List, Optional, Sequence, Tuple

import torch
from paths import PLUGINS

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
TASK = "StatefulLanguageModelingTask"
MODEL_FLAGS = ["--arch", "lstm_lm_doc", "--embed-dim", "12", "--hidden-sizes", "16 16"]
TRAINING_FLAGS = [
    *("--user-dir", str(PLUGINS), "--task", "stateful_lm", "--batch-size", "4", "--batch-size-valid", "2"),
    *("--tokens-per-sample", "20", "--window-lengths", "random", "--cpu"),
    *("--criterion", "regularized_cross_entropy", "--balance", "0.001"),
    *("--activation-regularization", "2", "--temporal-activation-regularization", "1"),
    *("--lr", "10", "--clip-norm", "0.25", "--log-format", "simple", "--log-interval", "10"),
]
NT_ASGD = ["--optimizer", "nt_asgd", "--nonmonotone-interval", "0"]
AVERAGED = ["--averaging", "immediate", "--nonmonotone-interval", "100"]
COMPARABLE = [
    *(flag for name in ("embedding", "input", "hidden", "output", "weight") for flag in (f"--dropout-{name}", "0")),
    *("--latent-dropout", "0", *AVERAGED, "--balance", "0", "--lr", "1", "--no-epoch-checkpoints"),
]
"""Flags with which two processes train as one does: the balance term depends on the rows of one process."""


TIMEOUT_SECONDS = 300


def command(module: str, *args) -> List[str]:
    """``python -m module args``."""
    return [shutil.which("python", path=ENVIRONMENT["PATH"]), "-m", module, *map(str, args)]


def run(module: str, *args, cwd: Optional[Path] = None, typed: str = "") -> subprocess.CompletedProcess:
    """Run a command to its end, with its output as text."""
    streams = dict(input=typed, capture_output=True, encoding="utf-8")
    return subprocess.run(command(module, *args), cwd=cwd, env=ENVIRONMENT, timeout=TIMEOUT_SECONDS, **streams)


def succeed(module: str, *args, **options) -> subprocess.CompletedProcess:
    """Run a command that must end well."""
    result = run(module, *args, **options)
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
    return result


def training_arguments(data, save_dir, *flags) -> List:
    """Arguments of fairseq-train, by NT-ASGD unless the flags name another optimiser."""
    optimizer = [] if "--optimizer" in flags else NT_ASGD
    return [data, "--save-dir", save_dir, *MODEL_FLAGS, *TRAINING_FLAGS, *optimizer, *flags]


class Started(subprocess.Popen):
    """A command that runs while a test goes on; its output goes to files in a folder."""

    def __init__(self, words: Sequence, folder: Path):
        self._output = [folder / "stdout", folder / "stderr"]
        with open(self._output[0], "w") as out, open(self._output[1], "w") as err:
            super().__init__([*map(str, words)], env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    @property
    def printed(self) -> str:
        """The output so far."""
        return "".join(path.read_text(encoding="utf-8") for path in self._output)

    def end(self) -> None:
        """End it by SIGKILL, and wait until it has ended."""
        self.kill()
        self.wait()

    def finish(self) -> subprocess.CompletedProcess:
        """Wait for its end; returns its exit status and its output as text."""
        status = self.wait(TIMEOUT_SECONDS)
        return subprocess.CompletedProcess(self.args, status, *(path.read_text() for path in self._output))


@contextmanager
def started(words: Sequence) -> Iterator[Started]:
    """A command, such as ``command(...)``, that is killed where it still runs at the end of the context.

    A command of ``warm_process.PYTHON`` runs in the process that ``pid`` and signals mean, others in a fork.
    """
    with tempfile.TemporaryDirectory() as folder:
        process = Started(words, Path(folder))
        try:
            yield process
        finally:
            process.end()


@contextmanager
def started_pair(arguments: Sequence, save_dir: Path) -> Iterator[Tuple[Started, Started]]:
    """fairseq-train in two gloo processes, which are killed where they still run at the end of the context."""
    save_dir.mkdir(exist_ok=True)
    rendezvous = save_dir / "rendezvous"
    rendezvous.unlink(missing_ok=True)
    shared = ["--distributed-world-size", 2, "--distributed-no-spawn", "--distributed-init-method"]
    shared += [f"file://{rendezvous}", "--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"]
    with (
        started(command("fairseq_cli.train", *arguments, *shared, "--distributed-rank", 0)) as first,
        started(command("fairseq_cli.train", *arguments, *shared, "--distributed-rank", 1)) as second,
    ):
        yield first, second


def train_pair(arguments: Sequence, save_dir: Path) -> None:
    """Train in two gloo processes to the end."""
    with started_pair(arguments, save_dir) as processes:
        for process in processes:
            result = process.finish()
            assert result.returncode == 0, result.stderr[-3000:]


def train_two(data, save_dir, *flags) -> None:
    """Train a language model with two rows in each of two processes."""
    halves = ["--batch-size", 2, "--batch-size-valid", 1]
    train_pair(training_arguments(data, save_dir, *flags, *halves), save_dir)


def wait_until(condition: Callable[[], bool], process: Optional[Started] = None, *, seconds: float = 200) -> None:
    """Wait for something that comes soon, while a process runs if one is given."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, process.printed
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.002)


def train(data, save_dir, *flags) -> str:
    """Train and return the log."""
    result = succeed("fairseq_cli.train", *training_arguments(data, save_dir, *flags))
    return result.stdout + result.stderr


def preprocess(text: Path, out: Path, *flags) -> Path:
    """Binarise train.txt, valid.txt and test.txt."""
    prefixes = [flag for split in ("train", "valid", "test") for flag in (f"--{split}pref", text / f"{split}.txt")]
    succeed("fairseq_cli.preprocess", "--only-source", "--padding-factor", 1, "--destdir", out, *prefixes, *flags)
    return out


def load(path):
    return torch.load(path, map_location="cpu")


def updates_of(checkpoint) -> int:
    """Updates of the training that saved a loaded checkpoint."""
    return checkpoint["optimizer_history"][-1]["num_updates"]


def validated(log: str, figure: str) -> List[float]:
    """Values of a figure, such as ``ppl``, in the validations of a log."""
    return [float(value) for value in re.findall(rf"valid on 'valid' subset .*?\| {figure} ([\d.e-]+)", log)]


def assert_same_training(actual, expected):
    """Compare two loaded checkpoints bit for bit, but for the best value: a stopped run has validated once more."""
    for part in ("model", "criterion", "last_optimizer_state"):
        assert_same(actual[part], expected[part], part)
    assert_same(actual["optimizer_history"][-1], expected["optimizer_history"][-1], "history")
    for part in ("train_iterator", "val_loss", TASK):
        assert_same(actual["extra_state"].get(part), expected["extra_state"].get(part), part)


def assert_same(actual, expected, where="checkpoint"):
    """Compare nested containers; tensors and numbers bit for bit."""
    assert type(actual) is type(expected), where
    if isinstance(actual, dict):
        assert actual.keys() == expected.keys(), where
        for key in actual:
            assert_same(actual[key], expected[key], f"{where}[{key!r}]")
    elif isinstance(actual, (list, tuple)):
        assert len(actual) == len(expected), where
        for i, (first, second) in enumerate(zip(actual, expected)):
            assert_same(first, second, f"{where}[{i}]")
    elif torch.is_tensor(actual):
        assert torch.equal(actual, expected), where
    else:
        assert actual == expected, where
