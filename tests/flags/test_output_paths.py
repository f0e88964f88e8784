"""What could not be written is refused when it is named."""

import os
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from fairseq_plugins.flags.output_paths import check_not_read, output_file, output_folder, picture_file

not_root = pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")


def test_what_can_be_written_is_a_path(tmp_path):
    assert output_file(f"{tmp_path}/a.txt") == tmp_path / "a.txt"
    assert picture_file(f"{tmp_path}/a.png") == tmp_path / "a.png"
    assert output_folder(f"{tmp_path}/new/folder") == tmp_path / "new/folder"
    assert output_folder(str(tmp_path)) == tmp_path
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


def test_a_relative_name_stands_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert output_file("a.txt") == Path("a.txt") and output_folder("new/folder") == Path("new/folder")


@pytest.mark.parametrize(
    "read, name, told",
    [
        (output_file, "no/a.txt", "no is no directory: make it first"),
        (output_file, ".", "this is a folder: give the name of a file"),
        (picture_file, "a.foo", "give a name that ends in one of .*png"),
        (picture_file, "no/a.png", "no is no directory: make it first"),
        (output_folder, "file/folder", "file is a file: give a folder"),
    ],
)
def test_what_cannot_be_written_is_refused(read, name, told, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentTypeError, match=told):
        read(str(tmp_path / name))


@not_root
def test_a_closed_folder_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    for read, name in ((output_file, "a.txt"), (output_folder, "folder")):
        with pytest.raises(ArgumentTypeError, match="nothing can be written"):
            read(str(tmp_path / name))


def test_what_a_file_would_replace_is_refused(tmp_path):
    """A file is written aside and renamed, which would put it in the place of a device."""
    os.mkfifo(tmp_path / "pipe.png")
    for read in (output_file, picture_file):
        with pytest.raises(ArgumentTypeError, match="pipe.png: this is a device or a pipe, which a file would replace"):
            read(str(tmp_path / "pipe.png"))


@pytest.mark.parametrize("read", [output_file, picture_file, output_folder])
def test_a_name_that_is_too_long_is_refused(read, tmp_path):
    with pytest.raises(ArgumentTypeError, match=r"nothing can be written there \(File name too long\)"):
        read(str(tmp_path / f"{'x' * 300}.png"))


def test_a_format_that_cannot_be_drawn_here_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ArgumentTypeError, match="a.pgf: no picture of this format can be drawn here .*: take .png"):
        picture_file(str(tmp_path / "a.pgf"))
