"""Every corpus in small, in the originals' layout: what the contract of corpora is tested on."""

import csv
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from generated_corpora.parses import gold_trees
from iwslt_files import iwslt14_files, iwslt16_files
from preparation.errors import CHECK_OR_PASS, PASS_OTHERS
from small_texts import LANGUAGES, SPLITS, sentences, text_of, tgz, write_files, zipped
from wmt14_archives import release_files

PTB = {
    "train": b" a b <unk> b \n c a N \n",
    "valid": b" b c \n",
    "test": b" a c unseen \n c \n",
}
WIKITEXT = {
    "train": " \n = Tïtle = \n \n a b <unk> 、 b \n \n = = End = = \n\n".encode(),
    "valid": b" \n = Other = \n \n a b c b unseen \n",
    "test": b" \n a , b \n \n \n b . \n",
}
MULTI30K = {"train": 60, "val": 9, "test_2016_flickr": 7}
GIGAWORD = {
    "train": ("train/train.article.txt", "train/train.title.txt"),
    "valid": ("train/valid.article.filter.txt", "train/valid.title.filter.txt"),
    "test": ("Giga/input.txt", "Giga/task1_ref0.txt"),
}


class SmallCorpus(NamedTuple):
    """A small corpus and what is known of it."""

    corpus: str
    files: Callable[[], dict[str, bytes]]  # in the layout of the original
    options: tuple[str, ...]
    result: str  # folder in data-bin
    download: str  # the first file that would be downloaded; "" if none can be
    refused: str  # what is said of it when the real corpus is demanded; "" if it passes
    other_option: tuple[str, ...] = ("--merges", "21")  # makes another result of it
    remedy: str = CHECK_OR_PASS  # where the real corpus is demanded


def ptb_files() -> dict[str, bytes]:
    return {"simple-examples.tgz": tgz({f"./simple-examples/data/ptb.{s}.txt": text for s, text in PTB.items()})}


def wikitext_files(corpus: str) -> dict[str, bytes]:
    return {f"{corpus}-v1.zip": zipped({f"{corpus}/wiki.{s}.tokens": text for s, text in WIKITEXT.items()})}


def text8(num_words: int) -> str:
    generator = random.Random(2)
    words = ["".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=generator.randint(1, 9))) for _ in range(400)]
    return " " + " ".join(generator.choices(words, weights=[1 / (i + 1) for i in range(400)], k=num_words))


def multi30k_files(num_lines: int = 60) -> dict[str, bytes]:
    sizes = {**MULTI30K, "train": num_lines}
    return {f"{split}.{lang}.gz": text_of(sentences(lang, sizes[split])) for split in sizes for lang in LANGUAGES}


def tatoeba_files() -> dict[str, bytes]:
    sizes = {"train": 60, "valid": 5, "test": 4}
    return {
        f"{split}.{lang}.gz": text_of(sentences(lang, sizes[split], seed))
        for seed, split in enumerate(SPLITS)
        for lang in LANGUAGES
    }


def manythings_files() -> dict[str, bytes]:
    pairs = zip(sentences("en", 100), sentences("de", 100))
    lines = [f"{english}\t{german}\tCC-BY 2.0 #{number}" for number, (english, german) in enumerate(pairs)]
    return {"deu-eng.zip": zipped({"_about.txt": b"about", "deu.txt": text_of(lines)})}


def gigaword_items(count: int) -> list[tuple[str, str]]:
    lines = sentences("en", count)
    return [(f"article {n} <unk> : {line.lower()}", f"title {n} UNK ##") for n, line in enumerate(lines)]


def gigaword_files(
    layout: dict[str, tuple[str, str]] = GIGAWORD, train: list | None = None, end: str = ".gz"
) -> dict[str, bytes]:
    files = {}
    for split, names in layout.items():
        items = (train or gigaword_items(40)) if split == "train" else gigaword_items(6)
        files |= {f"{name}{end}": text_of(list(side)) for name, side in zip(names, zip(*items))}
    return files


def agnews_files(rows: list[tuple[str, str, str]] | None = None) -> dict[str, bytes]:
    if rows is None:
        rows = [("3", f'Title "{n}" of Things', f"AP - {line}") for n, line in enumerate(sentences("en", 66))]
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return {"sample.csv.gz": text.getvalue().encode()}


