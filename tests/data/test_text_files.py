"""Lines of text files, packed or not."""

import gzip
import io
from pathlib import Path

import pytest

from fairseq_plugins.data.text_files import (
    STANDARD_INPUT,
    byte_lines,
    decode_lines,
    name_of,
    numbered_lines,
    read_lines,
)


@pytest.mark.parametrize("name", ["text", "text.gz"])
def test_a_packed_file_is_known_by_its_first_bytes(name, tmp_path):
    (tmp_path / name).write_bytes(gzip.compress("eins\r\n\nzwei\u2028drei".encode()))
    assert list(numbered_lines(tmp_path / name)) == [(1, "eins"), (2, ""), (3, "zwei\u2028drei")]
    (tmp_path / name).write_bytes(b"eins\r\nzwei")
    assert list(byte_lines(tmp_path / name)) == [b"eins\r\n", b"zwei"]
    for content in (b"", b"\x1f"):
        (tmp_path / name).write_bytes(content)
        assert list(byte_lines(tmp_path / name)) == ([content] if content else [])


def test_a_byte_order_mark_is_left_out_at_the_start_only():
    mark = "\ufeff".encode()
    assert list(decode_lines([mark + b"a\n", mark + b"b\n"], name="x")) == [(1, "a"), (2, "\ufeffb")]


def test_what_cannot_be_read_is_refused_before_the_first_line(tmp_path):
    with pytest.raises(ValueError, match="none does not exist: give a text file$"):
        numbered_lines(tmp_path / "none")
    with pytest.raises(ValueError, match="is a folder: give a list$"):
        byte_lines(tmp_path, wanted="a list")


def test_damage_is_told_after_the_lines_before_it(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(gzip.compress(b"eins\nzwei\n") + b"\x1f\x8bmore")
    lines = numbered_lines(path)
    with pytest.raises(ValueError, match=r"text is truncated or damaged after line \d \(.*\): copy it again$"):
        list(lines)
    path.write_bytes(b"eins\n\xff\n")
    lines = numbered_lines(path)
    assert next(lines) == (1, "eins")
    with pytest.raises(ValueError, match="text, line 2: not UTF-8"):
        next(lines)


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_lines_that_end_in_carriage_returns_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a: its lines end in carriage returns, .* by tr '\\r' '\\n'"):
        read_lines(write(tmp_path / "a", "x\ry\r"))
    assert read_lines(write(tmp_path / "b", "x\r")) == ["x"]


def test_lines_end_at_newlines_only(tmp_path):
    assert read_lines(write(tmp_path / "a", "x\u2028y\r\nz\x0b\n")) == ["x\u2028y", "z\x0b"]
    assert read_lines(write(tmp_path / "b", "x\n\ny")) == ["x", "", "y"]


@pytest.mark.parametrize("content, told", [(b"", "is empty"), (b"ok\n\xff\n", "line 2: not UTF-8")])
def test_files_that_cannot_be_read_are_refused(content, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        read_lines(write(tmp_path / "reference", content))
    with pytest.raises(ValueError, match="does not exist"):
        read_lines(tmp_path / "missing")


def test_a_byte_order_mark_is_left_out(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"\xef\xbb\xbfHello world\n")
    assert read_lines(path) == ["Hello world"]


def test_all_lines_of_packed_files_and_of_the_standard_input(tmp_path, monkeypatch):
    assert read_lines(write(tmp_path / "a.gz", gzip.compress(b"one\n\ntwo\n"))) == ["one", "", "two"]
    with pytest.raises(ValueError, match="is a folder: give a text file"):
        read_lines(tmp_path)
    with pytest.raises(ValueError, match="/dev/zero is a device: give a text file"):
        read_lines(Path("/dev/zero"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfone\r\ntwo")))
    assert read_lines(STANDARD_INPUT) == ["one", "two"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(ValueError, match="^standard input is empty$"):
        read_lines(STANDARD_INPUT)
    assert name_of(tmp_path / "a", STANDARD_INPUT) == f"{tmp_path}/a and standard input"


def test_lines_are_composed_unless_their_form_is_kept(tmp_path):
    path = write(tmp_path / "text", "scho\u0308n\n")
    assert read_lines(path) == ["sch\u00f6n"] and read_lines(path, unicode="kept") == ["scho\u0308n"]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("text", ["the dog\n", "\u0645\u06cc\n\u0645\u06cc\n"])
def test_text_in_utf_16_without_a_mark_is_refused(encoding, text, tmp_path):
    with pytest.raises(ValueError, match="text, line [12]: not UTF-8: .*convert it to UTF-8"):
        read_lines(write(tmp_path / "text", text.encode(encoding)))
