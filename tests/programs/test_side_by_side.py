"""Commands that run side by side."""

import os
import signal
import subprocess
import sys
import time
from threading import Timer

import pytest

from fairseq_plugins.programs.side_by_side import Task, run_side_by_side

WAIT = """
import pathlib, time
def wait_for(*names):
    end = time.monotonic() + 60
    while not all(pathlib.Path(name).exists() for name in names):
        assert time.monotonic() < end
        time.sleep(0.01)
"""


@pytest.fixture
def task(tmp_path):
    """``task(name, program, *needs)``, whose program runs with its own name, in a folder that all share."""

    def task(name, program, *needs):
        program = f"import os, sys\nos.chdir({str(tmp_path)!r})\n{WAIT}\nname = {name!r}\n{program}"
        return Task(name=name, command=[sys.executable, "-c", program], needs=needs)

    return task


def test_as_many_run_at_once_as_were_asked_for(task, tmp_path):
    # each of the first two ends only when both have begun, and counts who is there
    program = """
open(f"{name}.there", "w").close()
if name in "ab": wait_for("a.there", "b.there")
print(len([one for one in os.listdir() if one.endswith(".there")]), file=open(f"{name}.count", "w"))
os.remove(f"{name}.there") if name not in "ab" else wait_for("a.count", "b.count") or os.remove(f"{name}.there")
"""
    assert run_side_by_side([task(name, program) for name in "abcd"], num=2) == dict.fromkeys("abcd", 0)
    assert max(int((tmp_path / f"{name}.count").read_text()) for name in "abcd") == 2


def test_one_at_a_time_runs_in_order(task, tmp_path, capfd):
    program = "print(name, file=open('order', 'a')); print('hidden'); print('shown', file=sys.stderr)"
    run_side_by_side([task(name, program) for name in "abc"], num=1)
    assert (tmp_path / "order").read_text().split() == ["a", "b", "c"]
    printed, told = capfd.readouterr()
    assert printed == "" and told.count("shown") == 3
    assert "== b begins (2 of 3)" in told and "== b ended after 0.00 hours" in told


def test_what_needs_another_waits_for_it_and_others_go_first(task, tmp_path):
    program = "print(name, file=open('order', 'a'))"
    tasks = [
        task("base", f"wait_for('other.done'); {program}"),
        task("needs it", program, "base"),
        task("other", f"{program}; open('other.done', 'w')"),
    ]
    assert set(run_side_by_side(tasks, num=2).values()) == {0}
    assert (tmp_path / "order").read_text().splitlines() == ["other", "base", "needs it"]


def test_one_that_fails_ends_no_other_and_leaves_out_what_needs_it(task, tmp_path, capfd):
    tasks = [
        task("fails", "sys.exit(3)"),
        task("needs it", "open('wrong', 'w')", "fails"),
        task("needs that", "open('wrong', 'w')", "needs it"),
        task("killed", "os.kill(os.getpid(), 9)"),
        task("other", "open('right', 'w')"),
    ]
    assert run_side_by_side(tasks, num=2) == {"fails": 3, "killed": 137, "other": 0}
    assert (tmp_path / "right").exists() and not (tmp_path / "wrong").exists()
    assert "== fails ended with status 3" in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.usefixtures("heeded")
def test_a_signal_reaches_all_that_run_once_and_nothing_is_begun_after_it(number, task, tmp_path):
    program = f"""
import signal
caught = []
signal.signal({int(number)}, lambda *_: caught.append(1))
open(f"{{name}}.ready", "w").close()
end = time.monotonic() + 60
while not caught and time.monotonic() < end: time.sleep(0.01)
time.sleep(0.1)
sys.exit(len(caught))
"""

    def interrupt():
        end = time.monotonic() + 60
        while not all((tmp_path / f"{name}.ready").exists() for name in "ab") and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    timer = Timer(0.0, interrupt)
    timer.start()
    assert run_side_by_side([task(name, program) for name in "abc"], num=2) == {"a": 1, "b": 1}
    timer.join()
    assert signal.getsignal(number) == before


def test_nothing_is_begun_after_a_signal_that_comes_as_one_is_begun(task, monkeypatch):
    class Interrupted(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    assert set(run_side_by_side([task(name, "time.sleep(60)") for name in "ab"], num=2)) == {"a"}


@pytest.mark.parametrize("number", [signal.SIGUSR1])
@pytest.mark.usefixtures("heeded")
def test_an_interruption_is_no_good_end_though_what_ran_ended_well(task):
    program = f"""
import signal
signal.signal({int(signal.SIGUSR1)}, lambda *_: sys.exit(0))
os.kill(os.getppid(), {int(signal.SIGUSR1)})
time.sleep(60)
"""
    with pytest.raises(SystemExit) as end:
        run_side_by_side([task(name, program) for name in "ab"], num=1)
    assert end.value.code == 128 + signal.SIGUSR1


def test_a_signal_that_is_ignored_ends_nothing(task, monkeypatch):
    # as a hang-up under nohup
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        program = "os.kill(os.getppid(), 1); time.sleep(0.5)"
        assert run_side_by_side([task("a", program)], num=1) == {"a": 0}
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_fault_of_its_own_ends_those_that_run(task, tmp_path, monkeypatch):
    def fails(seconds):
        if (tmp_path / "pid").exists():
            raise OSError("no clock")
        sleep(seconds)

    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", fails)
    program = "print(os.getpid(), file=open('aside', 'w')); os.rename('aside', 'pid'); time.sleep(600)"
    with pytest.raises(OSError, match="no clock"):
        run_side_by_side([task("a", program)], num=1)
    pid = int((tmp_path / "pid").read_text())
    assert os.waitpid(pid, 0)[1] == signal.SIGTERM
