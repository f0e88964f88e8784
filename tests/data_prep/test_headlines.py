"""AG News, Gigaword and Reuters-21578: cleaning, splits, layouts, the real corpora."""

import re

import pytest
from fairseq.data.data_utils import post_process
from preparation.corpora import headlines
from preparation.corpora.headlines import Document, documents, first_sentence, split_documents, title
from preparation.sources import Text
from preparation_runs import binarised, joined, options_of, read_all, succeed, words_of
from small_corpora import (
    ORG_DATA,
    agnews_files,
    gigaword_files,
    gigaword_items,
    reuters_document,
    reuters_files,
    text_of,
    write_files,
)


@pytest.mark.parametrize(
    "headline, description, expected",
    [
        ("A b (AP)", "AP - It #39;s  #36;10", ("It's $10", "A b")),
        ("A b (AP)", "Other - text", ("Other - text", "A b (AP)")),
        ("A (Update3)", r" NEW YORK (Reuters) - two\lines, he  quot;said quot;", ('two lines, he "said"', "A")),
        ("R amp;D; all", "BAGHDAD, Iraq -- Johnson  amp; Co", ("Johnson & Co", "R&D; all")),
        (
            "x &lt;b&gt;...&lt;/b&gt;",
            'LONDON, Aug. 28. - &lt;A HREF="http://x"&gt;MSFT.O&lt;/A&gt; y',
            ("MSFT.O y", "x ..."),
        ),
        ("x", 'WASHINGTON - one #151; <IMG SRC="a', ("one\u2014", "x")),
        ("x", "A sentence - with a dash", ("A sentence - with a dash", "x")),
    ],
)
def test_agnews_cleaning(headline, description, expected):
    assert headlines.item(headline, description) == expected


def test_agnews_script(tmp_path):
    write_files(tmp_path / "x", agnews_files())
    done = succeed("agnews", "--from", "x", "--merges", 30, cwd=tmp_path)
    assert "train.article: 58 lines" in done.stdout and "test.title: 4 lines" in done.stdout
    dest = tmp_path / "data-bin" / "agnews"
    raw_titles = (dest / "raw" / "test.title").read_text().splitlines()
    for raw, line in zip(raw_titles, binarised(dest, "test", "article-title", "title"), strict=True):
        assert re.fullmatch('Title "[0-9]+" of Things', raw)
        assert joined(line).split() == raw.lower().replace('"', " &quot; ").split()


# Gigaword


SIDES = ("article", "title")
GIGAWORD_CORPUS = headlines.Gigaword()


def write_items(folder, names, pairs):
    write_files(folder, {name: text_of(list(side)) for name, side in zip(names, zip(*pairs))})


@pytest.mark.parametrize("kind", ["bpe", "sentencepiece-unigram"])
def test_gigaword_script(kind, tmp_path):
    here = tmp_path / "with spaces"
    bad = [("", "t"), ("a", "..."), ("only punctuation", "<unk> UNK"), ("`` ''", "t")]
    items = [*gigaword_items(30), *bad, ("in 1999 , ab@@ </s> <pad>x", "the end 12")]
    write_files(here / "x", gigaword_files(train=items, end=""))
    test = [*gigaword_items(3), ("", "x"), ("the rest", "of it 5")]
    write_items(here, ("zhou.src", "zhou.tgt"), test)
    options = ["--test-source", "zhou.src", "--test-target", "zhou.tgt", "--subwords", kind]
    done = succeed("gigaword", "--from", "x", *options, "--merges", 40, cwd=here)
    assert (
        "train: 4 of 35 items are invalid, removed: empty article 1, no word in article 1, no word in title 1, "
        "only unknown words in title 1" in done.stdout
    )
    assert "test: 1 of 5 items are invalid, kept in their places: empty article 1" in done.stdout
    dest = here / "data-bin" / "gigaword"
    assert {path.name.split(".")[0] for path in dest.glob("*.idx")} == {"train", "valid", "test", "rush"}
    for number, side in enumerate(SIDES):
        raw = (dest / "raw" / f"test.{side}").read_text().split("\n")[:-1]
        assert raw == [re.sub("[0-9]", "#", pair[number]) for pair in test]
        train = binarised(dest, "train", "article-title", side)
        assert len(train) == 31
        unknown = "<unk>" if kind == "bpe" else "\u2581<unk>"
        assert all(line.split(" ").count(unknown) == 1 for line in train[:-1])
        text = [post_process(line, "subword_nmt" if kind == "bpe" else "sentencepiece") for line in train]
        assert text[-1] == ["in #### , ab@ /s padx", "the end ##"][number]
        assert all("<unk>" in line.split() for line in text[:-1])
    assert not words_of(dest / "dict.article.txt") & {"<s>", "</s>", "<pad>", "<unk>"}


@pytest.mark.parametrize(
    "word, token",
    [("<s>", "s"), ("<<s>>", "s"), ("a<</s>>b", "a/sb"), ("<unk>", "<unk>"), ("[UNK]", "<unk>"), ("<<unk>>", "unk")],
)
def test_no_word_becomes_a_symbol_of_fairseq(word, token):
    assert GIGAWORD_CORPUS.tokenizer("article", options_of(GIGAWORD_CORPUS))(word) == token


