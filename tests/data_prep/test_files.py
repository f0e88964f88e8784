"""Files of the corpora: layouts that give the same text, the real corpora, user errors that name file or flag."""

import bz2
import gzip
import lzma
import random
import re
import shlex
import shutil

import pytest
from paths import ROOT
from preparation import segments
from preparation.corpora import CORPORA, headlines, ted_talks, wsj
from preparation.sources import Text
from preparation_runs import fail, options_of, prepare, read_all, succeed
from real_corpora import corpus_folder
from small_corpora import (
    CLEAN_TREE,
    GIGAWORD,
    LANGUAGES,
    ORG_DATA,
    PTB,
    SPLITS,
    WIKITEXT,
    gigaword_files,
    iwslt14_files,
    iwslt14_partial_files,
    iwslt16_files,
    manythings_files,
    multi30k_files,
    named,
    nltk_sample,
    own_files,
    ptb_files,
    release_files,
    reuters_document,
    reuters_files,
    sentences,
    tatoeba_files,
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


def manythings(code):
    text = text_of(MANYTHINGS)
    return [{f"{code}.txt": text.replace(b"\n", b"\r\n")}, {f"{code}-eng.zip": zipped({f"{code}.txt": text})}]


IWSLT16_FILES = iwslt16_files("de-en")
GIGAWORDS = [gigaword_files(layout, end=e) for layout in (GIGAWORD, PLAIN_GIGAWORD, ORG_DATA) for e in ("", ".gz")]
GIGAWORDS.append({f"sumdata/{name}": data for name, data in gigaword_files().items()})
ARTICLES = [wsj_articles("."), wsj_articles("parsed/mrg/wsj"), wsj_articles("combined/wsj", ".mrg.gz")]
LAYOUTS = [
    ("ptb", "", [ptb_files(), *(named(names, PTB) for names in ("ptb.*.txt", "*.txt", "*.txt.gz"))]),
    ("wikitext-2", "", [wikitext_files("wikitext-2"), named("wiki.*.tokens", WIKITEXT), named("*.txt", WIKITEXT)]),
    ("text8", "", [{"text8.zip": zipped({"text8": TEXT8})}, {"text8": TEXT8}, {"text8.gz": TEXT8}]),
    ("text8", "--level char --characters 5000", [{"text8": TEXT8}, {"text8.prefix.gz": TEXT8}]),
    *[("tatoeba", pair, manythings(code)) for pair, code in (("en-de", "deu"), ("zh-en", "cmn"), ("tlh-en", "tlh"))],
    ("iwslt14", "de-en", [{"de-en.tgz": tgz(IWSLT14)}, IWSLT14, iwslt14_files()]),
    ("iwslt16", "de-en", [{"2016-01.tgz": tgz(RELEASE16)}, {"de-en.tgz": tgz(IWSLT16)}, IWSLT16, IWSLT16_FILES]),
    *[("wmt14", pair, [release_files(), release_files(end="\r\n")]) for pair in ("de-en", "en-de")],
    ("gigaword", "", GIGAWORDS),
    ("reuters21578", "", [{"reut2-000-020.sgm": REUTERS}, REUTERS_PARTS, {"reuters21578.tar.gz": tgz(REUTERS_PARTS)}]),
    ("wsj", "", [*ARTICLES, wsj_sections(), wsj_sections("wsj/wsj_{:02d}.trees")]),
    ("wsj", "", [nltk_sample(place) for place in ("corpora/treebank/combined", "treebank/combined", "combined", ".")]),
]


@pytest.mark.parametrize("corpus, options, layouts", LAYOUTS)
def test_layouts(corpus, options, layouts, tmp_path):
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


def test_unpacked_archives(tmp_path):
    folder, corpus, pair = write_files(tmp_path / "archives", release_files()), CORPORA["wmt14"], "en-de"
    expected = read_all(corpus, folder, options_of(corpus, pair))
    assert len(expected["train"]) == 60 and expected["test"][0] == tuple(f"newstest2014 {s}" for s in pair.split("-"))
    for path in folder.iterdir():
        shutil.unpack_archive(path, tmp_path / "files")
    assert read_all(corpus, tmp_path / "files", options_of(corpus, pair)) == expected
    other = read_all(corpus, tmp_path / "files", options_of(corpus, pair, "--valid", "newstest2015"))
    assert other["valid"] == expected["newstest2015"] and other["newstest2013"] == expected["valid"]
    write_files(tmp_path / "less", release_files(without="newstest2015"))
    assert "newstest2015" not in read_all(corpus, tmp_path / "less", options_of(corpus, pair))


def test_only_the_first_documents_of_reuters_are_read(tmp_path, monkeypatch):
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
def test_real_corpus(folder, name, options, sizes):
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
            sides = [[row[side] for row in part] for part in texts.values()]
            if name == "agnews":
                sides = [[re.sub(r"\W+", " ", text.lower()) for text in part] for part in sides]
            train, valid, test = map(set, sides)
            assert not (train & valid or train & test or valid & test)
        assert not [row for row in rows if re.search(r"#\d\d;|quot;|\\|&[lg]t;|[\x00-\x1f\x7f-\x9f]", " ".join(row))]
    if name == "agnews":
        assert not any(re.match(r".{0,30}\((AP|Reuters|AFP)\) -|(AP|Reuters|AFP) -", row[0]) for row in texts["test"])
        assert not any(re.search(r"\((AP|Reuters|AFP)\)$", row[1]) for row in texts["test"])
    if name == "reuters21578":
        assert all(title == title.lower() and 0 < len(article.split()) < 70 for article, title in rows)
        dateline = re.compile(r"[A-Z .,]{3,30}, (Jan|Feb|March|April|June|Oct)\b.* - ")
        assert not [article for article, _ in rows if dateline.match(article)]


@pytest.mark.data
@pytest.mark.parametrize("year", ["dev2010", "tst2010", "tst2011", "tst2012"])
def test_real_years_of_iwslt16(year):
    names = [f"IWSLT16.TED.{year}.de-en.{language}.xml" for language in LANGUAGES]
    pairs = segments.segment_pairs(*(Text(corpus_folder("iwslt16") / "de-en" / name) for name in names))
    assert len(pairs) == ted_talks.NUM_PAIRS["de"][year] and all(map(all, pairs))
    assert not re.search("&(amp|lt|gt|quot);", " ".join(line for pair in pairs for line in pair))


@pytest.mark.data
@pytest.mark.slow
def test_real_trees(here):
    source = corpus_folder("wsj-sample")
    done = succeed("wsj", "--from", source, cwd=here, check=True)
    assert "train: 1031 words, 25 unknown classes, 25 labels" in done.stdout
    dest = here / "data-bin" / "wsj-sample"
    record = (dest / "prepared.txt").read_text().splitlines()
    for split, num_lines, num_tokens in (("train", 3253, 203746), ("valid", 248, 15856), ("test", 413, 24974)):
        counts = f"{split}: {num_lines} lines, {num_tokens} tokens with one end mark a line"
        assert any(line.startswith(counts) for line in record)
    assert "dict.txt: 1105 rows" in record and wsj.NUM_TREES["train"] == 39832
    for split in ("valid", "test"):  # they are clean already
        assert (dest / f"trees/gold.{split}.trees").read_bytes() == (source / f"gold.{split}.trees").read_bytes()


# User errors


PERSIAN = (ROOT / "tests/cases/joiners.fa").read_text()
USAGE_ERRORS = [  # command line, part of the last line
    *[(command, "CORPUS is one of: .*reuters21578") for command in ("''", "penn")],
    ("ptb --frmo=x", "--frmo"),
    ("multi30k de-en surplus x", "surplus"),
    ("ptb --from", "--from"),
    ("ptb --mirror --dest x", "--mirror"),
    ("ptb --dest=", "--dest: a path is expected"),
    ("gigaword --test-source=", "--test-source: a path is expected"),
    *[(f"ptb --workers {number}", "--workers") for number in (0, -1, 10**19)],
    ("ptb --level word", "--level"),
    ("text8 --level byte", "--level"),
    ("text8 --threshold many", "--threshold"),
    ("text8 --level char --threshold 3", "--threshold"),
    *[(f"text8 --characters {number}", "--characters") for number in (0, 19, 100_000_001)],
    ("multi30k", "name the pair: .*de-en"),
    *[(f"multi30k {pair}", f"'{pair}' is none of") for pair in ("de-xx", "it")],
    ("multi30k de-en --from x --mirror http://mirror", "--mirror"),
    ("multi30k de-en --merges 0", "--merges"),
    ("multi30k de-en --max-ratio 0.5", "--max-ratio"),
    ("multi30k de-en --max-ratio x", "--max-ratio"),
    ("multi30k de-en --min-length 5 --max-length 4", "--min-length is larger than --max-length"),
    ("multi30k de-en --subwords fastbpe", "--subwords"),
    ("multi30k de-en --subwords none --merges 5", "--merges is for subwords: choose them with --subwords"),
    *[(f"multi30k en {flag}", flag.split()[0]) for flag in ("--merges 5", "--joined-dictionary", "--max-length 50")],
    *[(f"tatoeba {pair}", "nor two of which one is en") for pair in "de-fr en-en en-de-fr german DE-en en- e".split()],
    ("tatoeba en --other en", "--other"),
    *[(f"tatoeba {pair} --other de", f"--other is for en by itself, not for {pair}") for pair in ("de-en", "de")],
    ("iwslt14 de-en --partial --no-lowercase", "--no-lowercase"),
    ("own", "name the pair: de-en"),
    *[(f"own {name}", "neither a name of letters") for name in ("'my text'", "a-b-c", "zh.tw", "a-")],
    ("own de-de", "'de-de' has the same name twice"),
    *[(f"own de --split {numbers}", "such as 2000,2000, not") for numbers in ("5", "5,0", "5,-1", "5,5,5", "many")],
    ("own de --seed 2", "--seed is of --split"),
    ("own de --tokenizer icu", "'icu' is none of moses, none, character, hf:FILE"),
    ("own de --tokenizer character --subwords bpe", "--tokenizer character has no other subwords"),
    ("own de --tokenised --tokenizer none", "as it is: leave out --tokenizer"),
    ("own de --tokenised --nfc", "as it is: leave out --nfc"),
    ("own de --codes x", "--codes goes with --source-dict"),
    ("own de --codes x --source-dict y --merges 9", "--merges is for new subwords: leave it out, or --codes"),
    ("own de --codes x --source-dict y --subwords sentencepiece", "x is of bpe, not of --subwords sentencepiece"),
    ("own de --source-dict x --target-dict y --codes z", "--target-dict is for a pair"),
    ("own de-en --source-dict x --codes z", "belong together: give both"),
    ("own de --source-dict x --subwords bpe", "give --codes FILE, or --subwords none"),
    ("own de-en --source-dict x --target-dict y --joined-dictionary", "--joined-dictionary is of a new dictionary"),
    ("own de --source-dict x --threshold 3", "--threshold is of a new dictionary"),
    ("iwslt16 fr-en --dev dev2011", "--dev"),
]


@pytest.mark.parametrize("command, named", USAGE_ERRORS)
def test_usage_error(command, named, here):
    done = prepare(*shlex.split(command), cwd=here)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith("usage: ")
    assert re.search(named, done.stderr.splitlines()[-1]) and not list(here.iterdir())


def test_checks_are_on_or_off(here):
    done = prepare("ptb", cwd=here, EXPECTED_COUNTS="no")
    assert done.returncode == 2 and "EXPECTED_COUNTS is check or skip, not no" in done.stderr


def text(name, content):
    return {name: content.encode()}


def ptb(name, content):
    return {**named("*.txt", PTB), name: content}


def multi30k(name, old, new):
    """Multi30k with ``old`` and what follows replaced in a file."""
    files = multi30k_files()
    files[name] = re.sub(rb"(?s)" + old.encode(), new, files[name], count=1)
    return files


def without(files, *names):
    return {name: data for name, data in files.items() if name not in names}


NO_TEST = without(named("simple-examples/data/ptb.*.txt", PTB), "simple-examples/data/ptb.test.txt")
RAW = {"wikitext-2-v1.zip": zipped(named("wikitext-2-raw/wiki.*.raw", WIKITEXT))}
PREFIX = {"text8.prefix": b"abc def " * 1568730}
TST2013 = "IWSLT16.TED.tst2013.de-en.en.xml"
NO_TST2013 = without(iwslt16_files("de-en", "de-en/"), f"de-en/{TST2013}")
NLTK = "corpora/treebank/combined"
NO_ARTICLES = without(nltk_sample(), *(f"{NLTK}/wsj_{number:04d}.mrg" for number in range(2, 7)))
GOLD = named("gold.*.trees", dict.fromkeys(SPLITS, b"(S1 (X (NN a)))\n"))
PAIR = "de-en --merges 9"
COMMONCRAWL = {f"commoncrawl.de-en.{side}": b"a\n" * count for side, count in (("de", 5), ("en", 4))}
ORG_FILES = gigaword_files(ORG_DATA, end="")
WORDS = "--tokenizer none --subwords none"
VOCABULARY = "--codes x/codes --source-dict x/dict"
OWN, MULTI30K = own_files(), multi30k_files()
FILE_ERRORS = [  # command line, files in x, the error
    ("ptb", without(named("ptb.*.txt", PTB), "ptb.test.txt"), r"simple-examples.tgz .*ptb\.test\.txt"),
    ("ptb", ptb("valid.txt", b"a b\nc \xff d\n"), r"x/valid.txt:2: not UTF-8 text \(byte 3 of the line\)"),
    ("ptb", ptb("valid.txt", b""), "x/valid.txt is empty"),
    ("ptb", ptb("valid.txt", b"a\rb\rc\r"), "x/valid.txt: its lines end in carriage returns, not in newlines"),
    ("ptb", ptb("train.txt", PERSIAN.encode("utf-16-le")), "x/train.txt:[12]: .*iconv -f .*UTF-16.* -t UTF-8"),
    ("ptb", ptb("train.txt", PERSIAN.encode("utf-16-be")), "x/train.txt:[12]: .*iconv -f .*UTF-16.* -t UTF-8"),
    ("ptb", {"simple-examples.tgz": tgz(NO_TEST)}, "tgz has no member simple-examples/data/ptb.test.txt:"),
    ("text8", {"text8.zip": zipped({"text": b"a b"})}, "zip has no member text8:"),
    ("wikitext-2", RAW, "no member .*/wiki.test.tokens, .*/wiki.train.tokens, .*/wiki.valid.tokens:"),
    ("check text8", text("text8", "a few words only now"), "x/text8 has 5 words in 20 .* expected 17005207 in 10"),
    ("text8", text("text8", "ein paar wörter nur und nichts sonst"), r"x/text8 has more than a-z .* \(at byte 10\)"),
    ("text8", text("text8", "twenty words and \na line"), r"\(at byte 17\)"),
    ("text8", text("text8", "no Capital letters there"), r"\(at byte 3\)"),
    ("text8", text("text8", "nor any 1 of the digits"), r"\(at byte 8\)"),
    ("text8", text("text8.prefix.gz", text8(400)), r"x has no .*, but a prefix: say how much with --characters N"),
    ("text8 --characters 99999", text("text8.prefix.gz", text8(400)), "gz has [0-9]+ characters, expected 99999"),
    ("check text8 --characters 12549840", PREFIX, "prefix of x/text8.prefix has SHA-256"),
    ("multi30k de-en", without(MULTI30K, "train.de.gz", "val.de.gz"), "no train.de.gz, val.de.gz: put"),
    (
        "multi30k de-en",
        multi30k("train.de.gz", "\n59 .*", b"\n"),
        r"x/train.en.gz:60: no line to .*\(60 lines against 59\)",
    ),
    ("multi30k de-en", multi30k("train.de.gz", "\n7 ", b"\n7\xfc "), r"x/train.de.gz:8: not UTF-8 .*\(byte 2 of"),
    ("multi30k de-en", {**MULTI30K, "val.de.gz": b"", "val.en.gz": b""}, "x/val.de.gz is empty"),
    ("multi30k de-en --min-length 90", MULTI30K, "the filter left no training pair: see --min-length"),
    ("tatoeba de-en", text("deu.txt", "".join(f"Go.\tGeh {n}!\tx\n" for n in range(40))), "txt has no pair .* valid"),
    ("tatoeba de-en", text("deu.txt", "Go.\tGeh.\tx\nRun.\n"), "deu.txt:2: 1 fields, expected English, other language"),
    ("tatoeba de-en", text("deu.txt", "Go.\tGeh.\tx\n"), "deu.txt has 1 pairs, at least 20 are expected"),
    ("tatoeba en --other fr", manythings_files(), r"x has no fra-eng.zip \(or fra.txt\), nor train.en.gz"),
    ("tatoeba en", {**tatoeba_files(), "train.en": b"A\n"}, "both train.en.gz and train.en: keep the right one"),
    ("tatoeba de-en --threshold 100000", tatoeba_files(), "no word of train is left for dict.de.txt: .*--threshold"),
    ("tatoeba en --threshold 100000", tatoeba_files(), "no word of train is left for dict.txt: .*smaller --threshold"),
    (f"iwslt14 {PAIR} --max-length 6 --min-length 6", iwslt14_files(), "[0-9]+ training pairs, too few .* 23 of them"),
    (f"iwslt14 {PAIR}", iwslt14_partial_files(), "x has no de-en.tgz.* taken with --partial"),
    (f"check iwslt14 {PAIR} --partial", iwslt14_partial_files(), "x/train.de.gz has SHA-256"),
    (f"iwslt14 {PAIR} --partial", without(iwslt14_partial_files(), "valid.en.gz"), "x has no valid.en: .* --partial"),
    (f"iwslt14 {PAIR} --partial", {}, "the partial set cannot be downloaded: .*--from DIR"),
    (f"iwslt16 {PAIR}", {"de-en.tgz": tgz(NO_TST2013)}, f"x/de-en.tgz has no member {TST2013}"),
    (f"iwslt16 {PAIR}", NO_TST2013, rf"x/de-en has no {TST2013} \(nor has x de-en.tgz or 2016-01.tgz\)"),
    ("iwslt16 de-en --dev tst2013 --test tst2013", NO_TST2013, "tst2013 cannot be in both --dev and --test"),
    (f"check iwslt16 {PAIR}", {"2016-01.tgz": tgz({"x": b""})}, "x/2016-01.tgz has not the MD5"),
    (f"wmt14 {PAIR}", release_files(without="newstest2014-deen-ref"), "no member newstest2014-deen-src.* and "),
    (f"wmt14 {PAIR}", release_files(without="crawl.de-en.en"), "commoncrawl.tgz has no member commoncrawl.de-en.en"),
    (f"wmt14 {PAIR}", text("x", ""), "x has no training-parallel-europarl-v7.tgz .*test-full.tgz or test.tgz"),
    (f"wmt14 {PAIR}", {**release_files(), **COMMONCRAWL}, r"commoncrawl.de-en.de:5: no line .*\(5 lines against 4\)"),
    ("gigaword --test-source a", ORG_FILES, "--test-source and --test-target belong together"),
    ("gigaword --test-source a --test-target b", ORG_FILES, "a is not a file: pass the test set's files"),
    ("gigaword", without(ORG_FILES, "test.tgt.txt"), r"x has no test: .*test.src.txt \+ test.tgt.txt.* --test-source"),
    ("gigaword", {**ORG_FILES, "train.tgt.txt": b"a\n" * 39}, r"train.src.txt:40: no line to pair .* against 39\)"),
    ("own de-en", {}, "the files are your own: .*--from DIR"),
    ("own de-en", without(OWN, "valid.en.bz2"), "x has no valid.en: put them there, .gz, .*--split"),
    ("own de-en", {**OWN, "test.en.xz": lzma.compress(b"a\n")}, r"test.de.xz:2: no line .*\(6 lines against 1\)"),
    ("own de-en", {**OWN, "test.en.xz": b"a\nb"}, "x/test.en.xz is truncated or damaged"),
    ("own de", {**OWN, "valid.de.bz2": bz2.compress(b"a")[:9]}, "x/valid.de.bz2 is truncated or damaged"),
    ("own de", {**OWN, "train.de.gz": b"\n\n"}, "train has only empty lines: put text there"),
    ("own de", {**without(OWN, "train.de.gz"), "train.de": gzip.compress(b"a")}, "x/train.de is compressed by gz"),
    ("own de", {**OWN, "test.de.xz": lzma.compress(b"\n\n")}, "test has only empty lines: put text there"),
    (f"own de {WORDS}", {**OWN, "train.de.gz": b"a\n\nab </s> b\n"}, "train.de has the word </s>, a symbol of"),
    (
        f"own de {WORDS} --lowercase",
        {**OWN, "valid.de.bz2": bz2.compress(b"<PAD>")},
        "valid.de has the word <pad>, a symbol of",
    ),
    ("own de --tokenizer hf:nowhere.json", OWN, "nowhere.json is not a file: pass one that exists"),
    ("own de --split 5,5", OWN, r"x has test.de.xz, train.de.gz, valid.de.bz2: --split takes one file \*.de"),
    ("own de-en --split 5,5", text("news.de", "a\n"), r"x has no \*.en, such as news.en: put the file"),
    ("own de --split 5,5", text("news.de", "a\nb\n"), "news.de: 2 lines, too few for --split 5,5 and train"),
    ("own de --split 2,2", text("news.de", "a\n" * 99 + "b\n"), "only 1 lines share no side with another, too few"),
    (f"own de {VOCABULARY}", OWN, "x/dict is not a file: pass one that exists"),
    (f"own de {VOCABULARY}", {**OWN, "codes": b"\xff", "dict": b"a 1\n"}, "x/codes has no codes of subword-nmt"),
    (f"own de {VOCABULARY}", {**OWN, "codes": b"#version: 0.2\na b\n", "dict": b"a\n"}, "x/dict:1: not a line of"),
    ("gigaword", {}, "Gigaword cannot be downloaded .*--from DIR"),
    ("agnews", text("test.csv", '"1","a","b"\n"1","a"\n'), "test.csv:2: 2 fields, expected class, headline, des"),
    ("agnews", text("test.csv", '"1","a","b\n'), "test.csv:1: not CSV"),
    ("agnews", text("test.csv", ""), "test.csv is empty"),
    ("reuters21578", reuters_files(5), "x/reut.* has 5 documents with a title and a body: at least 10 are expected"),
    (
        "reuters21578",
        text("reut2-000-020.sgm", reuters_document(6, "W", "Cut.")[:-20]),
        "sgm: .* is not closed: is the",
    ),
    ("wsj", without(wsj_sections(), "07.mrg", "24.mrg"), "x has no section 07, section 24: put it there, or pass"),
    ("wsj", text("x", ""), "x has no gold.train.trees nor combined/wsj_0001.mrg .* folders 02 ... 24 .*--from"),
    ("wsj", {**wsj_sections(), "09.mrg": b"( (S (NN a))\n\n"}, "09.mrg, line 2: the text ends within a tree: .*: pass"),
    ("check wsj", wsj_sections(), "train of x has 40 lines, expected 39832: pass the right files"),
    ("wsj", {**wsj_articles("."), "05/wsj_0501.mrg.gz": b""}, "wsj_0501.mrg exists twice, also as wsj_0501.mrg.gz"),
    ("wsj", {**wsj_sections(), "wsj_09.mrg.gz": b""}, "section 09 is in .*09.mrg and in .*wsj_09.mrg.gz: keep one of"),
    ("wsj", NO_ARTICLES, "has no wsj_0002.mrg, wsj_0003.mrg, wsj_0004.mrg and 2 more: put it there, or"),
    ("wsj", {**nltk_sample(), f"{NLTK}/wsj_0007.mrg.gz": b""}, "wsj_0007.mrg exists twice, also as wsj_0007.mrg.gz"),
    ("check wsj", nltk_sample(), "train of .*combined, cleaned, has SHA-256 .* expected e8d6b31d.*: pass the right"),
    ("wsj", without(GOLD, "gold.valid.trees"), "x has no gold.valid.trees"),
    ("wsj", {**GOLD, "gold.train.trees.gz": b""}, "both gold.train.trees.gz and gold.train.trees: keep the right"),
    ("wsj --threshold 9", GOLD, "train has no word 9 times: give a smaller --threshold"),
]


@pytest.mark.parametrize("command, files, error", FILE_ERRORS, ids=[f"{row[0]}: {row[2]}" for row in FILE_ERRORS])
def test_file_error(command, files, error, here):
    write_files(here / "x", files)
    corpus, *options = shlex.split(command.removeprefix("check "))
    if files:
        options += ["--from", "x"]
    assert re.search(error, fail(corpus, *options, cwd=here, check=command.startswith("check ")))
    assert not list(here.rglob("unpacked"))


def test_archive_that_lacks_its_end(here):
    """Behind all that is read of it."""
    rng = random.Random(1)
    content = tgz({"noise": rng.randbytes(100000), **iwslt16_files("de-en", "de-en/"), "more": rng.randbytes(100000)})
    write_files(here / "x", {"de-en.tgz": content[: int(0.99 * len(content))]})
    assert "x/de-en.tgz is truncated or damaged" in fail("iwslt16", "de-en", "--from", "x", cwd=here)
