"""AG News as headline generation: the description of a news item, its headline."""

import csv
import html
import re
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path

from ..downloads import download, mirror_urls
from ..errors import DataError
from ..headlines import HeadlineCorpus, wordless
from ..lines import Row, clean
from ..sources import check_digest, file_lines, plain_or_gz
from ..tokens import screen

FILES = ["sample.csv", "test.csv"]  # the second holds the first's items and 1,000 more
MIRRORS = [
    "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv",
    "https://github.com/mhjabreel/CharCnn_Keras/raw/master/data/ag_news_csv",
]
NUM_ITEMS = 6600
NUM_HELD_OUT = 400  # in valid, and in test
CHECKSUM = (
    "1475efbca06a1fff8c0dc403807f0fd45c36800160101bf26fc7c3716ae946c7"  # SHA-256 of the items, fields joined by tabs
)

# What the corpus' authors left of an entity: " #39;" of "&#39;", " quot;" of "&quot;".
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
    lowercase_recipe = "lowercase"

    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """The first of FILES that is there."""
        for name in FILES:
            if path := plain_or_gz(folder, name):
                return {"items": path}
        raise DataError(f"{folder} has no {' or '.join(FILES)}: put it there, or leave out --from to download")

    def download(self, folder: Path, options: Namespace) -> None:
        """``test.csv``, from the first mirror that has it."""
        if not any(plain_or_gz(folder, name) for name in FILES):
            urls = mirror_urls(options.mirror or MIRRORS, "test.csv")
            download([(url, folder / "test.csv") for url in urls], _has_items)

    def read(self, files: dict[str, Path], options: Namespace, scratch: Path) -> dict[str, Iterable[Row]]:
        """A fixed split of the items; those that share a description or headline with another are in train."""
        path = files["items"]
        rows = read_rows(path)
        if options.check:
            found = sha256("\n".join("\t".join(row) for row in rows).encode()).hexdigest()
            check_digest(found, CHECKSUM, f"what is read of {path}")
        splits = split_items([item(headline, description) for _, headline, description in rows])
        return {
            split: screen(pairs, partial(wordless, options.sides), split, drop=split == "train")
            for split, pairs in splits.items()
        }

    def tokenizer(self, side: str, lowercase: bool) -> Callable[[str], str]:
        """Moses' for English, of a line that is lower-cased already: elsewhere it is the tokens."""
        # The results of this corpus were measured with this order.
        tokenize = super().tokenizer(side, lowercase=False)
        return (lambda line: tokenize(line.lower())) if lowercase else tokenize


def read_rows(path: Path) -> list[list[str]]:
    """Class, headline and description of the first NUM_ITEMS items."""
    reader = csv.reader((f"{line}\n" for line in file_lines(path)), strict=True)
    rows = []
    try:
        for row in islice(reader, NUM_ITEMS):
            if len(row) != 3:
                raise DataError(f"{path}:{reader.line_num}: {len(row)} fields, expected class, headline, description")
            rows.append(row)
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not CSV ({error})") from None
    if not rows:
        raise DataError(f"{path} is empty")
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
    """A field without the escaping of line breaks, entities and tags."""
    text = field.replace("\\", " ")
    for _ in range(2):  # " amp;#39;"
        text = ENTITY.sub(lambda entity: html.unescape(f"&{entity[0].lstrip()}"), text)
    text = TAG.sub(" ", html.unescape(text))
    return SPACE.sub(" ", clean(text)).strip()


def split_items(items: list[Row]) -> dict[str, list[Row]]:
    """Train, valid and test: by a checksum, hence at random and the same everywhere; each in the items' order."""
    owners = defaultdict(set)
    keys = [[(side, re.sub(r"\W+", " ", text.lower()).strip()) for side, text in enumerate(pair)] for pair in items]
    for index, pair in enumerate(keys):
        for key in pair:
            owners[key].add(index)
    alone = [
        index
        for index, pair in enumerate(keys)
        if all(len(owners[key]) == 1 for key in pair) and not wordless(("", ""), items[index])
    ]
    alone.sort(key=lambda index: sha256("\t".join(items[index]).encode()).digest())
    size = NUM_HELD_OUT if len(items) == NUM_ITEMS else max(1, len(items) * NUM_HELD_OUT // NUM_ITEMS)
    held_out = {"valid": sorted(alone[size : 2 * size]), "test": sorted(alone[:size])}
    train = sorted(set(range(len(items))).difference(*held_out.values()))
    return {split: [items[index] for index in chosen] for split, chosen in {"train": train, **held_out}.items()}


def _has_items(path: Path) -> bool:
    try:
        read_rows(path)
    except DataError:
        return False
    return True
