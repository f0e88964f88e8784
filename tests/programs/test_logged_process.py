"""A process whose output is shown and kept."""

import os
import signal
import sys
import time
from threading import Thread, Timer, get_ident

import pytest

from fairseq_plugins.programs.logged_process import run_logged


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
