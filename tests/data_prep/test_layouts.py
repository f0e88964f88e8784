"""Every layout in which a corpus may come gives the same text. The real corpora have their known sizes."""

import re
import shutil
from pathlib import Path

import pytest
from corpora import corpus_folder
from preparation import segments
from preparation.corpora import CORPORA, headlines, ted_talks, wsj
from preparation_runs import options_of, read_all, succeed
from small_corpora import (
    CLEAN_TREE,
    GIGAWORD,
    LANGUAGES,
    ORG_DATA,
    PTB,
    WIKITEXT,
    gigaword_files,
    iwslt14_files,
    iwslt16_files,
    named,
    nltk_sample,
    ptb_files,
    release_files,
    reuters_files,
    sentences,
    text8,
    text_of,
    tgz,
    wikitext_files,
    write_files,
    wsj_articles,
    wsj_sections,
    zipped,
)

TEXT8 = text8(4000).encode()
MANYTHINGS = [f"Go {n}.\tGeh {n}!\tCC-BY" for n in range(40)]
IWSLT14, IWSLT16 = iwslt14_files("de-en/"), iwslt16_files("de-en", "de-en/")
RELEASE16 = {"2016-01/texts/en/de/en-de.tgz": tgz({"x": b"x\n"}), "2016-01/texts/de/en/de-en.tgz": tgz(IWSLT16)}
PLAIN_GIGAWORD = {**GIGAWORD, "valid": ("train/valid.article.txt", "train/valid.title.txt")}
REUTERS = reuters_files()["reut2-000-020.sgm.gz"]
ENDS = [0, *(match.end() for match in re.finditer(b"</REUTERS>\n", REUTERS))]
REUTERS_PARTS = dict.fromkeys(headlines.PARTS, b"<!DOCTYPE lewis>\n")
for part, start, end in (("000", 0, 10), ("001", 10, 50), ("021", 50, 60)):
    REUTERS_PARTS[f"reut2-{part}.sgm"] += REUTERS[ENDS[start] : ENDS[end]]


def manythings(code: str) -> list[dict[str, bytes]]:
    text = text_of(MANYTHINGS)
    return [{f"{code}.txt": text.replace(b"\n", b"\r\n")}, {f"{code}-eng.zip": zipped({f"{code}.txt": text})}]


