"""Small versions of all corpora in the original layouts, as data-prep reads them."""

import bz2
import csv
import gzip
import io
import lzma
import random
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

from generated_corpora import SPLITS, gold_trees

LANGUAGES = ("de", "en")
WORDS = {
    "de": "Hund Häuser läuft grüne Straße, am und's",
    "en": "dog houses runs green street, at don't",
    "fr": "chien maisons l'été vert « rue », aujourd'hui",
}


def sentences(language: str, count: int, seed: int = 1) -> list[str]:
    """Sentences. The n-th one contains the number n in every language."""
    rng = random.Random(f"{seed}")
    words = WORDS[language].split()
    return [" ".join([str(n), *rng.choices(words, k=rng.randint(3, 6)), "."]) for n in range(count)]


def text_of(lines: list[str], end: str = "\n") -> bytes:
    """The bytes of a file with these lines."""
    return "".join(f"{line}{end}" for line in lines).encode()


def tgz(members: dict[str, bytes]) -> bytes:
    """A reproducible .tgz archive."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(content.getvalue(), mtime=0)


def zipped(members: dict[str, bytes]) -> bytes:
    """A reproducible .zip archive."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return content.getvalue()


def named(pattern: str, texts: dict[str, bytes]) -> dict[str, bytes]:
    """Files by names with the split in place of the star."""
    return {pattern.replace("*", split): text for split, text in texts.items()}


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files below a folder. Those with names in ``.gz``, except ``.tar.gz``, are compressed."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" and ".tar" not in name else data)
    return folder


YEARS = ["dev2010", "tst2010", "tst2011", "tst2012", "tst2013", "tst2014"]
IWSLT14_SETS = ["TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"]


def tagged(talks: list[list[str]], end: str = "\n") -> bytes:
    """``train.tags`` text."""
    out = []
    for number, talk in enumerate(talks):
        out += [f"<url>http://www.ted.com/talks/{number}.html</url>", "<keywords>talks, R & D</keywords>"]
        out += ["<speaker>A. Speaker</speaker>", f"<talkid>{number}</talkid>", "<title>A <em>nested</em> title</title>"]
        out += ["<description>TED Talk Subtitles and Transcript: <b>x</b> & y</description>"]
        out += [f" {line} " for line in talk]
        out += [f'<{by} href="http://www.ted.com/profiles/1">Someone</{by}>' for by in ("reviewer", "translator")]
    return text_of(out, end)


def xml(talks: dict[str, list[str]], end: str = "\n") -> bytes:
    """A development or test set, with unescaped ``&`` as in the original."""
    out = ['<?xml version="1.0" encoding="UTF-8"?>', "<mteval>", '<refset setid="iwslt2016" trglang="x" refid="ref">']
    for number, talk in talks.items():
        out += [f'<doc docid="{number}" genre="lectures">', f"<url>http://www.ted.com/talks/{number}?a=1&b=2</url>"]
        out += ["<description>Q & A, 1 < 2</description>", f"<talkid>{number}</talkid>", "<title>A &eacute;</title>"]
        out += [f'<seg id="{index}"> {line} </seg>' for index, line in enumerate(talk, 1)]
        out += ["</doc>"]
    return text_of([*out, "</refset>", "</mteval>"], end)


def iwslt16_files(pair: str, folder: str = "", *, end: str = "\n") -> dict[str, bytes]:
    """A release of 2016: three talks for training, one talk of three lines for each year."""
    files = {}
    for language in pair.split("-"):
        train = sentences(language, 60)
        train[5] = "AT&amp;T &#8212; 1 < 2 &unknown; R&D"
        train[7] = "<3 is no tag, <em>neither</em>"
        files[f"{folder}train.tags.{pair}.{language}"] = tagged([train[:20], train[20:21], train[21:]], end)
        for year in YEARS:
            talk = [f"{year} first in {language} .", "Q&A with <b>Procter &amp; <i>Gamble</i></b>&nbsp;: 1 < 2", "bye"]
            files[f"{folder}IWSLT16.TED.{year}.{pair}.{language}.xml"] = xml({"69": talk}, end)
    return files


def iwslt14_files(folder: str = "") -> dict[str, bytes]:
    """A release of 2014, German-English: two talks for training, one talk of two lines for each set."""
    files = {}
    for language in LANGUAGES:
        train = sentences(language, 90)
        train[9] = "word " * 176
        files[f"{folder}train.tags.de-en.{language}"] = tagged([train[:20], train[20:]])
        for name in IWSLT14_SETS:
            talk = xml({"69": [f"{name} in {language} \u2019s", "The end"]})
            files[f"{folder}IWSLT14.{name}.de-en.{language}.xml"] = talk
    return files


ARCHIVES = {
    "europarl-v7": ("training-parallel-europarl-v7.tgz", "training/"),
    "commoncrawl": ("training-parallel-commoncrawl.tgz", ""),
    "news-commentary-v9": ("training-parallel-nc-v9.tgz", "training/"),
}