def reuters_document(number: int, title: str, body: str) -> str:
    return (
        f'<REUTERS TOPICS="YES" NEWID="{number}">\n<DATE>26-FEB-1987</DATE>\n<TEXT>&#2;\n<TITLE>{title}</TITLE>\n'
        f"<DATELINE>    SALVADOR, Feb 26 - </DATELINE><BODY>{body}\n Reuter\n&#3;</BODY></TEXT>\n</REUTERS>\n"
    )


def reuters_files(count: int = 60) -> dict[str, bytes]:
    documents = [
        reuters_document(n, f"TITLE {n} &lt;T{n}>", f"{line[:-2]} here\nand there. A second one.\n    More.")
        for n, line in enumerate(sentences("en", count))
    ]
    return {"reut2-000-020.sgm.gz": "".join(documents).encode("latin-1")}


def wsj_files() -> dict[str, bytes]:
    return {f"gold.{split}.trees.gz": text_of(gold_trees(split)) for split in SPLITS}


SMALL_CORPORA = [
    SmallCorpus(
        "ptb",
        ptb_files,
        (),
        "ptb",
        "simple-examples.tgz",
        "ptb.train.txt in .*tgz has SHA-256 .* expected fcea919f",
        (),
    ),
    SmallCorpus(
        "wikitext-2",
        lambda: wikitext_files("wikitext-2"),
        (),
        "wikitext-2",
        "wikitext-2-v1.zip",
        "wiki.train.tokens in .*zip has SHA-256 .* expected 9e9fa1ad",
        (),
    ),
    SmallCorpus(
        "wikitext-103",
        lambda: wikitext_files("wikitext-103"),
        (),
        "wikitext-103",
        "wikitext-103-v1.zip",
        "has 20 tokens in 7 lines, expected 103227021:",
        (),
    ),
    SmallCorpus(
        "text8",
        lambda: {"text8.zip": zipped({"text8": text8(3000).encode()})},
        (),
        "text8",
        "text8.zip",
        "has 3000 words in [0-9]+ characters, expected 17005207 in 100000000",
        ("--threshold", "2"),
    ),
    SmallCorpus(
        "multi30k",
        multi30k_files,
        ("de-en", "--merges", "20"),
        "multi30k.de-en",
        "train.de.gz",
        r"train\.de in x/train\.de\.gz has SHA-256 [0-9a-f]{64}, expected 2c2b73fd",
    ),
    SmallCorpus("tatoeba", tatoeba_files, ("de-en", "--merges", "20"), "tatoeba.de-en", "deu-eng.zip", ""),
    SmallCorpus("tatoeba", manythings_files, ("en",), "tatoeba.en", "deu-eng.zip", "", ("--threshold", "2")),
    SmallCorpus(
        "iwslt14",
        lambda: {"de-en.tgz": tgz({f"de-en/{name}": data for name, data in iwslt14_files().items()})},
        ("de-en", "--merges", "20"),
        "iwslt14.de-en",
        "de-en.tgz",
        "dev2010.de-en.de.xml in .* has 2 lines, expected 887",
    ),
    SmallCorpus(
        "iwslt16",
        lambda: {"de-en.tgz": tgz({f"de-en/{name}": data for name, data in iwslt16_files("de-en").items()})},
        ("de-en", "--merges", "20"),
        "iwslt16.de-en",
        "de-en.tgz",
        "dev2010.de-en.de.xml in .* has 3 lines, expected 887",
    ),
    SmallCorpus(
        "wmt14",
        release_files,
        ("de-en", "--merges", "20"),
        "wmt14.de-en",
        "training-parallel-europarl-v7.tgz",
        "newstest2012-src.de.sgm in .*dev.tgz has 5 lines, expected 3003",
    ),
    SmallCorpus("gigaword", gigaword_files, ("--merges", "20"), "gigaword", "", "40 lines, expected 3803957"),
    SmallCorpus(
        "agnews",
        agnews_files,
        ("--merges", "20"),
        "agnews",
        "test.csv",
        "sample.csv.gz has SHA-256 .*, expected 1475efbc",
    ),
    SmallCorpus(
        "reuters21578",
        reuters_files,
        ("--merges", "20"),
        "reuters21578",
        "reuters21578.tar.gz",
        "sgm.gz has SHA-256 .*, expected bee585e0",
    ),
    SmallCorpus(
        "wsj",
        wsj_files,
        (),
        "wsj-sample",
        "",
        "gold.train.trees.gz has SHA-256 .*, expected e8d6b31d",
        ("--threshold", "2"),
        PASS_OTHERS,
    ),
]


def write_corpus(folder: Path, small: SmallCorpus) -> Path:
    """The corpus' files."""
    return write_files(folder, small.files())
