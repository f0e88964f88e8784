"""Damage to files, as disks, transfers and editors leave it."""

from pathlib import Path
from typing import Callable, NamedTuple

from hypothesis import strategies as st

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