def below(folder: str, files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{folder}/{name}": data for name, data in files.items()}


LAYOUTS = [
    ("ptb", "", [ptb_files(), *(named(names, PTB) for names in ("ptb.*.txt", "*.txt", "*.txt.gz"))]),
    ("wikitext-2", "", [wikitext_files("wikitext-2"), named("wiki.*.tokens", WIKITEXT), named("*.txt", WIKITEXT)]),
    ("text8", "", [{"text8.zip": zipped({"text8": TEXT8})}, {"text8": TEXT8}, {"text8.gz": TEXT8}]),
    ("text8", "--level char --characters 5000", [{"text8": TEXT8}, {"text8.prefix.gz": TEXT8}]),
    *[("tatoeba", pair, manythings(code)) for pair, code in (("en-de", "deu"), ("zh-en", "cmn"), ("tlh-en", "tlh"))],
    ("iwslt14", "de-en", [{"de-en.tgz": tgz(IWSLT14)}, IWSLT14, iwslt14_files()]),
    (
        "iwslt16",
        "de-en",
        [{"2016-01.tgz": tgz(RELEASE16)}, {"de-en.tgz": tgz(IWSLT16)}, IWSLT16, iwslt16_files("de-en")],
    ),
    *[("wmt14", pair, [release_files(), release_files(end="\r\n")]) for pair in ("de-en", "en-de")],
    (
        "gigaword",
        "",
        [
            *(gigaword_files(GIGAWORD, end=end) for end in ("", ".gz")),
            *(gigaword_files(layout, end="") for layout in (PLAIN_GIGAWORD, ORG_DATA)),
            below("sumdata", gigaword_files(GIGAWORD)),
        ],
    ),
    ("reuters21578", "", [{"reut2-000-020.sgm": REUTERS}, REUTERS_PARTS, {"reuters21578.tar.gz": tgz(REUTERS_PARTS)}]),
    (
        "wsj",
        "",
        [
            *(wsj_articles(place) for place in (".", "parsed/mrg/wsj")),
            wsj_articles("combined/wsj", ".mrg.gz"),
            *(wsj_sections(names) for names in ("{:02d}.mrg", "wsj/wsj_{:02d}.trees")),
        ],
    ),
    ("wsj", "", [nltk_sample(place) for place in ("corpora/treebank/combined", "treebank/combined", "combined", ".")]),
]


@pytest.mark.parametrize("corpus, options, layouts", LAYOUTS)
def test_layouts(corpus: str, options: str, layouts: list[dict[str, bytes]], tmp_path: Path) -> None:
    texts = []
    for number, files in enumerate(layouts):
        folder = write_files(tmp_path / str(number), files)
        texts.append(read_all(CORPORA[corpus], folder, options_of(CORPORA[corpus], *options.split(), "--from", folder)))
    assert all(texts[0].values())
    assert all(text == texts[0] for text in texts[1:])
    if corpus == "tatoeba":
        rows = sorted(row if options.startswith("en") else row[::-1] for rows in texts[0].values() for row in rows)
        assert rows == sorted((f"Go {n}.", f"Geh {n}!") for n in range(40))
    if corpus == "gigaword":
        article = "article # <unk> : " + sentences("en", 3)[2].lower().replace("2", "#")
        assert len(texts[0]["train"]) == 40 and texts[0]["valid"][2] == (article, "title # UNK ##")
    if corpus == "wsj":
        numbers = {"train": range(2, 22), "valid": [22], "test": [23], "dev": [24]}
        if len(texts[0]) == 3:
            numbers = {"train": range(1, 150), "valid": range(150, 170), "test": range(170, 200)}
        for split, of_split in numbers.items():
            words = [f"word{number}x{article}" for number in of_split for article in (1, 2)]
            assert texts[0][split] == [(CLEAN_TREE.format(word=word),) for word in words]


@pytest.mark.parametrize("pair", ["en-de", "de-en"])
def test_unpacked_archives(pair: str, tmp_path: Path) -> None:
    folder, corpus = write_files(tmp_path / "archives", release_files()), CORPORA["wmt14"]
    expected = read_all(corpus, folder, options_of(corpus, pair))
    assert len(expected["train"]) == 60 and expected["test"][0] == tuple(f"newstest2014 {s}" for s in pair.split("-"))
    for path in folder.iterdir():
        shutil.unpack_archive(path, tmp_path / "files")
    assert read_all(corpus, tmp_path / "files", options_of(corpus, pair)) == expected
    other = read_all(corpus, tmp_path / "files", options_of(corpus, pair, "--valid", "newstest2015"))
    assert other["valid"] == expected["newstest2015"] and other["newstest2013"] == expected["valid"]
    write_files(tmp_path / "less", release_files(without="newstest2015"))
    assert "newstest2015" not in read_all(corpus, tmp_path / "less", options_of(corpus, pair))


def test_only_the_first_documents_of_reuters_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headlines, "NUM_DOCUMENTS", 50)
    corpus = CORPORA["reuters21578"]
    texts = read_all(corpus, write_files(tmp_path, REUTERS_PARTS), options_of(corpus))
    assert [len(rows) for rows in texts.values()] == [40, 5, 5]


REAL = [
    ("ptb", "ptb", "", (42068, 3370, 3761)),
    ("wikitext-2", "wikitext-2", "", (36718, 3760, 4358)),
    ("text8", "text8", "--characters 12549840", (1927, 106, 108)),
    ("multi30k", "multi30k", "de-en", (29000, 1014, 1000)),
    ("multi30k", "multi30k", "en-fr", (29000, 1014, 1000)),
    ("tatoeba-de-en", "tatoeba", "en-de", (160381, 2000, 2000)),
    ("tatoeba-de-en", "tatoeba", "de", (160381, 2000, 2000)),
    ("iwslt14-partial", "iwslt14", "de-en --partial", (45853, 3641, 3642)),
    ("agnews", "agnews", "", (5800, 400, 400)),
    ("reuters21578", "reuters21578", "", (16160, 947, 946)),
]


