"""Reuters-21578 as headline generation: the first sentence of a newswire document, its title in lower case."""

import html
import itertools
import re
from argparse import Namespace
from collections.abc import Iterable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from ..archives import is_sound, unpack
from ..downloads import download, mirror_urls
from ..errors import DataError
from ..headlines import HeadlineCorpus, wordless
from ..lines import Row
from ..sources import check_digest, opened, plain_or_gz
from ..tokens import screen

RELEASE = "reuters21578.tar.gz"
MIRRORS = [
    "https://kdd.ics.uci.edu/databases/reuters21578",
    "http://www.daviddlewis.com/resources/testcollections/reuters21578",
]
PARTS = [f"reut2-{number:03d}.sgm" for number in range(22)]
JOINED = "reut2-000-020.sgm"  # the first 20 parts and half of the next, one after the other
NUM_DOCUMENTS = 20500  # of that file; the first ones of the release
CHECKSUM = "bee585e078bc89beb1d5df4823631cfe4f9596286273f7bc07c61f07bc1711b4"
# The checksum is that of titles and bodies as they are written, joined by line breaks.
NUM_HELD_OUT = 1000  # in valid, and in test

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
DOCUMENT_END = re.compile(r"</REUTERS>")
TITLE = re.compile(r"<TITLE>(.*?)</TITLE>", re.DOTALL)
BODY = re.compile(r"<BODY>(.*?)</BODY>", re.DOTALL)
PARAGRAPH_END = re.compile(r"\n(?:[ \t]|\s*\n)")
SIGNATURE = re.compile(r"(?:^|\s)reuters?\s*$", re.IGNORECASE)
SENTENCE_END = re.compile(r"""(?P<word>\S*)[.!?]["')\]]*(?= +["'(<]?[A-Z0-9])""")
INITIALS = re.compile(r"""["'(<]*(?:[\w/-]+[.-])?(?:[A-Za-z]\.)*[A-Za-z]""")
ABBREVIATIONS = frozenset(
    "Adm Bros Capt Co Col Corp Cos Dept Dr Fla Ft Ga Gen Gov Hon Inc Jr Lt Ltd Md Messrs Mr Mrs Ms Mt No Nos Pa Plc "
    "Prof Rep Reps Rev Sen Sens Sgt Sr St Ste Va Wm Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec vs".split()
)


class Document(NamedTuple):
    """Title and body as they are written, entities and all."""

    title: str
    body: str


class Reuters21578(HeadlineCorpus):
    """Lewis 1997, *Reuters-21578 text categorization test collection*: newswire of 1987."""

    name = "reuters21578"
    title = "Reuters-21578, first sentences and titles"
    num_merges = 5000

    def _find(self, folder: Path) -> dict[str, Path]:
        if path := plain_or_gz(folder, JOINED):
            return {JOINED: path}
        parts = {name: plain_or_gz(folder, name) for name in PARTS}
        if all(parts.values()):
            return parts
        return {RELEASE: folder / RELEASE} if (folder / RELEASE).is_file() else {}

    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """The joined file, or all parts of the release, or its archive."""
        if files := self._find(folder):
            return files
        raise DataError(
            f"{folder} has no {RELEASE} (or {PARTS[0]} to {PARTS[-1]}, or {JOINED}): put it there, .gz or not, "
            "or leave out --from to download"
        )

    def download(self, folder: Path, options: Namespace) -> None:
        """The release's archive."""
        if not self._find(folder):
            urls = mirror_urls(options.mirror or MIRRORS, RELEASE)
            download([(url, folder / RELEASE) for url in urls], is_sound)

    def read(self, files: dict[str, Path], options: Namespace, scratch: Path) -> dict[str, Iterable[Row]]:
        """Train, valid and test in the order of the files; a title or first sentence is in one split only."""
        texts = unpack(files[RELEASE], set(PARTS), scratch) if RELEASE in files else files
        names = [JOINED] if JOINED in texts else PARTS
        where = " and ".join(str(path) for path in files.values()) if len(files) == 1 else f"{files[PARTS[0]].parent}"
        found = list(itertools.islice(documents(texts[name] for name in names), NUM_DOCUMENTS))
        written = [document for document in found if document]
        if len(written) < 10:
            raise DataError(f"{where} has {len(written)} documents with a title and a body: at least 10 are expected")
        if options.check:
            content = "\n".join(f"{document.title}\n{document.body}" for document in written)
            check_digest(sha256(content.encode()).hexdigest(), CHECKSUM, f"what is read of {where}")
        splits = split_rows([(first_sentence(document.body), title(document)) for document in written])
        fault_of = partial(wordless, options.sides)
        return {split: screen(rows, fault_of, split, drop=True) for split, rows in splits.items()}


def documents(paths: Iterable[Path]) -> Iterator[Document | None]:
    """The documents of SGML files in their order; None for one that lacks title or body."""
    for path in paths:
        with opened(path) as file:
            *found, rest = DOCUMENT_END.split(file.read().decode("latin-1").replace("\r\n", "\n"))
        if "<REUTERS" in rest:
            raise DataError(f"{path}: the last <REUTERS> is not closed: is the file truncated?")
        for text in found:
            parts = TITLE.search(text), BODY.search(text)
            yield Document(*(part[1] for part in parts)) if all(parts) else None


def title(document: Document) -> str:
    """The title in lower case, on one line."""
    return one_line(html.unescape(document.title)).lower()


def first_sentence(body: str) -> str:
    """What comes before the end of the first sentence, or of the first paragraph, whichever is earlier.

    A paragraph ends where the next line is indented or blank. A full stop ends no sentence after initials, after an
    abbreviation, or before a word in lower case.
    """
    paragraph = one_line(PARAGRAPH_END.split(html.unescape(body).strip(), maxsplit=1)[0])
    paragraph = SIGNATURE.sub("", paragraph)
    for end in SENTENCE_END.finditer(paragraph):
        word = end["word"]
        stops = paragraph[end.end("word")] == "."
        if not (stops and (INITIALS.fullmatch(word) or word.lstrip("\"'(<") in ABBREVIATIONS)):
            return paragraph[: end.end()]
    return paragraph


def one_line(text: str) -> str:
    """Text with one space between words and without control characters."""
    return " ".join(CONTROL.sub(" ", text).split())


def split_rows(rows: list[Row]) -> dict[str, list[Row]]:
    """The last NUM_HELD_OUT rows for test, as many before them for valid, fewer of few rows.

    A row leaves valid if its title or its first sentence is in train as well, and test if it is in train or valid.
    """
    size = min(NUM_HELD_OUT, len(rows) // 10)
    splits = {"train": rows[: len(rows) - 2 * size], "valid": rows[-2 * size : -size], "test": rows[-size:]}
    sentences: set[str] = set()
    titles: set[str] = set()
    for split, earlier in [("train", ""), ("valid", "train"), ("test", "train or valid")]:
        if earlier:
            other_titles = [row for row in splits[split] if row[1] not in titles]
            kept = [row for row in other_titles if row[0] not in sentences]
            print(
                f"{split}: {size - len(other_titles)} of {size} documents leave, their titles are in {earlier}, "
                f"and {len(other_titles) - len(kept)} more, their first sentences are"
            )
            splits[split] = kept
        sentences.update(sentence for sentence, _ in splits[split])
        titles.update(title for _, title in splits[split])
    return splits