def sgm(test: str, kind: str, language: str, texts: list[str], end: str = "\n") -> bytes:
    """A development or test set in the campaigns' SGML: two documents, the second of one segment."""
    lines = [f'<{kind}set setid="{test}" srclang="any" trglang="{language}">']
    for docid, (first, *others) in [("bbc.1", texts[:-1]), ("cnn.2", texts[-1:])]:
        lines += [f'<doc sysid="ref" docid="{docid}" genre="news" origlang=en>', "<hl>"]
        lines += [f'<seg id="1">{first}</seg>', "</hl>", "<p>"]
        lines += [*(f'<seg id="{number}"> {text} </seg>' for number, text in enumerate(others, 2)), "</p>", "</doc>"]
    return text_of([*lines, f"</{kind}set>"], end)


TEXT = ["Q&amp;A with R&D &lt;b&gt;", "nested <b>bold <i>and</i></b> text", "caf&eacute; &#8211; 1 < 2 <3", "the end"]


def release_files(*, end: str = "\n", without: str = "") -> dict[str, bytes]:
    """All archives with 30, 20 and 10 training pairs. ``without`` names a missing member."""
    archives: dict[str, dict[str, bytes]] = {archive: {} for archive, _ in ARCHIVES.values()}
    archives |= {"dev.tgz": {}, "test-full.tgz": {}}
    for language in LANGUAGES:
        for seed, (corpus, (archive, place)) in enumerate(ARCHIVES.items()):
            lines = [f"{corpus} {line}" for line in sentences(language, 30 - 10 * seed, seed)]
            archives[archive][f"{place}{corpus}.de-en.{language}"] = text_of(lines)
            archives[archive][f"{place}{corpus}.fr-en.{language}"] = b"another pair\n"
        for year in range(2012, 2017):
            test, folder = f"newstest{year}", "test-full" if year == 2014 else "dev"
            for direction in [""] if year < 2014 else ["-deen", "-ende"][: 1 if year == 2014 else 2]:
                for kind in ["src", "ref"]:
                    name = f"{folder}/{test}{direction}-{kind}.{language}.sgm"
                    archives[f"{folder}.tgz"][name] = sgm(test, kind, language, [f"{test} {language}", *TEXT], end)
    return {
        archive: tgz({name: data for name, data in members.items() if not without or without not in name})
        for archive, members in archives.items()
    }


PTB = {"train": b" a b <unk> b \n c a N \n", "valid": b" b c \n", "test": b" a c unseen \n c \n"}
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
ORG_DATA = {split: (f"{name}.src.txt", f"{name}.tgt.txt") for split, name in zip(SPLITS, ("train", "dev", "test"))}


def ptb_files() -> dict[str, bytes]:
    return {"simple-examples.tgz": tgz(named("./simple-examples/data/ptb.*.txt", PTB))}


def wikitext_files(corpus: str) -> dict[str, bytes]:
    return {f"{corpus}-v1.zip": zipped(named(f"{corpus}/wiki.*.tokens", WIKITEXT))}


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


def own_files() -> dict[str, bytes]:
    """Each split in another compression."""
    files = {}
    packs = {"gz": bytes, "bz2": bz2.compress, "xz": lzma.compress}  # write_files makes .gz
    for seed, (split, end) in enumerate(zip(SPLITS, packs)):
        for lang in LANGUAGES:
            text = text_of(sentences(lang, 60 if split == "train" else 6, seed))
            files[f"{split}.{lang}.{end}"] = packs[end](text)
    return files


def manythings_files() -> dict[str, bytes]:
    pairs = zip(sentences("en", 100), sentences("de", 100))
    lines = [f"{english}\t{german}\tCC-BY 2.0 #{number}" for number, (english, german) in enumerate(pairs)]
    return {"deu-eng.zip": zipped({"_about.txt": b"about", "deu.txt": text_of(lines)})}


PARTIAL = {
    "train.de": ["er &apos;s hund , und &quot; haus &quot; .", "b c", "d e"],
    "train.en": ["he &apos;s a dog .", "b", "e"],
    "valid.de": ["a &amp; b .", "c d", "e f", "g ."],
    "valid.en": ["it &apos;s &amp; b .", "c , d", "e", "g ."],
}


def iwslt14_partial_files() -> dict[str, bytes]:
    return {f"{name}.gz": text_of(lines) for name, lines in PARTIAL.items()}


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


def agnews_files() -> dict[str, bytes]:
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


TREE = "( (S (NP-SBJ-1 (NN {word})) (VP (VBD was) (VP (VBN seen) (NP (-NONE- *-1)))) (. .)) )\n"
CLEAN_TREE = "(S1 (S (NP (NN {word})) (VP (VBD was) (VP (VBN seen))) (. .)))"


