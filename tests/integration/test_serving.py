"""The server as a process: what users type, what browsers show, and how it ends."""

import json
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from http.client import HTTPConnection

import pytest
from binarised_data import copy_data
from commands import started, wait_until
from paths import SMALL_MODELS
from warm_process import PYTHON

LINES = "a b c\n\nh i\nk\n"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytest.importorskip("fastapi")


@pytest.fixture
def export(tmp_path, printed_by):
    """``export(name, data)``: a small model as a folder."""

    def export(name, data):
        record = dict(tokenizer="moses", language="en", case="lower tokens")
        folder = copy_data(SMALL_MODELS / "data" / data, tmp_path / data, **record)
        out = tmp_path / "shipped" / name
        printed_by("export", SMALL_MODELS / f"{name}.pt", "--data", folder, "--out", out)
        return out

    return export


@contextmanager
def serving(*arguments):
    """A server on a free port: its process, and its address."""
    with started([PYTHON, "-m", "fairseq_plugins", "serve", *arguments, "--port", 0, "--cpu"]) as process:
        wait_until(lambda: "\n" in process.printed, process, seconds=100)
        yield process, process.printed.split(" at ")[1].strip()


def post(address, body):
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_a_server_answers_as_the_command_does_and_ends_with_all_answered(export, printed_by):
    folder = export("lstm_encdec_doc", "translation")
    flags = ["--path", folder, "--cpu", "--json", "--nbest", 2]
    expected = [json.loads(line) for line in printed_by("translate", folder, *flags, typed=LINES).splitlines()]
    body = {"lines": LINES.splitlines(), "nbest": 2}
    with serving(folder, "--max-batch", 1) as (process, address):
        assert process.printed == f"translator lstm_encdec_doc at {address}\n"
        for found, line in zip(post(f"{address}/translate", body)["translations"], expected, strict=True):
            for one in (*found["hypotheses"], *line["hypotheses"]):
                one["score"] = pytest.approx(one["score"], rel=1e-5)
            assert found == line
        clients = [HTTPConnection(address.removeprefix("http://"), timeout=60) for _ in range(40)]
        for client in clients:
            client.request("POST", "/translate", json.dumps(body), {"Content-Type": "application/json"})
        time.sleep(0.2)  # until all have come
        assert not select.select([clients[-1].sock], [], [], 0)[0]
        os.kill(process.pid, signal.SIGTERM)
        answers = [client.getresponse() for client in clients]
        assert [len(json.load(answer)["translations"]) for answer in answers] == [4] * 40
        ended = process.finish()
        assert (ended.returncode, ended.stderr) == (0, "")


def test_the_end_does_not_wait_for_a_request_whose_time_is_up(export):
    folder = export("lstm_lm_doc", "lm")
    body = {"lines": ["the dog"] * 100, "num": 100, "max_length": 1000}
    with serving(folder, "--timeout", 0.5, "--max-tokens", 10**7) as (process, address):
        with pytest.raises(urllib.error.HTTPError, match="504"):
            post(f"{address}/generate", body)
        begin = time.monotonic()
        os.kill(process.pid, signal.SIGINT)
        ended = process.finish()
        assert (ended.returncode, ended.stderr) == (0, "") and time.monotonic() - begin < 10


