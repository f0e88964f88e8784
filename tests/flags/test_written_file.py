"""A name holds a whole file or none."""

import errno
import os

import pytest
import torch

from fairseq_plugins.flags.written_file import replaced_file, write_tensors, write_text


def test_a_text_takes_its_name_when_it_is_whole(tmp_path):
    path = tmp_path / "table.md"
    write_text(path, "é\n")
    with replaced_file(path) as aside:
        aside.write_text("new\n")
        assert aside.suffix == ".md" and path.read_text(encoding="utf-8") == "é\n"
    assert path.read_text() == "new\n" and list(tmp_path.iterdir()) == [path]


def test_what_fails_leaves_the_earlier_file_alone(tmp_path):
    path = tmp_path / "table.md"
    path.write_text("earlier\n")
    with pytest.raises(RuntimeError):
        with replaced_file(path) as aside:
            aside.write_text("half")
            raise RuntimeError
    assert path.read_text() == "earlier\n" and list(tmp_path.iterdir()) == [path]


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