@pytest.mark.data
@pytest.mark.parametrize("folder, name, options, sizes", REAL)
def test_real_corpus(folder: str, name: str, options: str, sizes: tuple[int, ...]) -> None:
    """Its checksums and counts are verified while it is read."""
    corpus, settled = CORPORA[name], options_of(CORPORA[name], *options.split(), check=True)
    texts = read_all(corpus, corpus_folder(folder), settled)
    assert tuple(len(texts[split]) for split in ("train", "valid", "test")) == sizes
    rows = [row for rows in texts.values() for row in rows]
    if name in ("ptb", "wikitext-2"):
        words = {word for (line,) in texts["train"] for word in line.split()} - {"<unk>"}
        corpus.check_dictionary(len(words), corpus.find(corpus_folder(folder), settled), settled)
    if name == "iwslt14":
        reference = corpus.reference("en", settled)
        raw = [reference(row[1]) for row in texts["test"]]
        assert raw[0] == "yes, you know it." and not any(re.search(r"&(apos|quot|amp);", line) for line in raw)
    if name in ("agnews", "reuters21578"):
        for side in range(2):
            train, valid, test = ({re.sub(r"\W+", " ", row[side].lower()) for row in part} for part in texts.values())
            assert name == "reuters21578" or not (train & valid or train & test or valid & test)
        assert not [row for row in rows if re.search(r"#\d\d;|quot;|\\|&[lg]t;|[\x00-\x1f\x7f-\x9f]", " ".join(row))]
    if name == "agnews":
        assert not any(re.match(r".{0,30}\((AP|Reuters|AFP)\) -|(AP|Reuters|AFP) -", row[0]) for row in texts["test"])
        assert not any(re.search(r"\((AP|Reuters|AFP)\)$", row[1]) for row in texts["test"])
    if name == "reuters21578":
        assert all(title == title.lower() and 0 < len(article.split()) < 70 for article, title in rows)
        dateline = re.compile(r"[A-Z .,]{3,30}, (Jan|Feb|March|April|June|Oct)\b.* - ")
        assert not [article for article, _ in rows if dateline.match(article)]
        for side in range(2):
            train, valid, test = ({row[side] for row in part} for part in texts.values())
            assert not (train & valid or train & test or valid & test)


@pytest.mark.data
@pytest.mark.parametrize("year", ["dev2010", "tst2010", "tst2011", "tst2012"])
def test_real_years_of_iwslt16(year: str) -> None:
    names = [f"IWSLT16.TED.{year}.de-en.{language}.xml" for language in LANGUAGES]
    pairs = segments.xml_pairs(*(corpus_folder("iwslt16") / "de-en" / name for name in names), *names)
    assert len(pairs) == ted_talks.NUM_PAIRS["de"][year] and all(map(all, pairs))
    assert not re.search("&(amp|lt|gt|quot);", " ".join(line for pair in pairs for line in pair))


@pytest.mark.data
@pytest.mark.slow
def test_real_trees(here: Path) -> None:
    source = corpus_folder("wsj-sample")
    done = succeed("wsj", "--from", source, cwd=here, check=True)
    assert "train: 1031 words, 25 unknown classes, 25 labels" in done.stdout
    dest = here / "data-bin" / "wsj-sample"
    record = (dest / "prepared.txt").read_text().splitlines()
    for split, num_lines, num_tokens in (("train", 3253, 203746), ("valid", 248, 15856), ("test", 413, 24974)):
        assert f"{split}: {num_lines} lines, {num_tokens} tokens with one end mark a line" in record
    assert "dict.txt: 1105 rows" in record and wsj.NUM_TREES["train"] == 39832
    for split in ("valid", "test"):  # they are clean already
        assert (dest / f"trees/gold.{split}.trees").read_bytes() == (source / f"gold.{split}.trees").read_bytes()
