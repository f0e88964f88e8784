"""Commands in processes of their own: signals, logs, several at once."""

import os
import platform
import select
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread, get_ident, main_thread

import pytest

from fairseq_plugins import processes
from fairseq_plugins.console import ProgramFailed
from fairseq_plugins.options import UserError
from fairseq_plugins.processes import (
    ALLOCATOR_VARIABLES,
    TUNABLES,
    Job,
    fairseq_command,
    run_fairseq,
    run_logged,
    start_tied,
    training_environment,
)

run_side_by_side = partial(processes.run_side_by_side, show=lambda name, line: None)


@pytest.fixture(autouse=True)
def heeded():
    """Signals that come too early or too late end no test."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run(program, tmp_path):
    return run_logged([sys.executable, "-c", program], log=tmp_path / "log")


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)


def printed(word, log):
    """The condition that a word stands in a log."""
    log.touch()
    return lambda: word in log.read_bytes()


@contextmanager
def signal_once(is_ready, number, *, interrupted="main thread"):
    """Send this process a signal when something is so; it interrupts a call of one thread."""

    def send():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        wait_until(is_ready)
        time.sleep(0.2)  # until its end is waited for
        signal.pthread_kill(get_ident() if interrupted == "another thread" else main_thread().ident, number)

    thread = Thread(target=send)
    thread.start()
    yield
    thread.join()


def test_output_is_shown_and_appended(tmp_path, capfdbinary):
    for word in ("one", "two"):
        program = f"import sys; print('{word}', flush=True); print('{word} failed', file=sys.stderr); sys.exit(3)"
        assert run(program, tmp_path) == 3
    expected = b"one\none failed\ntwo\ntwo failed\n"
    assert capfdbinary.readouterr().out == expected == (tmp_path / "log").read_bytes()


def test_output_is_in_the_log_before_the_end_and_a_signal_reaches_the_process_once(tmp_path, capfd):
    program = """
import signal, time
caught = []
signal.signal(signal.SIGINT, lambda *_: caught.append(1))
print("ready", flush=True)
end = time.monotonic() + 60
while not caught and time.monotonic() < end: time.sleep(0.01)
time.sleep(0.1)
print("caught", len(caught))
raise SystemExit(5)
"""
    before = signal.getsignal(signal.SIGINT)
    with signal_once(printed(b"ready", tmp_path / "log"), signal.SIGINT):
        assert run(program, tmp_path) == 5
    assert "caught 1" in capfd.readouterr().out and signal.getsignal(signal.SIGINT) == before


def test_ctrl_z_stops_the_program_too_until_both_go_on(tmp_path):
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(1)"
    if (pid := os.fork()) == 0:
        os._exit(run(program, tmp_path))
    wait_until(printed(b"\n", tmp_path / "log"))
    both = pid, int((tmp_path / "log").read_text())

    def states():
        return [Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] for number in both]

    os.kill(pid, signal.SIGTSTP)
    wait_until(lambda: states() == ["T", "T"])
    assert states() == ["T", "T"]
    os.kill(pid, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_signal_that_interrupts_no_call_is_handed_on(tmp_path):
    # as one does that comes just before the call: here it interrupts another thread's
    program = """
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(5))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
print("ready", flush=True)
time.sleep(60)
"""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        with signal_once(printed(b"ready", tmp_path / "log"), signal.SIGUSR1, interrupted="another thread"):
            assert run(program, tmp_path) == 5
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_process_whose_output_cannot_be_shown_is_ended(tmp_path, monkeypatch):
    class Closed:
        @property
        def buffer(self):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(BrokenPipeError):
        run("import time; print('began', flush=True); time.sleep(600)", tmp_path)


RUNS = {
    "logged": lambda command, log: run_logged(command, log=log),
    "side by side": lambda command, log: run_side_by_side([Job(name="a", command=command)], places=[{}] * 1),
    "of fairseq": lambda command, log: run_fairseq("train", [], log=log),
}


@pytest.mark.parametrize("run_command", RUNS.values(), ids=RUNS)
def test_a_command_dies_with_this_process(run_command, tmp_path, monkeypatch):
    program = "import os, sys, time; print(os.getpid(), file=open('aside', 'w')); os.rename('aside', 'pid')\n"
    command = [sys.executable, "-c", f"{program}time.sleep(60)"]
    monkeypatch.setattr(processes, "fairseq_command", lambda *_: command)
    monkeypatch.chdir(tmp_path)
    caller = os.fork()
    if caller == 0:
        run_command(command, tmp_path / "log")
        os._exit(0)
    wait_until((tmp_path / "pid").exists)
    ended = os.pidfd_open(int((tmp_path / "pid").read_text()))
    os.kill(caller, signal.SIGKILL)
    os.waitpid(caller, 0)
    assert select.select([ended], [], [], 20)[0], "it runs on"
    os.close(ended)


def test_no_output_is_lost_with_a_process_that_was_stopped_and_killed(tmp_path):
    program = f"""
