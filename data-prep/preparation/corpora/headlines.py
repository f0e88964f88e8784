"""Corpora of headlines: AG News, Gigaword and Reuters-21578. The source is an article, the target its title."""

import csv
import html
import itertools
import re
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from ..corpus import given_path
from ..lines import DataError, MissingFiles, Row, clean
from ..parallel_corpus import ParallelCorpus, listed, split_rows
from ..sources import (
    Text,
    aligned_files,
    check_digest,
    counted,
    digest,
    download,
    file_lines,
    opened,
    text_file,
    unpack,
)


class HeadlineCorpus(ParallelCorpus):
    """Articles and titles in English, by default in lower case."""

    pairs = ["article-title"]
    max_ratio = 0.0
    max_length = 250
    lowercase = True
    recipe_of_two_dictionaries = "gigaword"
    recipe_of_one_dictionary = "agnews"


def screen(pairs: Iterable[Row], fault_of: Callable[[Row], str], split: str, drop: bool) -> Iterator[Row]:
    """Yield rows, without faulty ones if ``drop``, and report the faults at the end. ``fault_of`` gives "" for none."""
    faults: Counter = Counter()
    total = 0
    for pair in pairs:
        total += 1
        if fault := fault_of(pair):
            faults[fault] += 1
            if drop:
                continue
        yield pair
    if faults:
        action = "removed" if drop else "kept in their places"
        print(f"{split}: {faults.total()} of {total} items are invalid, {action}: {listed(faults)}", flush=True)


def wordless(sides: Sequence[str], row: Row) -> str:
    """Fault of a row that has a side without letter and digit, or ""."""
    return next((f"no word in {side}" for side, line in zip(sides, row) if not re.search(r"[^\W_]", line)), "")


# AG News: the description of a news item, and its headline


FILES = ["sample.csv", "test.csv"]  # the second has 1,000 more items
AGNEWS_MIRRORS = [
    "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv",
    "https://github.com/mhjabreel/CharCnn_Keras/raw/master/data/ag_news_csv",
]
NUM_ITEMS = 6600
AGNEWS_NUM_HELD_OUT = 400  # in valid, and in test
# SHA-256 of the items, fields joined by tabs
AGNEWS_CHECKSUM = "1475efbca06a1fff8c0dc403807f0fd45c36800160101bf26fc7c3716ae946c7"

# The corpus lacks the "&" of entities: " #39;" stands for "&#39;", " quot;" for "&quot;".
ENTITY = re.compile(r" ?(?<![&\w])(?:(?:lt|gt|amp|quot|apos|nbsp|hellip|mdash|ndash|pound|euro)|#[0-9]{2,5});")
TAG = re.compile(r"<[a-zA-Z/!][^<>]*(?:>|$)")
SPACE = re.compile(r"\s+")

AGENCY = re.compile(r" \(([^()]{2,30})\)$")  # at the end of a headline
UPDATE = re.compile(r" \(Update ?\d+\)$")
DATELINE = re.compile(
    r"(?:[A-Z][^():;!?]{0,50} )?\([^()]{2,30}\) --? "  # (Sports Network) -, NEW YORK (Reuters) -
    r"|[A-Z][A-Z .'/-]{1,30}(?:, [A-Z][A-Za-z. ]{1,20})?(?:,? [A-Z][a-z]{2,8}\.? [0-9]{1,2}(?:, [0-9]{4})?\.?)? --? "
)  # the second: BAGHDAD, Iraq -, WASHINGTON --, LONDON, Aug. 28. -


