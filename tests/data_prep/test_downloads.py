"""Files from mirrors that answer with an error at first, or every time."""

import io
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