import os, time
print("one", flush=True)
while not os.path.exists({str(tmp_path / "stopped")!r}): time.sleep(0.01)
print("two", flush=True)
open({str(tmp_path / "written")!r}, "w")
time.sleep(60)
"""
    caller = os.fork()
    if caller == 0:
        os._exit(run(program, tmp_path))
    wait_until(printed(b"one", tmp_path / "log"))
    os.kill(caller, signal.SIGSTOP)
    (tmp_path / "stopped").touch()
    wait_until((tmp_path / "written").exists)
    os.kill(caller, signal.SIGKILL)
    os.waitpid(caller, 0)
    assert (tmp_path / "log").read_text() == "one\ntwo\n"


def test_a_command_whose_caller_died_as_it_was_started_does_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 1)  # the process that was the parent is not any more
    process = start_tied([sys.executable, "-c", f"open({str(tmp_path / 'made')!r}, 'w')"])
    assert process.wait() == 1 and not (tmp_path / "made").exists()


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for name in ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))


def test_a_training_has_the_allocator_and_everything_else_of_this_process(monkeypatch):
    monkeypatch.setenv("OTHER", "kept")
    environment = training_environment()
    assert environment["GLIBC_TUNABLES"] == TUNABLES and environment["OTHER"] == "kept"
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert "GLIBC_TUNABLES" not in training_environment()  # of another C library


@pytest.mark.parametrize("name", ALLOCATOR_VARIABLES)
def test_what_the_user_has_set_stays(name, monkeypatch):
    monkeypatch.setenv(name, "1")
    environment = training_environment()
    assert environment[name] == "1" and environment.get("GLIBC_TUNABLES") in (None, "1")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A stand-in for the package of fairseq's programs, without any."""
    package = tmp_path / "stub/fairseq_cli"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    return package


@pytest.mark.parametrize("program, expected", [("train", TUNABLES), ("generate", "None")])
def test_only_trainings_have_it(program, expected, package, tmp_path):
    (package / f"{program}.py").write_text("import os; print(os.environ.get('GLIBC_TUNABLES'))")
    run_fairseq(program, [], log=tmp_path / "log")
    assert (tmp_path / "log").read_text() == f"{expected}\n"
    if program == "train":
        assert run_logged(fairseq_command(program, []), log=tmp_path / "log") == 0
        assert (tmp_path / "log").read_text() == f"{TUNABLES}\n" * 2


@pytest.mark.parametrize("tunable", TUNABLES.split(":"))
def test_glibc_takes_the_value(tunable):
    """glibc silently ignores unknown names, so the test reads its list of them."""
    mapped = Path("/proc/self/maps").read_text().split()
    loader = next((part for part in mapped if "/ld-linux" in part), None)
    if loader is None:
        pytest.skip("the C library is not glibc")
    listed = subprocess.run(
        [loader, "--list-tunables"], env={"GLIBC_TUNABLES": tunable}, capture_output=True, text=True
    )
    if listed.returncode != 0:
        pytest.skip("glibc before 2.33 does not list its tunables")
    name, value = tunable.split("=")
    (line,) = [line for line in listed.stdout.splitlines() if line.startswith(f"{name}:")]
    assert int(line.split()[1], 16) == int(value)


