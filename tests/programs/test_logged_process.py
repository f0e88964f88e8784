"""A process whose output is shown and kept."""

import os
import select
import signal
import sys
import time
from threading import Thread, Timer, get_ident

import pytest

from fairseq_plugins.programs import host_program
from fairseq_plugins.programs.host_program import run_host
from fairseq_plugins.programs.logged_process import run_logged, start_tied
from fairseq_plugins.programs.side_by_side import Task, run_side_by_side


def run(program, tmp_path):
    return run_logged([sys.executable, "-c", program], log=tmp_path / "log")


def test_output_is_shown_and_appended(tmp_path, capfdbinary):
    for word in ("one", "two"):
        program = f"import sys; print('{word}', flush=True); print('{word} failed', file=sys.stderr); sys.exit(3)"
        assert run(program, tmp_path) == 3
    expected = b"one\none failed\ntwo\ntwo failed\n"
    assert capfdbinary.readouterr().out == expected == (tmp_path / "log").read_bytes()


def test_output_is_there_before_the_end(tmp_path):
    program = "import pathlib, sys, time; print('began', flush=True); time.sleep(0.2)\n"
    program += "end = time.monotonic() + 60\n"
    program += "while not pathlib.Path(sys.argv[1]).read_bytes() and time.monotonic() < end: time.sleep(0.01)"
    assert run_logged([sys.executable, "-c", program, tmp_path / "log"], log=tmp_path / "log") == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.usefixtures("heeded")
def test_signals_reach_the_process_once(number, tmp_path, capfd):
    program = f"""
import signal, time
caught = []
signal.signal({int(number)}, lambda *_: caught.append(1))
print("ready", flush=True)
end = time.monotonic() + 60
while not caught and time.monotonic() < end: time.sleep(0.01)
time.sleep(0.1)
print("caught", len(caught))
raise SystemExit(5)
"""

    def interrupt():
        end = time.monotonic() + 60
        while b"ready" not in (tmp_path / "log").read_bytes() and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    timer = Timer(0.0, interrupt)
    (tmp_path / "log").touch()
    timer.start()
    assert run(program, tmp_path) == 5
    timer.join()
    assert "caught 1" in capfd.readouterr().out and signal.getsignal(number) == before


@pytest.mark.parametrize("number", [signal.SIGUSR1])
@pytest.mark.usefixtures("heeded")
def test_a_signal_that_interrupts_no_call_is_handed_on(tmp_path):
    # as one does that comes just before the call: here it interrupts another thread's
    program = """
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(5))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
print("ready", flush=True)
time.sleep(60)
"""

    def interrupt():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        end = time.monotonic() + 60
        while b"ready" not in (tmp_path / "log").read_bytes() and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.2)  # until the output is waited for
        signal.pthread_kill(get_ident(), signal.SIGUSR1)

    (tmp_path / "log").touch()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        thread = Thread(target=interrupt)
        thread.start()
        assert run(program, tmp_path) == 5
        thread.join()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_an_end_by_a_signal_is_told_as_by_a_shell(tmp_path):
    assert run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", tmp_path) == 128 + signal.SIGKILL


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
    "side by side": lambda command, log: run_side_by_side([Task(name="a", command=command)], num=1),
    "of fairseq": lambda command, log: run_host("train", [], log=log),
}


@pytest.mark.parametrize("run_command", RUNS.values(), ids=RUNS)
def test_a_command_dies_with_this_process(run_command, tmp_path, monkeypatch):
    program = "import os, sys, time; print(os.getpid(), file=open('aside', 'w')); os.rename('aside', 'pid')\n"
    command = [sys.executable, "-c", f"{program}time.sleep(60)"]
    monkeypatch.setattr(host_program, "host_command", lambda *_: command)
    monkeypatch.chdir(tmp_path)
    caller = os.fork()
    if caller == 0:
        run_command(command, tmp_path / "log")
        os._exit(0)
    end = time.monotonic() + 60
    while not (tmp_path / "pid").exists() and time.monotonic() < end:
        time.sleep(0.01)
    ended = os.pidfd_open(int((tmp_path / "pid").read_text()))
    os.kill(caller, signal.SIGKILL)
    os.waitpid(caller, 0)
    assert select.select([ended], [], [], 20)[0], "it runs on"
    os.close(ended)


def test_a_command_whose_caller_died_as_it_was_started_does_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 1)  # the process that was the parent is not any more
    process = start_tied([sys.executable, "-c", f"open({str(tmp_path / 'made')!r}, 'w')"])
    assert process.wait() == 1 and not (tmp_path / "made").exists()
