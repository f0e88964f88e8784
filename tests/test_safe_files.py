"""Files: paths of arguments, lines of text, outputs."""

import bz2
import errno
import gzip
import io
import lzma
import os
import re
from pathlib import Path

import pytest
import torch

from fairseq_plugins.files import (
    STANDARD_INPUT,
    byte_lines,
    check_not_read,
    data_folder,
    decode_lines,
    name_of,
    numbered_lines,
    output_file,
    output_folder,
    picture_file,
    read_lines,
    replaced_file,
    write_tensors,
    write_text,
)
from fairseq_plugins.options import UserError

not_root = pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")


def test_what_can_be_read_or_written_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert output_file("a.txt") == Path("a.txt") and output_folder("new/folder") == Path("new/folder")
    assert data_folder(str(tmp_path)) == output_folder(str(tmp_path)) == tmp_path
    assert output_file(f"{tmp_path}/a.txt") == tmp_path / "a.txt"
    for name in ("a.png", "a.PNG"):
        assert picture_file(f"{tmp_path}/{name}") == tmp_path / name
    assert output_folder(f"{tmp_path}/new/folder") == tmp_path / "new/folder"
    assert list(tmp_path.iterdir()) == []


def test_what_is_read_is_not_written_whatever_it_is_called_and_before_it_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text").touch()
    os.link("text", "another")
    for written, read in (("text", "./text"), ("another", "text"), ("later", tmp_path / "later")):
        with pytest.raises(ValueError, match=f"--out {written} is read by this command: give another name"):
            check_not_read(Path(written), [Path("of others"), Path(read)], flag="--out")
    Path("loop").symlink_to("loop")
    check_not_read(Path("new"), [Path("text"), Path("later"), Path("loop")], flag="--out")


@pytest.mark.parametrize(
    "read, name",
    [
        *((data_folder, name) for name in ("nowhere", "file", "")),
        *((output_file, name) for name in ("no/a.txt", ".", "", "${x}", "-")),
        *((picture_file, name) for name in ("a.foo", "no/a.png", "a")),
        *((output_folder, name) for name in ("file/folder", "file")),
        *((output_file, "pipe.png"), (picture_file, "pipe.png")),  # renaming a file would replace a device
    ],
)
def test_paths_that_cannot_be_used_are_refused(read, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    os.mkfifo("pipe.png")
    with pytest.raises(UserError, match=re.escape(name) or "the path is empty"):
        read(name)


@not_root
def test_a_closed_folder_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    for read, name in ((output_file, "a.txt"), (output_folder, "folder")):
        with pytest.raises(UserError, match="nothing can be written"):
            read(str(tmp_path / name))


def test_a_name_that_is_too_long_is_told_by_the_first_write(tmp_path):
    path = output_file(f"{tmp_path}/{'x' * 300}.txt")
    with pytest.raises(OSError, match="File name too long") as error:
        write_text(path, "a")
    assert error.value.filename == str(path)


def test_a_text_takes_its_name_when_it_is_whole_and_what_fails_leaves_it_alone(tmp_path):
    path = tmp_path / "table.md"
    write_text(path, "é\n")
    with replaced_file(path) as aside:
        aside.write_text("new\n")
        assert aside.suffix == ".md" and path.read_text(encoding="utf-8") == "é\n"
    with pytest.raises(RuntimeError):
        with replaced_file(path) as aside:
            aside.write_text("half")
            raise RuntimeError
    assert path.read_text() == "new\n" and list(tmp_path.iterdir()) == [path]


def test_a_link_stays_one(tmp_path):
    target, link = tmp_path / "target.md", tmp_path / "link.md"
    target.touch(), link.symlink_to(target)
    write_text(link, "new\n")
    assert link.is_symlink() and target.read_text() == "new\n"


@pytest.mark.parametrize("named", ["nothing", "the file beside it", "another"])
def test_a_full_disk_names_the_file(named, tmp_path):
    path, other = tmp_path / "table.md", str(tmp_path / "other")
    with pytest.raises(OSError) as failure:
        with replaced_file(path) as aside:
            name = {"nothing": None, "the file beside it": str(aside), "another": other}[named]
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
    assert failure.value.filename == (other if named == "another" else str(path))


def test_equal_tensors_are_equal_files(tmp_path):
    for name in ("a.pt", "b.pt"):
        write_tensors(tmp_path / name, {"weight": torch.arange(3.0), "updates": 2})
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()
    assert torch.load(tmp_path / "a.pt")["weight"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["text", "text.gz"])
def test_a_packed_file_is_known_by_its_first_bytes_and_lines_end_at_newlines_only(name, tmp_path):
    (tmp_path / name).write_bytes(gzip.compress("eins\r\n\nzwei\u2028drei\x0b".encode()))
    assert list(numbered_lines(tmp_path / name)) == [(1, "eins"), (2, ""), (3, "zwei\u2028drei\x0b")]
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


def test_empty_files_and_lines_that_end_in_carriage_returns_are_refused(tmp_path):
    with pytest.raises(ValueError, match="reference is empty$"):
        read_lines(write(tmp_path / "reference", b""))
    with pytest.raises(ValueError, match=r"a: its lines end in carriage returns, .* by tr '\\r' '\\n'"):
        read_lines(write(tmp_path / "a", "x\ry\r"))
    assert read_lines(write(tmp_path / "b", "x\r")) == ["x"]


def test_all_lines_of_packed_files_and_of_the_standard_input(tmp_path, monkeypatch):
    assert read_lines(write(tmp_path / "a.gz", gzip.compress(b"one\n\ntwo\n"))) == ["one", "", "two"]
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


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_packed_text_is_told_apart_from_utf_16(pack):
    with pytest.raises(ValueError, match="^x is compressed: unpack it first, such as by zcat, bzcat or xzcat$"):
        next(decode_lines(io.BytesIO(pack(b"hello\n")), name="x"))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("text", ["the dog\n", "\u0645\u06cc\n\u0645\u06cc\n"])
def test_text_in_utf_16_without_a_mark_is_refused(encoding, text, tmp_path):
    with pytest.raises(ValueError, match="text, line [12]: .* iconv -f .*UTF-16.* -t UTF-8"):
        read_lines(write(tmp_path / "text", text.encode(encoding)))


def test_a_line_that_ends_in_nul_need_not_be_utf_16(tmp_path):
    with pytest.raises(
        ValueError, match=r"text, line 1: there is a NUL byte: .* else remove the bytes by tr -d '\\0'$"
    ):
        read_lines(write(tmp_path / "text", b"the dog\0\n"))