STUB = """
import os, sys, time
print("result", *sys.argv[2:])
print("one note\\nand another", file=sys.stderr, flush=True)
memory = b"x" * (1000 * 2**20) if sys.argv[1] == "large" else None
if sys.argv[1] == "failing":
    sys.exit("\\n".join(f"line {number}" for number in range(9)))
if sys.argv[1] == "refusing":
    sys.exit("error: --lr 0: give more")
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
def log(package, tmp_path, monkeypatch):
    (package / "generate.py").write_text(STUB)
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def test_results_and_notes_are_kept_apart_or_together(log, tmp_path):
    run_fairseq("generate", ["small", "a b"], log=log, output=tmp_path / "output")
    assert (tmp_path / "output").read_text() == "result a b\n" and log.read_text() == "one note\nand another\n"
    run_fairseq("generate", ["small", "a b"], log=log)
    assert sorted(log.read_text().splitlines()) == ["and another", "one note", "result a b"]


def test_memory_is_the_peak_of_the_process_in_mib(log):
    assert 1000 < run_fairseq("generate", ["large"], log=log) < 50_000


@pytest.mark.parametrize(
    "way, kind, message",
    [
        ("failing", ProgramFailed, "^" + "\n".join(f"line {number}" for number in range(4, 9)) + "$"),
        ("refusing", UserError, "^--lr 0: give more .log: .*log.$"),
        ("parsing", UserError, "^unrecognized arguments: --nonsense .log: .*log.$"),
        ("broken", ProgramFailed, "not enough values to unpack"),
        (
            "silent",
            ProgramFailed,
            "fairseq-generate ended with status 137: it was killed, perhaps because memory ran out",
        ),
    ],
)
def test_a_failure_is_told_with_the_end_of_the_log_and_a_user_error_is_one(way, kind, message, log, tmp_path):
    with pytest.raises(kind, match=message):
        run_fairseq("generate", [way], log=log, output=tmp_path / "output")


@pytest.fixture
def started(monkeypatch):
    """The processes that were started."""
    started, popen = [], subprocess.Popen

    def record(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", record)
    return started


def test_an_interrupt_ends_the_program(log, started):
    with signal_once(printed(b"another", log), signal.SIGINT), pytest.raises(KeyboardInterrupt):
        run_fairseq("generate", ["endless"], log=log)
    (process,) = started
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("interrupted", ["main thread", "another thread"])
def test_the_end_of_this_process_is_that_of_the_program(log, started, interrupted):
    # one that interrupts another thread's call is as one that comes just before this thread's
    begun = time.monotonic()
    with signal_once(printed(b"another", log), signal.SIGTERM, interrupted=interrupted):
        with pytest.raises(SystemExit) as ended:
            run_fairseq("generate", ["endless"], log=log)
    assert ended.value.code == 128 + signal.SIGTERM
    assert time.monotonic() - begun < 30
    (process,) = started
    assert process.returncode == -signal.SIGTERM


def test_other_threads_run_programs_as_well(log, tmp_path):
    with ThreadPoolExecutor() as threads:
        threads.submit(run_fairseq, "generate", ["small"], log=log, output=tmp_path / "output").result()
    assert (tmp_path / "output").read_text() == "result\n"


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
    """``task(name, program, *needs)``: the program has the variable ``name`` and runs in a shared folder."""

    def task(name, program, *needs):
        program = f"import os, sys\nos.chdir({str(tmp_path)!r})\n{WAIT}\nname = {name!r}\n{program}"
        return Job(name=name, command=[sys.executable, "-c", program], needs=needs)

    return task


def test_as_many_run_at_once_as_were_asked_for(task, tmp_path):
    # each of the first two ends only when both have begun, and counts who is there
    program = """
open(f"{name}.there", "w").close()
if name in "ab": wait_for("a.there", "b.there")
print(len([one for one in os.listdir() if one.endswith(".there")]), file=open(f"{name}.count", "w"))
os.remove(f"{name}.there") if name not in "ab" else wait_for("a.count", "b.count") or os.remove(f"{name}.there")
"""
    assert run_side_by_side([task(name, program) for name in "abcd"], places=[{}] * 2) == dict.fromkeys("abcd", 0)
    assert max(int((tmp_path / f"{name}.count").read_text()) for name in "abcd") == 2


def test_one_at_a_time_runs_in_order(task, tmp_path, capfd):
    program = "print(name, file=open('order', 'a')); print('hidden'); print('shown', file=sys.stderr)"
    run_side_by_side([task(name, program) for name in "abc"], places=[{}] * 1)
    assert (tmp_path / "order").read_text().split() == ["a", "b", "c"]
    printed, message = capfd.readouterr()
    assert printed == "" and message.count("shown") == 3
    assert "== b begins (2 of 3)" in message and "== b ended after 0.00 hours" in message


def test_those_that_run_at_once_have_different_places(task, tmp_path):
    program = """
