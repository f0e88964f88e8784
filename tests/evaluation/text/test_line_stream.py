import gzip
import io
import sys
from pathlib import Path

import pytest

from fairseq_plugins.evaluation.text.line_stream import stream_lines


def test_files_are_one_text_whose_lines_end_at_newlines_only(tmp_path):
    (tmp_path / "one").write_bytes("eins\r\n\nzwei\u2028drei".encode())
    (tmp_path / "two").write_bytes(b"vier\n")
    assert list(stream_lines([tmp_path / "one", tmp_path / "two"])) == ["eins", "", "zwei\u2028drei", "vier"]


def test_packed_files_and_byte_order_marks_are_read_as_text(tmp_path, monkeypatch):
    marked = "\ufeffeins\n".encode()
    (tmp_path / "one").write_bytes(gzip.compress(marked))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(marked)))
    assert list(stream_lines([tmp_path / "one", Path("-")])) == ["eins", "eins"]


def test_a_missing_file_is_refused_before_the_first_line(tmp_path):
    (tmp_path / "one").write_text("eins\n")
    with pytest.raises(ValueError, match="two does not exist"):
        stream_lines([tmp_path / "one", tmp_path / "two"])


def test_a_line_that_is_no_text_is_named_after_those_before_it(tmp_path):
    (tmp_path / "one").write_bytes(b"eins\n\xff\n")
    lines = stream_lines([tmp_path / "one"])
    assert next(lines) == "eins"
    with pytest.raises(ValueError, match="one, line 2: not UTF-8"):
        next(lines)


def test_an_empty_text_is_refused(tmp_path, monkeypatch):
    (tmp_path / "one").write_text("")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(ValueError, match="one and standard input is empty"):
        next(stream_lines([tmp_path / "one", Path("-")]))
    assert not list(stream_lines([tmp_path / "one"], when_empty="kept"))