def test_gigaword_test_sets(tmp_path):
    write_files(tmp_path, gigaword_files(ORG_DATA, end=""))
    write_items(tmp_path, ORG_DATA["test"], [("a", "b"), ("", "c"), ("d", "e")])
    for flags, test in ([[], [("a", "b"), ("", "c"), ("d", "e")]], [["--drop-invalid"], [("a", "b"), ("d", "e")]]):
        assert read_all(GIGAWORD_CORPUS, tmp_path, options_of(GIGAWORD_CORPUS, *flags))["test"] == test
    recipes = set()
    for name in ORG_DATA["test"]:
        path = tmp_path / name
        options = options_of(GIGAWORD_CORPUS, "--test-source", path, "--test-target", path)
        recipes.add(GIGAWORD_CORPUS.variant(options))
    assert len(recipes) == 2


# Reuters-21578


REUTERS = headlines.Reuters21578()


@pytest.mark.parametrize(
    "body, expected",
    [
        ("One sentence\nover two lines. Another.\n    More.\n Reuter\n&#3;", "One sentence over two lines."),
        ("The U.S. said J.P. Morgan and St. Joe rose.  It said so.", "The U.S. said J.P. Morgan and St. Joe rose."),
        ("Rep. Anthony Beilenson, D-Cal, said no. Yes.", "Rep. Anthony Beilenson, D-Cal, said no."),
        ('"It is over," he said. "Go home."', '"It is over," he said.'),
        ('He said "it is over." Then he went.', 'He said "it is over."'),
        ("Is it? It is! Now.", "Is it?"),
        ("Up 3.5 pct to 1.2 mln. That is it.", "Up 3.5 pct to 1.2 mln."),
        ("A paragraph without a stop\n    Another. One.", "A paragraph without a stop"),
        ("Shr 34 cts vs 1.19 dlrs\n    Net 807,000", "Shr 34 cts vs 1.19 dlrs"),
        ("Sears Co &lt;S> and AT&amp;T &amp;lt;x said\nso.\n\nMore.", "Sears Co <S> and AT&T &lt;x said so."),
        ("In Berlin, N.J.\n Reuter\n&#3;", "In Berlin, N.J."),
        ("Only this\nReuters\n&#3;", "Only this"),
        ("The yen... fell. And\x7f rose.", "The yen... fell."),
        ("&#27;A control&#127; character\x1b here", "A control character here"),
        ("", ""),
    ],
)
def test_first_sentence(body, expected):
    assert first_sentence(body) == expected


def test_documents(tmp_path):
    brief = '<REUTERS NEWID="1"><TEXT TYPE="BRIEF">&#2;\n<TITLE>****A</TITLE>\n</TEXT></REUTERS>\n'
    unprocessed = '<REUTERS NEWID="2"><TEXT TYPE="UNPROC">&#2;\ntext</TEXT></REUTERS>\n'
    text = brief + reuters_document(3, "T", "Fl\xfcgel.") + unprocessed + reuters_document(4, "U", "Other.")
    (tmp_path / "a").write_bytes(text.encode("latin-1"))
    (tmp_path / "b").write_bytes(reuters_document(5, "V", "Last.").replace("\n", "\r\n").encode())
    found = list(documents([Text(tmp_path / "a"), Text(tmp_path / "b")]))
    assert [document.title if document else "" for document in found] == ["", "T", "", "U", "V"]
    assert title(Document("STANDARD OIL &lt;SRD> TO\nFORM  A &amp; B", "")) == "standard oil <srd> to form a & b"
    assert found[1].body == "Fl\xfcgel.\n Reuter\n&#3;" and found[4].body == "Last.\n Reuter\n&#3;"


def test_split_is_in_the_order_of_the_file(capsys):
    rows = [(f"text {n}", f"title {n}") for n in range(12000)]
    rows[10500], rows[11700] = ("x", "title 3"), ("y", "title 7")
    rows[10600], rows[11600] = ("text 5", "x"), ("text 6", "y")
    rows[11601], rows[11602], rows[11603] = ("text 10001", "z"), ("z", "title 10002"), ("text 10600", "title 10500")
    splits = split_documents(rows)
    assert splits["train"] == rows[:10000]
    assert splits["valid"] == [row for row in rows[10000:11000] if row not in (rows[10500], rows[10600])]
    assert splits["test"] == [row for row in rows[11000:11600] + rows[11603:] if row[0] != "y"]
    told = capsys.readouterr().out
    assert "valid: dropped 1 of 1000 documents whose title is in train, and 1 more whose first sentence is" in told
    assert "test: dropped 2 of 1000 documents whose title is in train or valid, and 2 more whose first sen" in told
    assert [len(rows) for rows in split_documents([(str(n), str(n)) for n in range(60)]).values()] == [48, 6, 6]


def test_reuters_script(here):
    write_files(here / "x", reuters_files())
    succeed("reuters21578", "--from", "x", "--merges", 60, cwd=here)
    dest = here / "data-bin" / "reuters21578"
    assert (dest / "raw" / "test.title").read_text().splitlines() == [f"title {n} <t{n}>" for n in range(54, 60)]
    sides = [[joined(line) for line in binarised(dest, "train", "article-title", side)] for side in SIDES]
    for n, (article, headline) in enumerate(zip(*sides)):
        assert article.startswith(f"{n} ") and article.endswith(" here and there .")
        assert headline == f"title {n} &lt; t{n} &gt;"
