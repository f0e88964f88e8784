"""Fixtures of the tests of the scripts that prepare corpora."""

import http.server
import os
import sys
import threading
from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT / "data-prep"))


@pytest.fixture(scope="module", autouse=True)
def programs_of_the_environment():
    """fairseq-preprocess and python3 are those of this interpreter's environment, activated or not."""
    from preparation_runs import PATH

    with mock.patch.dict(os.environ, {"PATH": PATH}):
        yield


@pytest.fixture
def here(tmp_path):
    folder = tmp_path / "a folder, with spaces"
    folder.mkdir()
    return folder


@pytest.fixture
def fake_fairseq(here):
    """An environment in which fairseq-preprocess fails at once, for tests of what comes before it."""
    (here / "bin").mkdir()
    (here / "bin" / "fairseq-preprocess").write_text("#!/bin/sh\necho starting\necho out of memory\nexit 3\n")
    (here / "bin" / "fairseq-preprocess").chmod(0o755)
    return {"PATH": f"{here / 'bin'}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture
def server(tmp_path):
    """A web server: its folder, its address and the paths that were asked for."""
    folder = tmp_path / "served"
    folder.mkdir()
    requests = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            requests.append(self.path)

        def log_error(self, *args):
            pass

    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield SimpleNamespace(folder=folder, url=f"http://127.0.0.1:{running.server_port}", requests=requests)
    running.shutdown()
    running.server_close()
