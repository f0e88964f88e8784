"""Lines of text files, packed or not."""

import gzip

import pytest

from fairseq_plugins.data.text_files import byte_lines, decode_lines, numbered_lines


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
