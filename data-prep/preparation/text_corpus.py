"""Corpora of one side for language models, binarised without further steps."""

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Optional

from .corpus import Corpus, next_command
from .lines import CHECK_OR_PASS, DataError, Row
from .sources import (
    check_digest,
    content_digest,
    file_lines,
    is_sound,
    mirror_urls,
    no_mirror_worked,
    plain_or_gz,
    try_download,
    unpack,
)

SPLITS = ("train", "valid", "test")
ARCHIVE = "archive"  # key of the file that has all splits


class Counts(NamedTuple):
    """Size of a split: tokens, with one end mark a line, and lines."""

    tokens: int
    lines: Optional[int] = None


class TextCorpus(Corpus):
    """A corpus of one side, whose words are separated by blanks."""

    def settle(self, options: Namespace, error: Callable[[str], None]) -> None:
        """One side, and every word in the dictionary."""
        options.result, options.subject = self.name, ""
        options.sides = options.kept_sides = ("txt",)
        options.threshold, options.joined_dictionary = 0, False

    def recipe(self, options: Namespace) -> str:
        """The corpus' name."""
        return self.name

    def variant(self, options: Namespace) -> str:
        """None."""
        return ""

    def report(self, options: Namespace) -> str:
        """Where the result is, and the command that trains on it."""
        return next_command(options.dest, recipe="reduced")


@dataclass(frozen=True, kw_only=True)
class ArchivedText(TextCorpus):
    """A corpus that is one archive with a member for each split, or three files."""

    name: str
    title: str
    archive: str
    members: str  # path in the archive, with * for the split
    archive_mirrors: tuple[str, ...]
    text_mirrors: tuple[str, ...] = ()  # for the members as files
    checksums: Mapping[str, str] = field(default_factory=dict)  # split -> SHA-256
    counts: Mapping[str, Counts]
    num_rows: int  # of the dictionary

    def _names(self) -> dict[str, str]:
        return {split: self.members.replace("*", split).rpartition("/")[2] for split in SPLITS}

    def _wanted(self) -> str:
        plain = " ".join(f"{split}.txt" for split in SPLITS)
        return f"{self.archive} (or {' '.join(self._names().values())}, or {plain})"

    def _find(self, folder: Path) -> dict[str, Path]:
        if (folder / self.archive).is_file():
            return {ARCHIVE: folder / self.archive}
        for names in (self._names(), {split: f"{split}.txt" for split in SPLITS}):
            files = {split: plain_or_gz(folder, name) for split, name in names.items()}
            if all(files.values()):
                return files
        return {}

    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """The archive, the files of its members, or ``train.txt``, ``valid.txt`` and ``test.txt``."""
        if files := self._find(folder):
            return files
        raise DataError(f"{folder} has no {self._wanted()}: put that there, or leave out --from to download")

    def download(self, folder: Path, options: Namespace) -> None:
        """The archive, or its members as files."""
        if self._find(folder):
            return
        urls = mirror_urls(options.mirror or self.archive_mirrors, self.archive)
        if try_download([(url, folder / self.archive) for url in urls], is_sound):
            return
        mirrors = options.mirror or self.text_mirrors if self.text_mirrors else ()
        for name in self._names().values():
            attempts = [(url, folder / name) for url in mirror_urls(mirrors, name)]
            if not (folder / name).is_file() and not try_download(attempts, _has_text):
                raise no_mirror_worked(self._wanted())

    def read(self, files: dict[str, Path], options: Namespace, scratch: Path) -> dict[str, Iterable[Row]]:
        """The three texts. Checksums and counts are verified."""
        texts, where = files, dict(files)
        if ARCHIVE in files:
            members = {split: self.members.replace("*", split) for split in SPLITS}
            unpacked = unpack(files[ARCHIVE], set(members.values()), scratch)
            texts = {split: unpacked[member] for split, member in members.items()}
            where = {split: f"{self._names()[split]} in {files[ARCHIVE]}" for split in SPLITS}
        for split, expected in self.checksums.items():
            if options.check:
                check_digest(content_digest(texts[split]), expected, where[split])
        return {
            split: counted_tokens(
                file_lines(texts[split], where[split]), self.counts[split] if options.check else None, where[split]
            )
            for split in SPLITS
        }

    def check_dictionary(self, num_rows: int, files: dict[str, Path], options: Namespace) -> None:
        """DataError unless the dictionary has ``self.num_rows`` rows."""
        if num_rows != self.num_rows:
            where = files.get(ARCHIVE) or files["train"]
            raise DataError(
                f"the vocabulary of {where} has {num_rows} words, expected {self.num_rows}: {CHECK_OR_PASS}"
            )


def counted_tokens(lines: Iterable[str], expected: Optional[Counts], name: object) -> Iterator[Row]:
    """Lines as rows. DataError at the end if there are none, or other numbers of lines and tokens than expected."""
    num_lines = num_tokens = 0
    for line in lines:
        num_lines += 1
        num_tokens += len(line.split()) + 1
        yield (line,)
    if not num_lines:
        raise DataError(f"{name} is empty")
    if expected and (num_tokens != expected.tokens or expected.lines not in (None, num_lines)):
        in_lines = f" in {expected.lines} lines" if expected.lines else ""
        raise DataError(
            f"{name} has {num_tokens} tokens in {num_lines} lines, expected {expected.tokens}{in_lines}: "
            f"{CHECK_OR_PASS}"
        )


def _has_text(path: Path) -> bool:
    return path.stat().st_size > 0