def two_trees(number: int) -> bytes:
    return "".join(TREE.format(word=f"word{number}x{article}") for article in (1, 2)).encode()


def wsj_sections(names: str = "{:02d}.mrg") -> dict[str, bytes]:
    """A file of two trees for each section."""
    return {names.format(number): two_trees(number) for number in range(2, 25)}


def wsj_articles(place: str, end: str = ".mrg") -> dict[str, bytes]:
    """A tree over several lines for each article, two articles a section, and other sections and files."""
    files = {}
    for number in range(25):
        for article, tree in enumerate(two_trees(number).splitlines(keepends=True), 1):
            name = f"{place}/{number:02d}/wsj_{number:02d}{article:02d}{end}"
            files[name] = b"\n" + tree.replace(b" (VP (VBD", b"\n    (VP (VBD") + b"\n"
    return {**files, f"{place}/02/readme": b"no tree"}


def nltk_sample(place: str = "corpora/treebank/combined") -> dict[str, bytes]:
    """Articles of two trees each, as NLTK packs them; every tenth is compressed."""
    names = {number: f"{place}/wsj_{number:04d}.mrg{'' if number % 10 else '.gz'}" for number in range(1, 200)}
    return {f"{place}/README": b"no tree", **{name: two_trees(number) for number, name in names.items()}}


class SmallCorpus(NamedTuple):
    """A small corpus and its expected result."""

    corpus: str
    options: tuple[str, ...]
    files: dict[str, bytes]  # in the layout of the original
    download: str  # the first file that would be downloaded; "" if none can be
    refused: str  # the error when the real corpus is demanded; "" if it passes
    other_option: tuple[str, ...] = ("--merges", "21")  # makes another result of it

    @property
    def result(self) -> str:
        """The folder in data-bin."""
        subject = next((f".{option}" for option in self.options[:1] if not option.startswith("--")), "")
        return f"{self.corpus}{subject}{'-sample' if self.corpus == 'wsj' else ''}"


ONE, PAIR = ("--merges", "20"), ("de-en", "--merges", "20")
THRESHOLD = ("--threshold", "2")
TEXT8 = {"text8.zip": zipped({"text8": text8(3000).encode()})}
IWSLT14, IWSLT16 = ({"de-en.tgz": tgz(files)} for files in (iwslt14_files("de-en/"), iwslt16_files("de-en", "de-en/")))
SMALL_CORPORA = [
    SmallCorpus("ptb", (), ptb_files(), "simple-examples.tgz", "ptb.train.txt in .*tgz has SHA-256 .* fcea919f", ()),
    *(
        SmallCorpus(name, (), wikitext_files(name), f"{name}-v1.zip", error, ())
        for name, error in [
            ("wikitext-2", "wiki.train.tokens in .*zip has SHA-256 .* expected 9e9fa1ad"),
            ("wikitext-103", "has 20 tokens in 7 lines, expected 103227021:"),
        ]
    ),
    SmallCorpus("text8", (), TEXT8, "text8.zip", "3000 words in [0-9]+ .* 17005207 in 100000000", THRESHOLD),
    SmallCorpus("multi30k", PAIR, multi30k_files(), "train.de.gz", r"x/train\.de\.gz has SHA-256 .* 2c2b73fd"),
    SmallCorpus("tatoeba", PAIR, tatoeba_files(), "deu-eng.zip", ""),
    SmallCorpus("tatoeba", ("en",), manythings_files(), "deu-eng.zip", "", THRESHOLD),
    SmallCorpus("own", PAIR, own_files(), "", ""),
    SmallCorpus(
        "own", ("fr", "--split", "5,4", "--merges", "20"), {"news.fr.gz": text_of(sentences("fr", 60))}, "", ""
    ),
    SmallCorpus("iwslt14", PAIR, IWSLT14, "de-en.tgz", "dev2010.de-en.de.xml in .* has 2 lines, expected 887"),
    SmallCorpus("iwslt16", PAIR, IWSLT16, "de-en.tgz", "dev2010.de-en.de.xml in .* has 3 lines, expected 887"),
    SmallCorpus("wmt14", PAIR, release_files(), "training-parallel-europarl-v7.tgz", "de.sgm in .*dev.tgz .*d 3003"),
    SmallCorpus("gigaword", ONE, gigaword_files(), "", "40 lines, expected 3803957"),
    SmallCorpus("agnews", ONE, agnews_files(), "test.csv", "sample.csv.gz has SHA-256 .* 1475efbc"),
    SmallCorpus("reuters21578", ONE, reuters_files(), "reuters21578.tar.gz", "sgm.gz has SHA-256 .* bee585e0"),
    SmallCorpus("wsj", (), wsj_files(), "", "gold.train.trees.gz has SHA-256 .*, expected e8d6b31d", THRESHOLD),
]