def test_thousands_of_connections_are_no_obstacle(export):
    folder = export("lstm_lm_doc", "lm")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 2500:
        pytest.skip("too few files can be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        with serving(folder) as (process, address):
            host, port = address.removeprefix("http://").split(":")
            connections = [socket.create_connection((host, int(port))) for _ in range(2000)]
            for connection in connections:
                connection.sendall(b"POST /score HTTP/1.1\r\nContent-Le")
            assert post(f"{address}/score", {"lines": ["the dog"]})["scores"][0]["text"] == "the dog"
            os.kill(process.pid, signal.SIGINT)
            ended = process.finish()
            assert (ended.returncode, ended.stderr) == (0, "")
            for connection in connections:
                connection.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_errors_at_the_start_are_one_line(export, refuse, monkeypatch, tmp_path):
    folder = export("lstm_lm_doc", "lm")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "give an address of this machine that is free" in refuse("serve", folder, "--port", port)
    assert "give an address" in refuse("serve", folder, "--host", "no such host", "--port", 0)
    assert "give a number up to 65535" in refuse("serve", folder, "--port", 65536)
    assert "--timeout nan: give a value above 0" in refuse("serve", folder, "--timeout", "nan")
    assert "checkpoint" in refuse("serve", tmp_path, "--port", 0)
    (folder / "dict.txt").write_text("the 1\n")
    assert "dict.txt is not as it was exported" in refuse("serve", folder, "--port", 0)
    for name in [name for name in sys.modules if name.startswith(("fairseq_plugins.serving", "fastapi"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert "pip install fastapi uvicorn" in refuse("serve", folder)


# the page, by the protocol of Chromium's developer tools over two pipes


class Browser:
    """A tab of a headless Chromium.

    Args:
        folder: for its profile.
    """

    def __init__(self, folder):
        (read, self._send), (self._receive, write) = os.pipe(), os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"]
        # Chromium reads from descriptor 3 and writes to 4
        script = f'exec 3<&{read} 4>&{write}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", CHROMIUM, *flags], pass_fds=(read, write), stderr=subprocess.DEVNULL
        )
        os.close(read)
        os.close(write)
        self._session, self._number, self._rest = {}, 0, b""
        (page,) = [one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = {"sessionId": attached["sessionId"]}

    def call(self, method, **parameters):
        """The result of a method of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters, **self._session}
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                received = os.read(self._receive, 1 << 16)
                assert received, "the browser has ended"
                self._rest += received
            answer, _, self._rest = self._rest.partition(b"\0")
            answer = json.loads(answer)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def run(self, script):
        """The value of a script in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, script):
        """Wait until the value of a script is true; returns it."""
        deadline = time.monotonic() + 60
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, (script, self.run("document.body.innerText"))
            time.sleep(0.05)
        return value

    def close(self):
        """End it."""
        with suppress(OSError, AssertionError):
            self.call("Browser.close")
        self._process.wait(30)
        os.close(self._send)
        os.close(self._receive)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
def test_the_page_in_a_browser(export, tmp_path):
    """Both kinds of models can be tried. Text is shown as text, errors are shown, every field has a name."""
    browser = Browser(tmp_path / "profile")
    text = "<b>a</b> b <img src=x onerror=document.title=1>"
    nameless = (
        "[...document.querySelectorAll('input, select, textarea')].filter((one) => !one.labels.length).map(String)"
    )
    try:
        for name, data, buttons in (
            ("lstm_encdec_doc", "translation", {"translate": text}),
            ("lstm_lm_doc", "lm", {"score": text, "generate": "nats"}),
        ):
            with serving(export(name, data), "--max-characters", 60) as (_, address):
                browser.call("Page.navigate", url=address)
                browser.wait_for(f"document.getElementById('model')?.textContent === '{name}'")
                assert browser.run(nameless) == []
                for button, expected in buttons.items():
                    for typed, shown in ((text, expected), ("z" * 61, "line 1 has 61 characters: give up to 60")):
                        browser.run("document.getElementById('lines').select()")
                        browser.call("Input.insertText", text=typed)
                        browser.run(f"document.querySelector('button[value={button}]').click()")
                        browser.wait_for(f"document.querySelector('main').innerText.includes({shown!r})")
                        is_error = browser.run("document.getElementById('error').textContent !== ''")
                        is_answered = browser.run("document.getElementById('answers').children.length === 1")
                        assert is_error == (typed != text) != is_answered
                        assert browser.run("document.querySelectorAll('b, img').length") == 0
                assert browser.run("document.title") == name
    finally:
        browser.close()