class AGNews(HeadlineCorpus):
    """Zhang et al. 2015, *Character-level Convolutional Networks for Text Classification*."""

    name = "agnews"
    title = "AG News, descriptions and headlines"
    num_merges = 4000
    lowered = "lower lines"  # not "lower tokens": results of this corpus were measured this way

    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """The first of FILES that exists."""
        for name in FILES:
            if path := text_file(folder, name):
                return {"items": path}
        raise MissingFiles(folder, " or ".join(FILES))

    def download(self, folder: Path, options: Namespace) -> None:
        """``test.csv``, from the first mirror that has it."""
        download(options.mirror or AGNEWS_MIRRORS, folder / "test.csv", _has_items)

    def read(self, files: dict[str, Text], options: Namespace, scratch: Path) -> dict[str, Iterable[Row]]:
        """A fixed split of the items. Those that share a description or headline with another are in train."""
        rows = read_items(files["items"])
        if options.check:
            found = sha256("\n".join("\t".join(row) for row in rows).encode()).hexdigest()
            check_digest(found, AGNEWS_CHECKSUM, f"what is read of {files['items']}")
        items = [item(headline, description) for _, headline, description in rows]
        size = max(1, len(items) * AGNEWS_NUM_HELD_OUT // NUM_ITEMS)
        splits = split_rows(items, num_valid=size, num_test=size)
        return {
            split: screen(pairs, partial(wordless, options.sides), split, drop=split == "train")
            for split, pairs in splits.items()
        }


def read_items(text: Text) -> list[list[str]]:
    """Class, headline and description of the first NUM_ITEMS items."""
    reader = csv.reader((f"{line}\n" for line in file_lines(text)), strict=True)
    rows = []
    try:
        for row in itertools.islice(reader, NUM_ITEMS):
            if len(row) != 3:
                raise DataError(f"{text}:{reader.line_num}: {len(row)} fields, expected class, headline, description")
            rows.append(row)
    except csv.Error as error:
        raise DataError(f"{text}:{reader.line_num}: not CSV ({error})") from None
    if not rows:
        raise DataError(f"{text} is empty")
    return rows


def item(headline: str, description: str) -> Row:
    """The cleaned description and headline, without agencies and datelines."""
    headline, description = plain_text(headline), plain_text(description)
    agency = AGENCY.search(headline)
    if agency and description.startswith(f"{agency[1]} - "):
        headline = headline[: agency.start()]
        description = description.removeprefix(f"{agency[1]} - ")
    headline = UPDATE.sub("", headline)
    dateline = DATELINE.match(description)
    return description[dateline.end() :] if dateline else description, headline


def plain_text(field: str) -> str:
    """A field without escaped line breaks, entities and tags."""
    text = field.replace("\\", " ")
    for _ in range(2):  # " amp;#39;"
        text = ENTITY.sub(lambda entity: html.unescape(f"&{entity[0].lstrip()}"), text)
    text = TAG.sub(" ", html.unescape(text))
    return SPACE.sub(" ", clean(text)).strip()


def _has_items(path: Path) -> bool:
    try:
        read_items(Text(path))
    except DataError:
        return False
    return True


# Annotated English Gigaword: the first sentence of an article, and its title, in Rush et al.'s split


PLACES = [".", "train", "sumdata/train", "org_data", "sumdata", "Giga", "sumdata/Giga"]

# File names of a split, article and title: sumdata of Rush et al., then org_data
LAYOUTS = {
    "train": [("train.article.txt", "train.title.txt"), ("train.src.txt", "train.tgt.txt")],
    "valid": [
        ("valid.article.filter.txt", "valid.title.filter.txt"),
        ("valid.article.txt", "valid.title.txt"),
        ("dev.src.txt", "dev.tgt.txt"),
        ("valid.src.txt", "valid.tgt.txt"),
    ],
    "test": [
        ("test.article.txt", "test.title.txt"),
        ("test.src.txt", "test.tgt.txt"),
        ("input.txt", "task1_ref0.txt"),
    ],
}

# numbers of lines by name of the article's file
NUM_PAIRS = {
    "train.article.txt": 3803957,
    "train.src.txt": 3803957,
    "valid.article.filter.txt": 189651,
    "dev.src.txt": 189651,
    "test.src.txt": 1951,
    "input.txt": 1951,
}

DIGITS = str.maketrans("0123456789", "#" * 10)
UNKNOWN = "<unk>"
UNKNOWN_WORDS = frozenset({"<unk>", "UNK", "unk", "[UNK]", "[unk]", "<UNK>"})
SYMBOL = re.compile(r"<(/?s|pad|unk)>")  # a symbol of fairseq inside a longer word
WORD = re.compile(r"[^\W_]")
BRACKET_NAMES = frozenset({"-lrb-", "-rrb-", "-lsb-", "-rsb-", "-lcb-", "-rcb-", "-LRB-", "-RRB-"})


class Gigaword(HeadlineCorpus):
    """Rush et al. 2015, *A Neural Attention Model for Abstractive Sentence Summarization*; test: Zhou et al. 2017."""

    name = "gigaword"
    title = "annotated English Gigaword, articles and titles"
    does = "Check, split into subwords and binarise"  # the text has its words already
    lowercase = False
    num_merges = 5000
    symbols = (UNKNOWN,)
    own_options = {
        "--test-source": dict(type=given_path, metavar="FILE", help="articles of the test set, as of Zhou et al. 2017"),
        "--test-target": dict(type=given_path, metavar="FILE", help="titles of the test set"),
        "--drop-invalid": dict(action="store_true", help="remove invalid items from valid and test as well"),
    }

    def variant(self, options: Namespace) -> str:
        """The test set, and whether invalid items are dropped."""
        test = ""
        if options.test_source and options.test_target:
            marks = "+".join(digest(path)[:8] for path in (options.test_source, options.test_target) if path.is_file())
            test = f"test set {marks}"
        return ", ".join(filter(None, [test, "no invalid item" if options.drop_invalid else ""]))

    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """Train, valid and test in any layout. With ``--test-source`` the layout's own test set becomes ``rush``."""
        if bool(options.test_source) != bool(options.test_target):
            raise DataError("--test-source and --test-target belong together: pass both")
        found = {split: self._find(folder, split) for split in LAYOUTS}
        if options.test_source:
            for path in (options.test_source, options.test_target):
                if not path.is_file():
                    raise DataError(f"{path} is not a file: pass the test set's files, one item a line")
            found = {
                "train": found["train"],
                "valid": found["valid"],
                "test": (options.test_source, options.test_target),
                **({"rush": found["test"]} if found["test"] else {}),
            }
        if missing := [split for split, paths in found.items() if paths is None]:
            wanted = "; ".join(f"{split}: " + " or ".join(" + ".join(p) for p in LAYOUTS[split]) for split in missing)
            remedy = "put both files there, .gz or not, or name another folder with --from"
            remedy += " or the test set with --test-source and --test-target" if "test" in missing else ""
            raise MissingFiles(folder, wanted, remedy)
        return {f"{split}.{side}": path for split, paths in found.items() for side, path in zip(options.sides, paths)}

    def download(self, folder: Path, options: Namespace) -> None:
        """DataError: the corpus has no stable address, and its text is licensed by the LDC."""
        raise DataError(
            "Gigaword cannot be downloaded by a script: see data-prep/gigaword/README.md for where to get "
            "train.article.txt, train.title.txt and the others, then run again with --from DIR"
        )

    def read(self, files: dict[str, Text], options: Namespace, scratch: Path) -> dict[str, Iterable[Row]]:
        """The splits with digits as ``#``. Invalid items of train are dropped, others with ``--drop-invalid``."""
        splits = list(dict.fromkeys(name.partition(".")[0] for name in files))
        return {split: self._read(files, split, options) for split in splits}

    def _read(self, files: dict[str, Text], split: str, options: Namespace) -> Iterator[Row]:
        source, target = (files[f"{split}.{side}"] for side in options.sides)
        pairs = aligned_files(source, target)
        expected = NUM_PAIRS.get(re.sub(r"\.(gz|bz2|xz)$", "", source.path.name))
        if options.check and expected and source.path != options.test_source:
            pairs = counted(pairs, expected, source)
        without_digits = ((source.translate(DIGITS), target.translate(DIGITS)) for source, target in pairs)
        return screen(
            without_digits, partial(item_fault, options.sides), split, split == "train" or options.drop_invalid
        )

    def words_of_text(self, options: Namespace) -> dict[str, str]:
        """The tokens of the text."""
        return {"tokenizer": "blanks", "case": "lower tokens" if options.lowercase else "kept"}

    def tokenizer(self, side: str, options: Namespace) -> Callable[[str], str]:
        """The tokens of the text. All spellings of the unknown word become one."""

        def tokenize(line: str) -> str:
            return " ".join(_token(word.lower() if options.lowercase else word) for word in line.split())

        return tokenize

    def _find(self, folder: Path, split: str) -> tuple[Path, Path] | None:
        for names in LAYOUTS[split]:
            for place in PLACES:
                source, target = (text_file(folder / place, name) for name in names)
                if source and target:
                    return source, target
        return None


def item_fault(sides: tuple[str, str], pair: Row) -> str:
    """Fault of an item, or ""."""
    for side, line in zip(sides, pair):
        words = line.split()
        if not words:
            return f"empty {side}"
        if all(word in UNKNOWN_WORDS for word in words):
            return f"only unknown words in {side}"
        if not any(_is_word(word) for word in words):
            return f"no word in {side}"
    return ""


def _is_word(word: str) -> bool:
    return word not in UNKNOWN_WORDS and word not in BRACKET_NAMES and bool(WORD.search(word) or "#" in word)


def _token(word: str) -> str:
    if word in UNKNOWN_WORDS:
        return UNKNOWN
    while SYMBOL.search(word):  # removing one may leave another
        word = SYMBOL.sub(r"\1", word)
    return word if not word.endswith("@@") else word.rstrip("@") + "@"


# Reuters-21578: the first sentence of a newswire document, and its title in lower case


RELEASE = "reuters21578.tar.gz"
REUTERS_MIRRORS = [
    "https://kdd.ics.uci.edu/databases/reuters21578",
    "http://www.daviddlewis.com/resources/testcollections/reuters21578",
]
PARTS = [f"reut2-{number:03d}.sgm" for number in range(22)]
JOINED = "reut2-000-020.sgm"  # the first 20 parts and half of the next, concatenated
NUM_DOCUMENTS = 20500  # documents of that file, which are the first ones of the release
# SHA-256 of raw titles and bodies, joined by line breaks
REUTERS_CHECKSUM = "bee585e078bc89beb1d5df4823631cfe4f9596286273f7bc07c61f07bc1711b4"
REUTERS_NUM_HELD_OUT = 1000  # in valid, and in test

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
    """Raw title and body, with entities."""

    title: str
    body: str


class Reuters21578(HeadlineCorpus):
    """Lewis 1997, *Reuters-21578 text categorization test collection*: newswire of 1987."""

    name = "reuters21578"
    recipe_of_one_dictionary = "reuters21578"
    title = "Reuters-21578, first sentences and titles"
    num_merges = 5000

    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """The joined file, all parts of the release, or its archive."""
        if path := text_file(folder, JOINED):
            return {JOINED: path}
        parts = {name: text_file(folder, name) for name in PARTS}
        if all(parts.values()):
            return parts
        if (folder / RELEASE).is_file():
            return {RELEASE: folder / RELEASE}
        raise MissingFiles(folder, f"{RELEASE} (or {PARTS[0]} to {PARTS[-1]}, or {JOINED})")

    def download(self, folder: Path, options: Namespace) -> None:
        """The release's archive."""
        download(options.mirror or REUTERS_MIRRORS, folder / RELEASE)

    def read(self, files: dict[str, Text], options: Namespace, scratch: Path) -> dict[str, Iterable[Row]]:
        """Train, valid and test in the order of the files. No title or first sentence is in two of them."""
        texts = unpack(files[RELEASE], set(PARTS), scratch) if RELEASE in files else files
        names = [JOINED] if JOINED in texts else PARTS
        where = next(iter(files.values())) if len(files) == 1 else files[PARTS[0]].path.parent
        found = list(itertools.islice(documents(texts[name] for name in names), NUM_DOCUMENTS))
        written = [document for document in found if document]
        if len(written) < 10:
            raise DataError(f"{where} has {len(written)} documents with a title and a body: at least 10 are expected")
        if options.check:
            content = "\n".join(f"{document.title}\n{document.body}" for document in written)
            check_digest(sha256(content.encode()).hexdigest(), REUTERS_CHECKSUM, f"what is read of {where}")
        splits = split_documents([(first_sentence(document.body), title(document)) for document in written])
        fault_of = partial(wordless, options.sides)
        return {split: screen(rows, fault_of, split, drop=True) for split, rows in splits.items()}


def documents(texts: Iterable[Text]) -> Iterator[Document | None]:
    """Documents of SGML files in their order. None for one without title or body."""
    for text in texts:
        with opened(text) as file:
            *found, rest = DOCUMENT_END.split(file.read().decode("latin-1").replace("\r\n", "\n"))
        if "<REUTERS" in rest:
            raise DataError(f"{text}: the last <REUTERS> is not closed: is the file truncated?")
        for document in found:
            parts = TITLE.search(document), BODY.search(document)
            yield Document(*(part[1] for part in parts)) if all(parts) else None


def title(document: Document) -> str:
    """The title in lower case, on one line."""
    return one_line(html.unescape(document.title)).lower()


def first_sentence(body: str) -> str:
    """The text up to the end of the first sentence or of the first paragraph, whichever is earlier.

    A paragraph ends where the next line is indented or blank. A full stop does not end a sentence after initials, after
    an abbreviation, or before a word in lower case.
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


def split_documents(rows: list[Row]) -> dict[str, list[Row]]:
    """Train, valid and test. The last REUTERS_NUM_HELD_OUT rows are test, as many before them valid, at most 10 % each.

    Rows of valid whose title or first sentence is also in train are dropped, and rows of test where it is in either.
    """
    size = min(REUTERS_NUM_HELD_OUT, len(rows) // 10)
    splits = {"train": rows[: len(rows) - 2 * size], "valid": rows[-2 * size : -size], "test": rows[-size:]}
    sentences: set[str] = set()
    titles: set[str] = set()
    for split, earlier in [("train", ""), ("valid", "train"), ("test", "train or valid")]:
        if earlier:
            other_titles = [row for row in splits[split] if row[1] not in titles]
            kept = [row for row in other_titles if row[0] not in sentences]
            print(
                f"{split}: dropped {size - len(other_titles)} of {size} documents whose title is in {earlier}, and "
                f"{len(other_titles) - len(kept)} more whose first sentence is"
            )
            splits[split] = kept
        sentences.update(sentence for sentence, _ in splits[split])
        titles.update(title for _, title in splits[split])
    return splits