print(os.environ["PLACE"], file=open(f"{name}.place", "w"))
if name in "ab": wait_for("a.place", "b.place")
"""
    run_side_by_side([task(name, program) for name in "abcd"], places=[{"PLACE": "first"}, {"PLACE": "second"}])
    found = [(tmp_path / f"{name}.place").read_text().strip() for name in "abcd"]
    assert set(found[:2]) == {"first", "second"} and set(found) == {"first", "second"}


def test_lines_of_output_come_with_the_name(task):
    shown = []
    program = r"sys.stdout.buffer.write(b'one\n\xff\n')"
    processes.run_side_by_side([task("doc-1", program)], places=[{}] * 1, show=lambda *line: shown.append(line))
    assert shown == [("doc-1", "one\n"), ("doc-1", "\ufffd\n")]


def test_what_needs_another_waits_for_it_and_others_go_first(task, tmp_path):
    program = "print(name, file=open('order', 'a'))"
    tasks = [
        task("base", f"wait_for('other.done'); {program}"),
        task("needs it", program, "base"),
        task("other", f"{program}; open('other.done', 'w')"),
    ]
    assert set(run_side_by_side(tasks, places=[{}] * 2).values()) == {0}
    assert (tmp_path / "order").read_text().splitlines() == ["other", "base", "needs it"]


def test_one_that_fails_ends_no_other_and_leaves_out_what_needs_it(task, tmp_path, capfd):
    tasks = [
        task("fails", "sys.exit(3)"),
        task("needs it", "open('wrong', 'w')", "fails"),
        task("needs that", "open('wrong', 'w')", "needs it"),
        task("killed", "os.kill(os.getpid(), 9)"),
        task("other", "open('right', 'w')"),
    ]
    assert run_side_by_side(tasks, places=[{}] * 2) == {"fails": 3, "killed": 137, "other": 0}
    assert (tmp_path / "right").exists() and not (tmp_path / "wrong").exists()
    assert "== fails ended with status 3" in capfd.readouterr().err


def test_a_signal_reaches_all_that_run_once_and_nothing_is_begun_after_it(task, tmp_path):
    program = """
import signal
caught = []
signal.signal(signal.SIGTERM, lambda *_: caught.append(1))
open(f"{name}.ready", "w").close()
end = time.monotonic() + 60
while not caught and time.monotonic() < end: time.sleep(0.01)
time.sleep(0.1)
sys.exit(len(caught))
"""

    before = signal.getsignal(signal.SIGTERM)
    with signal_once(lambda: all((tmp_path / f"{name}.ready").exists() for name in "ab"), signal.SIGTERM):
        assert run_side_by_side([task(name, program) for name in "abc"], places=[{}] * 2) == {"a": 1, "b": 1}
    assert signal.getsignal(signal.SIGTERM) == before


def test_nothing_is_begun_after_a_signal_that_comes_as_one_is_begun(task, monkeypatch):
    class Interrupted(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    assert set(run_side_by_side([task(name, "time.sleep(60)") for name in "ab"], places=[{}] * 2)) == {"a"}


def test_an_interruption_is_no_good_end_though_what_ran_ended_well(task):
    program = """
import signal
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
os.kill(os.getppid(), signal.SIGUSR1)
time.sleep(60)
"""
    with pytest.raises(SystemExit) as end:
        run_side_by_side([task(name, program) for name in "ab"], places=[{}] * 1)
    assert end.value.code == 128 + signal.SIGUSR1


def test_a_signal_that_is_ignored_ends_nothing(task, monkeypatch):
    # as a hang-up under nohup
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        program = "os.kill(os.getppid(), 1); time.sleep(0.5)"
        assert run_side_by_side([task("a", program)], places=[{}] * 1) == {"a": 0}
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
        run_side_by_side([task("a", program)], places=[{}] * 1)
    pid = int((tmp_path / "pid").read_text())
    with suppress(ChildProcessError):  # it has ended, and Python has waited for it
        assert os.waitpid(pid, 0)[1] == signal.SIGTERM


@pytest.mark.parametrize("program", ["train", "generate"])
def test_output_is_in_utf_8_whatever_the_locale(program, package, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    (package / f"{program}.py").write_text("print('Gr\\u00f6\\u00dfe \\u017a')")
    run_fairseq(program, [], log=tmp_path / "log", output=tmp_path / "output")
    assert (tmp_path / "output").read_text(encoding="utf-8") == "Gr\u00f6\u00dfe \u017a\n"
    if program == "train":
        assert run_logged(fairseq_command(program, []), log=tmp_path / "log") == 0
