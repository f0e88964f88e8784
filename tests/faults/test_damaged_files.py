"""A damaged file ends a command with one line, or changes no figure of what has a checksum or a fixed length."""

from pathlib import Path
from typing import Callable, NamedTuple

import pytest
from command_table import READINGS, contents
from forks import in_fork, program
from hypothesis import strategies as st
from trials import check_end, check_figures, check_files, faults, figures

from fairseq_plugins.commands.app import COMMANDS

pytestmark = pytest.mark.slow
CHECKED = (".pt", ".idx")
"""Damage to these is always found: archives have checksums, and the numbers of an index must fit together."""
MEASURED = (".bin", ".arpa")
"""Loss of an end of these is always found."""


# damage, as disks, transfers and editors leave it

INSERTED = [b"\0", b"\xff", b"\n", b"\r\n", b"\xe2\x80\xa8", b"nan", b"-1", b" ", b"\t", b"\xef\xbb\xbf", b"9" * 30]


class Damage(NamedTuple):
    """One damage to a file.

    Attributes:
        kind: ``cut``, ``flipped``, ``inserted``, ``exchanged`` or ``removed``.
        details: as a failure shows them.
        apply: does it.
    """

    kind: str
    details: str
    apply: Callable[[Path], None]


def _rewrite(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def rewrite(path: Path) -> None:
        path.write_bytes(change(path.read_bytes()))

    return rewrite


def _cut(share: float) -> Damage:
    return Damage("cut", f"to {share:.4f}", _rewrite(lambda whole: whole[: int(share * len(whole))]))


def _flip(share: float, bits: int) -> Damage:
    def flipped(whole: bytes) -> bytes:
        place = int(share * len(whole))
        return whole[:place] + bytes([whole[place] ^ bits]) + whole[place + 1 :]

    return Damage("flipped", f"bits {bits} at {share:.4f}", _rewrite(flipped))


def _insert(share: float, content: bytes) -> Damage:
    def longer(whole: bytes) -> bytes:
        place = int(share * len(whole))
        return whole[:place] + content + whole[place:]

    return Damage("inserted", f"{content!r} at {share:.4f}", _rewrite(longer))


def _make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _exchange(other: str) -> Damage:
    def exchange(path: Path) -> None:
        folder = next(parent for parent in path.parents if (parent / "noise").exists())
        path.write_bytes((folder / other).read_bytes())

    return Damage("exchanged", f"for {other}", exchange)


def damages() -> st.SearchStrategy[Damage]:
    """Damage of every kind."""
    share = st.floats(0, 1, exclude_max=True)
    others = ["noise", "zeros", "empty", "text", "lm.pt", "translator.pt", "lm/test.idx", "weights", "ngram.arpa"]
    removed = [Damage("removed", "", Path.unlink), Damage("removed", "for a folder", _make_folder)]
    return st.one_of(
        share.map(_cut),
        st.builds(_flip, share, st.integers(1, 255)),
        st.builds(_insert, share, st.sampled_from(INSERTED)),
        st.sampled_from(others).map(_exchange),
        st.sampled_from(removed),
    )


# what commands make of it


def run(reading, folder):
    return in_fork(program(reading.words), folder=folder, stdin=reading.stdin)


def test_every_command_that_reads_files_is_tried():
    lines = [" ".join(reading.words[1:3]) for reading in READINGS.values()]
    left_out = {"fine-tune", "run", "train", "flags", "serve"}  # which reads what export and lm score read
    assert all(any(f"{line} ".startswith(f"{name} ") for line in lines) for name in COMMANDS.keys() - left_out)


@pytest.mark.parametrize("name", READINGS)
def test_damage_is_told_or_changes_nothing(name, workplace, pytestconfig):
    reading = READINGS[name]
    with workplace() as folder:
        whole = run(reading, folder)
        assert whole.status == 0, whole
        whole_result = reading.result(folder)
        assert whole_result is None or whole_result

    @faults(pytestconfig, name, share=1 / len(READINGS))
    def check(file, damage):
        with workplace() as folder:
            damage.apply(folder / file)
            before = contents(folder)
            ended = run(reading, folder)
            check_end(ended, told=reading.told)
            check_figures(ended)
            check_files(before, folder)
            if (name, damage.kind) == ("fairseq-generate", "removed") and ".tgt." in file:
                return  # fairseq decodes without targets
            checked = file.endswith(CHECKED) and damage.kind != "exchanged"
            if checked or damage.kind == "cut" and file.endswith(MEASURED):
                assert ended.status != 0 or figures(ended) == figures(whole), damage
                assert ended.status != 0 or reading.result(folder) == whole_result, damage

    check(st.sampled_from(reading.reads), damages())
