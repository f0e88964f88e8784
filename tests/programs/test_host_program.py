"""A program of the host in a process of its own; a stub stands in for it."""

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Thread, get_ident, main_thread

import pytest

from fairseq_plugins.flags.command import ProgramFailed
from fairseq_plugins.programs.host_program import USER_DIR, host_command, run_host

STUB = """
import os, sys, time
print("result", *sys.argv[2:])
print("one note\\nand another", file=sys.stderr, flush=True)
memory = b"x" * (1000 * 2**20) if sys.argv[1] == "large" else None
if sys.argv[1] == "failing":
    sys.exit("\\n".join(f"line {number}" for number in range(9)))
if sys.argv[1] == "refusing":
    sys.exit("ValueError: --lr 0: give more")
if sys.argv[1] == "parsing":
    sys.exit("generate.py: error: unrecognized arguments: --nonsense")
if sys.argv[1] == "broken":
    one, two = [1]
if sys.argv[1] == "silent":
    os.truncate(os.environ["LOG"], 0)
    os.kill(os.getpid(), 9)
if sys.argv[1] == "endless":
    time.sleep(600)
"""


@pytest.fixture
def log(tmp_path, monkeypatch):
    package = tmp_path / "stub/fairseq_cli"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "generate.py").write_text(STUB)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def test_the_user_dir_is_the_package():
    assert (USER_DIR / "__init__.py").is_file() and USER_DIR.name == "fairseq_plugins"
    assert host_command("train", ["a b"]) == [sys.executable, "-m", "fairseq_cli.train", "a b"]


def test_results_and_notes_are_kept_apart_or_together(log, tmp_path):
    run_host("generate", ["small", "a b"], log=log, output=tmp_path / "output")
    assert (tmp_path / "output").read_text() == "result a b\n" and log.read_text() == "one note\nand another\n"
    run_host("generate", ["small", "a b"], log=log)
    assert sorted(log.read_text().splitlines()) == ["and another", "one note", "result a b"]


def test_memory_is_the_peak_of_the_process_in_mib(log):
    assert 1000 < run_host("generate", ["large"], log=log) < 50_000


def test_a_failure_is_told_with_the_end_of_the_log(log):
    with pytest.raises(ProgramFailed) as failure:
        run_host("generate", ["failing"], log=log)
    assert str(failure.value).splitlines() == [f"line {number}" for number in range(4, 9)]


def test_a_refusal_of_the_program_is_one_and_a_fault_of_it_is_none(log):
    with pytest.raises(ValueError, match="^--lr 0: give more .log: .*log.$"):
        run_host("generate", ["refusing"], log=log)
    with pytest.raises(ValueError, match="^unrecognized arguments: --nonsense .log: .*log.$"):
        run_host("generate", ["parsing"], log=log)
    with pytest.raises(ProgramFailed, match="not enough values to unpack"):
        run_host("generate", ["broken"], log=log)


def test_a_program_that_told_nothing_is_told_with_its_status(log, tmp_path):
    with pytest.raises(ProgramFailed, match="fairseq-generate ended with status -9 and told nothing"):
        run_host("generate", ["silent"], log=log, output=tmp_path / "output")


@pytest.fixture
def started(monkeypatch):
    """The processes that were started."""
    started = []

    class Recorded(subprocess.Popen):
        def __init__(self, *arguments, **options):
            started.append(self)
            super().__init__(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    return started


@contextmanager
def signal_once_it_runs(log, number, *, interrupted="main thread"):
    """Send this process a signal when the program has told something, which interrupts a call of one thread."""

    def send():
        end = time.monotonic() + 60
        while b"another" not in log.read_bytes() and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.2)  # until its end is waited for
        signal.pthread_kill(get_ident() if interrupted == "another thread" else main_thread().ident, number)

    log.touch()
    thread = Thread(target=send)
    thread.start()
    yield
    thread.join()


def test_an_interrupt_ends_the_program(log, started):
    with signal_once_it_runs(log, signal.SIGINT), pytest.raises(KeyboardInterrupt):
        run_host("generate", ["endless"], log=log)
    (process,) = started
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("interrupted", ["main thread", "another thread"])
def test_the_end_of_this_process_is_that_of_the_program(log, started, interrupted):
    # one that interrupts another thread's call is as one that comes just before this thread's
    begun = time.monotonic()
    with signal_once_it_runs(log, signal.SIGTERM, interrupted=interrupted), pytest.raises(ProgramFailed):
        run_host("generate", ["endless"], log=log)
    assert time.monotonic() - begun < 30
    (process,) = started
    assert process.returncode == -signal.SIGTERM


def test_other_threads_run_programs_as_well(log, tmp_path):
    with ThreadPoolExecutor() as threads:
        threads.submit(run_host, "generate", ["small"], log=log, output=tmp_path / "output").result()
    assert (tmp_path / "output").read_text() == "result\n"
