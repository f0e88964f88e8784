"""Files from mirrors that answer with an error at first, or every time."""

import io
import re
import time
from email.message import Message
from pathlib import Path
from urllib.error import HTTPError, URLError

import pytest
from preparation import downloads
from preparation.errors import DataError

URL = "http://mirror/file.tgz"


class Answer(io.BytesIO):
    """A file of ``size`` bytes, of which those of ``content`` come."""

    def __init__(self, content: bytes, size: int) -> None:
        super().__init__(content)
        self.headers = {"Content-Length": str(size)}


def status(code: int) -> HTTPError:
    return HTTPError(URL, code, "no", Message(), io.BytesIO())


WHOLE = Answer(b"the file", 8)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list:
    """What the mirror will answer, an error or a file each time; no pause is made."""
    left: list = []

    def answer(request: object, timeout: float) -> Answer:
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return Answer(found.getvalue(), int(found.headers["Content-Length"]))

    monkeypatch.setattr(downloads.urllib.request, "urlopen", answer)
    monkeypatch.setattr(downloads, "PAUSE", 0.0)
    return left


@pytest.mark.parametrize(
    "errors",
    [[status(503)], [URLError("refused"), TimeoutError("timed out")], [Answer(b"the", 8), status(429)]],
    ids=["busy", "network", "cut"],
)
def test_passing_error_is_tried_again(errors: list, answers: list, tmp_path: Path) -> None:
    answers += [*errors, WHOLE]
    downloads.download([(URL, tmp_path / "file.tgz")], lambda path: True)
    assert not answers and (tmp_path / "file.tgz").read_bytes() == b"the file"
    assert [path.name for path in tmp_path.iterdir()] == ["file.tgz"]


@pytest.mark.parametrize("errors", [[status(404)], [ValueError("unknown url type")], [status(503)] * 3])
def test_lasting_error_goes_to_the_next_mirror(errors: list, answers: list, tmp_path: Path) -> None:
    answers += [*errors, WHOLE]
    downloads.download([(URL, tmp_path / "file.tgz")] * 2, lambda path: True)
    assert not answers and (tmp_path / "file.tgz").read_bytes() == b"the file"
    answers += [*errors, *errors]
    with pytest.raises(DataError, match="no mirror worked: download other.tgz by hand"):
        downloads.download([(URL, tmp_path / "other.tgz")] * 2, lambda path: True)
    assert not answers and [path.name for path in tmp_path.iterdir()] == ["file.tgz"]


class Endless:
    """A file without an announced size that never ends."""

    headers: dict[str, str] = {}

    def __init__(self, block: bytes, seconds: float) -> None:
        self.block, self.seconds = block, seconds

    def __enter__(self) -> "Endless":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def read1(self, size: int) -> bytes:
        time.sleep(self.seconds)
        return self.block


@pytest.mark.parametrize(
    "mirror, limit, told",
    [
        (Endless(b"x", 0.01), {"TIMEOUT": 0.1}, "bytes in 0 seconds"),
        (Endless(b"x" * 1000, 0.0), {"LARGEST": 9000}, "more than 9,000 bytes came"),
        (Endless(b"x" * 1000, 0.01), {"LONGEST": 0.1}, "the file has not ended after"),
        (Answer(b"x", 1 << 40), {}, "it announces 1,099,511,627,776 bytes"),
        (None, {"TIMEOUT": 0.1}, "no answer within 0.1 seconds"),
    ],
    ids=["drip", "large", "long", "announced", "headers"],
)
def test_a_mirror_that_never_ends_is_left(
    mirror: object, limit: dict, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
) -> None:
    def answer(request: object, timeout: float) -> object:
        if mirror is None:
            time.sleep(20)
        return mirror

    monkeypatch.setattr(downloads.urllib.request, "urlopen", answer)
    for name, value in {"PAUSE": 0.0, **limit}.items():
        monkeypatch.setattr(downloads, name, value)
    with pytest.raises(DataError, match="no mirror worked: download file.tgz by hand"):
        downloads.download([(URL, tmp_path / "file.tgz")], lambda path: True)
    assert f"that mirror failed: {told}" in re.sub(r"[0-9]+ bytes in", "bytes in", capsys.readouterr().err)
    assert not list(tmp_path.iterdir())
