"""What lies in folders is not lost, and damage in it is told in a line."""

import errno
import hashlib
import io
import json
import os
import shutil
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from preparation import downloads, main, steps
from preparation.archives import is_sound, unpack
from preparation.corpora.multi30k import Multi30k
from preparation.corpora.ptb import PTB
from preparation.errors import DataError
from preparation.finished import is_finished
from preparation.lines import decode_lines
from preparation.make_text import splits_of
from preparation.options import _num_cores
from preparation.sources import damage_reported
from preparation_runs import fail, options_of, prepare, snapshot, succeed
from small_corpora import manythings_files, tatoeba_files
from small_texts import LANGUAGES, SPLITS, write_files, zipped


def test_binaries_of_another_pair_are_not_replaced(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        write_files(tmp_path / "mine", {f"{split}.en-fr.{end}": b"1" for end in ("fr.bin", "fr.idx", "en.bin")})
    write_files(tmp_path / "mine", {"dict.en.txt": b"a 1\n", "dict.fr.txt": b"b 1\n"})
    before = snapshot(tmp_path)
    options = options_of(Multi30k(), "de-en", "--dest", tmp_path / "mine")
    with pytest.raises(
        DataError, match="mine holds other binaries than multi30k de-en: delete it or pass another --dest"
    ):
        is_finished(Multi30k(), "multi30k de-en, 3 merges", options)
    assert snapshot(tmp_path) == before


def test_a_folder_that_is_replaced_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, removed = tmp_path / "text", []
    write_files(target, {"old": b"old"})
    remove = shutil.rmtree

    def rmtree(path: Path, **options: object) -> None:
        removed.append(Path(path).name)
        remove(path, **options)

    monkeypatch.setattr(steps.shutil, "rmtree", rmtree)
    with pytest.raises(KeyboardInterrupt), steps.new_folder(target) as folder:
        (folder / "new").touch()
        raise KeyboardInterrupt
    assert [path.name for path in target.iterdir()] == ["old"]
    with steps.new_folder(target) as folder:
        (folder / "new").touch()
    assert [path.name for path in target.iterdir()] == ["new"] and "text" not in removed
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_sets_of_tatoeba_are_not_taken_for_each_other(here: Path) -> None:
    write_files(here / "x", manythings_files())
    write_files(here / "y", tatoeba_files())
    succeed("tatoeba", "en", "--from", "x", cwd=here)
    assert "already complete" in succeed("tatoeba", "en", "--from", "x", cwd=here).stderr
    done = prepare("tatoeba", "en", "--from", "y", cwd=here)
    assert done.returncode == 1 and "already holds 'tatoeba en, split of deu.txt" in done.stderr
    succeed("tatoeba", "en", "--from", "y", "--dest", "z", cwd=here)
    write_files(here / "y", {"test.en.gz": b"Another set.\n"})
    assert "z was made from other files than those in y" in fail(
        "tatoeba", "en", "--from", "y", "--dest", "z", cwd=here
    )


@pytest.mark.parametrize("place", ["other", "work"])
def test_a_result_is_not_taken_for_one_of_other_files(place: str, here: Path) -> None:
    """They are those that were named, or those in the work folder."""
    texts = {f"{split}.txt": b"a b\n" for split in SPLITS}
    write_files(here / "x", texts)
    options = ["ptb", "--work", "work"]
    succeed(*options, "--from", "x", cwd=here)
    for known in ("x", "nowhere", "work"):  # files that are gone tell nothing
        assert "already complete" in succeed(*options, "--from", known, cwd=here).stderr
    write_files(here / place, {**texts, "test.txt": b"b a\n"})
    before = snapshot(here)
    message = fail(*options, *(["--from", place] if place == "other" else []), cwd=here)
    assert message.endswith(
        f"data-bin/ptb was made from other files than those in {place}: delete it or pass another --dest"
    )
    assert snapshot(here) == before
    record = here / "data-bin/ptb/prepared.txt"
    lines = record.read_text().splitlines()
    assert lines[1].startswith("files: ")
    record.write_text("\n".join([lines[0], *lines[2:]]))  # as it was before there were digests
    assert "already complete" in succeed(*options, "--from", place, cwd=here).stderr


@pytest.mark.parametrize("name", ["dict.en.txt", "train.de-en.de.bin", "test.de-en.en.idx", "flickr.de-en.de.bin"])
@pytest.mark.parametrize("damage", ["lacks", "has an empty", "has another"])
def test_a_result_that_lost_a_file_is_not_complete(name: str, damage: str, tmp_path: Path) -> None:
    splits = ("train", "valid", "test", "flickr")
    result = tmp_path / "result"
    binaries = [f"{split}.de-en.{side}.{end}" for split in splits for side in LANGUAGES for end in ("bin", "idx")]
    names = [*binaries, "dict.de.txt", "dict.en.txt"]
    write_files(result, {each: b"1" for each in names})
    (result / "digests.json").write_text(json.dumps(dict.fromkeys(names, hashlib.sha256(b"1").hexdigest())))
    counts = "".join(f"{split}.{side}: 3 lines, 9 tokens\n" for split in splits for side in LANGUAGES)
    (result / "prepared.txt").write_text(f"a recipe\n{counts}")
    arguments = Multi30k(), "a recipe", options_of(Multi30k(), "de-en", "--dest", result)
    assert is_finished(*arguments)
    told = f"result {damage} {name}"
    if damage == "lacks":
        (result / name).unlink()
    elif damage == "has an empty":
        (result / name).write_text("")
    else:
        (result / name).write_text("2")
        told = f"result/{name} is not as it was when digests.json was written"
    with pytest.raises(DataError, match=f"{told}: delete it to prepare it again"):
        is_finished(*arguments)


def test_binaries_of_the_host_are_not_empty(tmp_path: Path) -> None:
    names = ["dict.txt", *(f"{split}.{end}" for split in SPLITS for end in ("bin", "idx"))]
    write_files(tmp_path / "mine", {name: b"" if name == "valid.bin" else b"1" for name in names})
    with pytest.raises(DataError, match="mine has an empty valid.bin: delete it or pass another --dest"):
        is_finished(PTB, "ptb", options_of(PTB, "--dest", tmp_path / "mine"))


def test_text_that_lost_lines_is_not_binarised(here: Path) -> None:
    write_files(here / "x", tatoeba_files())
    options = ["tatoeba", "en", "--from", "x"]
    succeed(*options, cwd=here)
    text = here / "downloads/tatoeba/en/tokens/train.en"
    text.write_text("".join(text.read_text().splitlines(keepends=True)[:-1]))
    message = fail(*options, "--dest", "other", cwd=here)
    assert "tokens/train.en has 59 lines, not the 60 that were written: delete downloads/tatoeba/en/tokens" in message


def test_a_dictionary_without_words_is_no_result(here: Path) -> None:
    write_files(here / "x", tatoeba_files())
    message = fail("tatoeba", "en", "--from", "x", "--threshold", 100000, cwd=here)
    assert message == "error: no word of train is left for dict.txt: give a smaller --threshold"


@pytest.mark.parametrize("dest", ["work", "./work/", "link", "."])
def test_the_work_folder_is_not_in_the_destination(dest: str, here: Path) -> None:
    (here / "link").symlink_to("work")
    done = prepare("tatoeba", "en", "--from", "x", "--dest", dest, "--work", "work", cwd=here)
    assert done.returncode == 2 and "the folder of --work work, or holds it: pass another --dest" in done.stderr
    assert not (here / "work").exists()


def test_folders_that_are_none_are_told_with_the_remedy(here: Path) -> None:
    write_files(here / "x", manythings_files())
    (here / "file").touch()
    (here / "loop").symlink_to("loop")
    options = ["tatoeba", "en", "--from", "x"]
    for work in ("file", "loop", "loop/inside"):
        message = fail(*options, "--work", work, cwd=here)
        assert message.startswith(f"error: {work}: nothing can be written there (") and message.endswith(
            "another --work"
        )
    done = prepare(*options, "--dest", "loop", cwd=here)
    assert done.returncode == 2 and done.stderr.endswith("/loop is a symbolic link to itself: pass another --dest\n")
    assert "loop/inside: nothing can be written there (" in fail(*options, "--dest", "loop/inside", cwd=here)


def test_a_full_disk_is_told_with_the_remedy(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_files(here / "x", manythings_files())
    monkeypatch.setattr(main, "make_steps", fill)
    message = fail("tatoeba", "en", "--from", "x", cwd=here)
    remedy = "make room and run again, or pass another --work and --dest"
    assert message == f"error: a file: No space left on device: {remedy}"


def test_any_flipped_bit_of_an_archive_is_damage_or_nothing(tmp_path: Path) -> None:
    text = b"Go.\tGeh.\n" * 3
    content = zipped({"deu.txt": text})
    for place in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        (tmp_path / "a.zip").write_bytes(damaged)
        sound = is_sound(tmp_path / "a.zip")
        try:
            unpack(tmp_path / "a.zip", {"deu.txt"}, tmp_path)
        except DataError:
            continue
        assert sound and (tmp_path / "deu.txt").read_bytes() == text


def test_an_error_of_the_disk_is_no_damage() -> None:
    with pytest.raises(OSError, match="No space left"), damage_reported("a.zip"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(DataError, match="a.zip is truncated or damaged"), damage_reported("a.zip"):
        raise zipfile.BadZipFile


def test_a_full_disk_is_no_failure_of_a_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = io.BytesIO(b"the file")
    answer.headers = Message()  # type: ignore[attr-defined]
    asked = []
    monkeypatch.setattr(downloads.urllib.request, "urlopen", lambda *_, **__: asked.append(1) or answer)
    with pytest.raises(DataError, match="full.part: No space left on device: make room and run again"):
        Path(tmp_path / "full.part").symlink_to("/dev/full")
        downloads.download([("http://mirror/full", tmp_path / "full")], lambda path: True)
    assert asked == [1]


@pytest.mark.parametrize("dest", [".", "link"])
def test_a_folder_may_be_named_in_any_way(dest: str, here: Path) -> None:
    write_files(here / "x", manythings_files())
    (here / "real").mkdir()
    (here / "link").symlink_to("real")
    cwd = here / "real" if dest == "." else here
    work, source = here / "work", here / "x"
    succeed("tatoeba", "en", "--from", source, "--work", work, "--dest", dest, cwd=cwd)
    assert (here / "real/prepared.txt").is_file() and (here / "link").is_symlink()


def test_a_place_that_cannot_be_written_is_told_before_the_work(here: Path) -> None:
    write_files(here / "x", manythings_files())
    (here / "file").touch()
    done = prepare("tatoeba", "en", "--from", "x", "--dest", "file/inside", cwd=here)
    assert done.returncode == 1 and "file/inside: nothing can be written there" in done.stderr
    assert not (here / "downloads").exists()


def test_damaged_records_are_told(here: Path) -> None:
    write_files(here / "x", manythings_files())
    options = ["tatoeba", "en", "--from", "x"]
    succeed(*options, cwd=here)
    (here / "data-bin/tatoeba.en/prepared.txt").write_bytes(b"\xff\xfe")
    done = prepare(*options, cwd=here)
    assert done.returncode == 1 and "prepared.txt does not say what" in done.stderr
    record = next((here / "downloads").rglob("step.json"))
    record.write_bytes(b"\xff")
    assert "is already complete" in succeed(*options, "--dest", "other", cwd=here).stderr
    (record.parent / "splits.json").write_text("")
    with pytest.raises(DataError, match="splits.json is damaged: delete"):
        splits_of(record.parent)


def test_no_more_processes_than_cores_are_started() -> None:
    assert options_of(Multi30k(), "de-en", "--workers", "100000").workers == _num_cores()


def test_a_mirror_goes_with_a_download(here: Path) -> None:
    done = prepare("multi30k", "de-en", "--from", "x", "--mirror", "http://mirror", cwd=here)
    assert done.returncode == 2 and "--mirror is a place to download from, and --from downloads nothing" in done.stderr


def test_lines_that_end_with_cr_alone_are_refused() -> None:
    assert list(decode_lines(io.BytesIO(b"a\r\nb\rc\r\n"), "x")) == ["a", "b c"]
    with pytest.raises(DataError, match="x: its lines end with CR alone: convert them to LF"):
        list(decode_lines(io.BytesIO(b"a\rb\rc\r"), "x"))
