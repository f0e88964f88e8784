"""AG News, Gigaword and Reuters-21578: cleaning, splits, layouts, the real corpora."""

import re
from pathlib import Path

import pytest
from corpora import corpus_folder
from fairseq.data.data_utils import post_process
from preparation.corpora import headlines
from preparation.corpora.headlines import Document, documents, first_sentence, split_documents, title
from preparation.lines import DataError
from preparation_runs import binarised, fail, joined, options_of, read_all, succeed
from small_corpora import (
    GIGAWORD,
    agnews_files,
    gigaword_files,
    gigaword_items,
    reuters_document,
    reuters_files,
    sentences,
    text_of,
    tgz,
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
def test_agnews_cleaning(headline: str, description: str, expected: tuple[str, str]) -> None:
    assert headlines.item(headline, description) == expected


def test_agnews_split_shares_nothing() -> None:
    pairs = [(f"text {n % 90}", f"headline {n % 95}") for n in range(100)]
    splits = headlines.split_items(pairs)
    assert {split: len(chosen) for split, chosen in splits.items()} == {"train": 88, "valid": 6, "test": 6}
    assert sorted(pair for chosen in splits.values() for pair in chosen) == sorted(pairs)
    for held_out in ["valid", "test"]:
        rest = [pair for split in splits if split != held_out for pair in splits[split]]
        for number in range(2):
            assert not {pair[number] for pair in rest} & {pair[number] for pair in splits[held_out]}
    assert headlines.split_items(pairs) == splits


def test_agnews_script(tmp_path: Path) -> None:
    write_files(tmp_path / "x", agnews_files())
    done = succeed("agnews", "--from", "x", "--merges", 30, cwd=tmp_path)
    assert "train.article: 58 lines" in done.stdout and "test.title: 4 lines" in done.stdout
    dest = tmp_path / "data-bin" / "agnews"
    raw_titles = (dest / "raw" / "test.title").read_text().splitlines()
    for raw, line in zip(raw_titles, binarised(dest, "test", "article-title", "title"), strict=True):
        assert re.fullmatch('Title "[0-9]+" of Things', raw)
        assert joined(line).split() == raw.lower().replace('"', " &quot; ").split()
    wrong = tmp_path / "wrong.csv"
    wrong.write_text('"1","a","b"\n"1","a"\n')
    with pytest.raises(DataError, match="wrong.csv:2: 2 fields, expected class, headline, description"):
        headlines.read_items(wrong)
    wrong.write_text('"1","a","b\n')
    with pytest.raises(DataError, match="wrong.csv:1: not CSV"):
        headlines.read_items(wrong)


@pytest.mark.data
def test_real_agnews() -> None:
    folder = corpus_folder("agnews")
    corpus = headlines.AGNews()
    texts = read_all(corpus, folder, options_of(corpus, check=True))
    assert {split: len(pairs) for split, pairs in texts.items()} == {"train": 5800, "valid": 400, "test": 400}
    sides = [
        [{re.sub(r"\W+", " ", pair[number].lower()) for pair in texts[split]} for split in texts] for number in range(2)
    ]
    for train, valid, test in sides:
        assert not train & valid and not train & test and not valid & test
    text = " ".join(side for pairs in texts.values() for pair in pairs for side in pair)
    assert not re.search(r"#\d\d;|quot;|\\|&lt;|&gt;", text)
    assert not any(re.match(r".{0,30}\((AP|Reuters|AFP)\) -|(AP|Reuters|AFP) -", pair[0]) for pair in texts["test"])
    assert not any(re.search(r"\((AP|Reuters|AFP)\)$", pair[1]) for pair in texts["test"])


# Gigaword


SIDES = ("article", "title")
ORG_DATA = {split: tuple(f"{split}.{side}.txt" for side in ["src", "tgt"]) for split in ["train", "dev", "test"]}


def write_items(folder: Path, names: tuple[str, str], pairs: list[tuple[str, str]]) -> None:
    write_files(folder, {name: text_of(list(side)) for name, side in zip(names, zip(*pairs))})


def write_gigaword(folder: Path, layout: dict[str, tuple[str, str]], train: list | None = None, end: str = "") -> Path:
    return write_files(folder, gigaword_files(layout, train, end))


@pytest.mark.parametrize("bpe", ["subword-nmt", "sentencepiece-unigram"])
def test_gigaword_script(bpe: str, tmp_path: Path) -> None:
    here = tmp_path / "with spaces"
    bad = [("", "t"), ("a", "..."), ("only punctuation", "<unk> UNK"), ("`` ''", "t")]
    write_gigaword(
        here / "x", GIGAWORD, train=[*gigaword_items(30), *bad, ("in 1999 , ab@@ </s> <pad>x", "the end 12")]
    )
    test = [*gigaword_items(3), ("", "x"), ("the rest", "of it 5")]
    write_items(here, ("zhou.src", "zhou.tgt"), test)
    options = ["--test-source", "zhou.src", "--test-target", "zhou.tgt", "--bpe", bpe]
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
        unknown = "<unk>" if bpe == "subword-nmt" else "\u2581<unk>"
        assert all(line.split(" ").count(unknown) == 1 for line in train[:-1])
        text = [post_process(line, bpe.replace("-", "_").removesuffix("_unigram")) for line in train]
        assert text[-1] == ["in #### , ab@ /s padx", "the end ##"][number]
        assert all("<unk>" in line.split() for line in text[:-1])
    symbols = {line.split()[0] for line in (dest / "dict.article.txt").read_text().splitlines()}
    assert not symbols & {"<s>", "</s>", "<pad>", "<unk>"}


def test_gigaword_layouts(tmp_path: Path) -> None:
    corpus = headlines.Gigaword()
    plain = dict(GIGAWORD, valid=("train/valid.article.txt", "train/valid.title.txt"))
    layouts = {"rush": GIGAWORD, "plain": plain, "org": ORG_DATA}
    for name, layout in layouts.items():
        for compress in [False, True]:
            folder = write_gigaword(tmp_path / f"{name}{compress}", layout, end=".gz" if compress else "")
            texts = read_all(corpus, folder, options_of(corpus))
            assert list(texts) == ["train", "valid", "test"] and len(texts["train"]) == 40
            assert texts["valid"][2] == (
                "article # <unk> : " + sentences("en", 3)[2].lower().replace("2", "#"),
                "title # UNK ##",
            )
    inner = write_gigaword(tmp_path / "deep" / "sumdata", GIGAWORD)
    assert read_all(corpus, inner.parent, options_of(corpus)) == read_all(corpus, inner, options_of(corpus))


@pytest.mark.parametrize(
    "word, token",
    [("<s>", "s"), ("<<s>>", "s"), ("a<</s>>b", "a/sb"), ("<unk>", "<unk>"), ("[UNK]", "<unk>"), ("<<unk>>", "unk")],
)
def test_no_word_becomes_a_symbol_of_fairseq(word: str, token: str) -> None:
    assert headlines.Gigaword().tokenizer("article", False)(word) == token


def test_gigaword_drop_invalid(tmp_path: Path) -> None:
    corpus = headlines.Gigaword()
    folder = write_gigaword(tmp_path, ORG_DATA)
    write_items(folder, ORG_DATA["test"], [("a", "b"), ("", "c"), ("d", "e")])
    assert read_all(corpus, folder, options_of(corpus))["test"] == [("a", "b"), ("", "c"), ("d", "e")]
    assert read_all(corpus, folder, options_of(corpus, "--drop-invalid"))["test"] == [("a", "b"), ("d", "e")]


def test_gigaword_errors(tmp_path: Path) -> None:
    corpus = headlines.Gigaword()
    folder = write_gigaword(tmp_path / "x", ORG_DATA)
    options = options_of(corpus, check=True)
    with pytest.raises(DataError, match="train.src.txt has 40 lines, expected 3803957"):
        read_all(corpus, folder, options)
    recipes = set()
    for text in ("a", "b"):
        path = tmp_path / text
        path.write_text(f"{text}\n")
        recipes.add(corpus.variant(options_of(corpus, "--test-source", str(path), "--test-target", str(path))))
    assert len(recipes) == 2
    with pytest.raises(DataError, match="belong together"):
        corpus.find(folder, options_of(corpus, "--test-source", "a"))
    (folder / "test.tgt.txt").unlink()
    with pytest.raises(DataError, match=r"x has no test: .*test.src.txt \+ test.tgt.txt.* --test-source"):
        corpus.find(folder, options_of(corpus))
    (folder / "train.tgt.txt").write_text("a\n" * 39)
    write_items(folder, ORG_DATA["test"], gigaword_items(2))
    with pytest.raises(DataError, match=r"train.src.txt:40: no line to pair with .*\(40 lines against 39\)"):
        read_all(corpus, folder, options_of(corpus))
    message = fail("gigaword", cwd=tmp_path)
    assert "cannot be downloaded" in message and "--from DIR" in message


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
def test_first_sentence(body: str, expected: str) -> None:
    assert first_sentence(body) == expected


def test_title() -> None:
    assert title(Document("STANDARD OIL &lt;SRD> TO\nFORM  A &amp; B", "")) == "standard oil <srd> to form a & b"


def test_documents(tmp_path: Path) -> None:
    brief = '<REUTERS NEWID="1"><TEXT TYPE="BRIEF">&#2;\n<TITLE>****A</TITLE>\n</TEXT></REUTERS>\n'
    unprocessed = '<REUTERS NEWID="2"><TEXT TYPE="UNPROC">&#2;\ntext</TEXT></REUTERS>\n'
    text = brief + reuters_document(3, "T", "Fl\xfcgel.") + unprocessed + reuters_document(4, "U", "Other.")
    (tmp_path / "a").write_bytes(text.encode("latin-1"))
    (tmp_path / "b").write_bytes(reuters_document(5, "V", "Last.").replace("\n", "\r\n").encode())
    found = list(documents([tmp_path / "a", tmp_path / "b"]))
    assert [document.title if document else "" for document in found] == ["", "T", "", "U", "V"]
    assert found[1].body == "Fl\xfcgel.\n Reuter\n&#3;" and found[4].body == "Last.\n Reuter\n&#3;"
    (tmp_path / "b").write_text(reuters_document(6, "W", "Cut.")[:-20])
    with pytest.raises(DataError, match="b: the last <REUTERS> is not closed: is the file truncated?"):
        list(documents([tmp_path / "b"]))


def test_split_is_in_the_order_of_the_file(capsys: pytest.CaptureFixture) -> None:
    rows = [(f"text {n}", f"title {n}") for n in range(12000)]
    rows[10500], rows[11700] = ("x", "title 3"), ("y", "title 7")
    splits = split_documents(rows)
    assert splits["train"] == rows[:10000]
    assert splits["valid"] == [row for row in rows[10000:11000] if row[0] != "x"]
    assert splits["test"] == [row for row in rows[11000:] if row[0] != "y"]
    assert "valid: 1 of 1000 documents leave, their titles are in train" in capsys.readouterr().out
    rows[10600], rows[11600] = ("text 5", "x"), ("text 6", "y")
    rows[11601], rows[11602], rows[11603] = ("text 10001", "z"), ("z", "title 10002"), ("text 10600", "title 10500")
    splits = split_documents(rows)
    assert splits["valid"] == [row for row in rows[10000:11000] if row not in (rows[10500], rows[10600])]
    assert splits["test"] == [row for row in rows[11000:11600] + rows[11603:] if row[0] != "y"]
    told = capsys.readouterr().out
    assert "valid: 1 of 1000 documents leave, their titles are in train, and 1 more, their first sentences are" in told
    assert "test: 2 of 1000 documents leave, their titles are in train or valid, and 2 more, their first sen" in told
    assert [len(rows) for rows in split_documents([(str(n), str(n)) for n in range(60)]).values()] == [48, 6, 6]


def test_release_is_the_same_as_the_joined_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = reuters_files()["reut2-000-020.sgm.gz"]
    ends = [match.end() for match in re.finditer(b"</REUTERS>\n", text)]
    parts = dict.fromkeys(headlines.PARTS, b"<!DOCTYPE lewis>\n")
    parts["reut2-000.sgm"] += text[: ends[9]]
    parts["reut2-001.sgm"] += text[ends[9] : ends[49]]
    parts["reut2-021.sgm"] += text[ends[49] :]
    write_files(tmp_path / "joined", {"reut2-000-020.sgm": text})
    write_files(tmp_path / "parts", parts)
    write_files(tmp_path / "release", {"reuters21578.tar.gz": tgz(parts)})
    options = options_of(REUTERS)
    expected = read_all(REUTERS, tmp_path / "joined", options)
    assert [len(rows) for rows in expected.values()] == [48, 6, 6]
    for name in ["parts", "release"]:
        assert read_all(REUTERS, tmp_path / name, options) == expected
    monkeypatch.setattr(headlines, "NUM_DOCUMENTS", 50)
    assert [len(rows) for rows in read_all(REUTERS, tmp_path / "parts", options).values()] == [40, 5, 5]


def test_script(here: Path) -> None:
    write_files(here / "x", reuters_files())
    succeed("reuters21578", "--from", "x", "--merges", 60, cwd=here)
    dest = here / "data-bin" / "reuters21578"
    raw = (dest / "raw" / "test.title").read_text().splitlines()
    assert raw == [f"title {n} <t{n}>" for n in range(54, 60)]
    sides = [
        [joined(line) for line in binarised(dest, "train", "article-title", side)] for side in ["article", "title"]
    ]
    for n, (article, headline) in enumerate(zip(*sides)):
        assert article.startswith(f"{n} ") and article.endswith(" here and there .")
        assert headline == f"title {n} &lt; t{n} &gt;"
    write_files(here / "y", reuters_files(5))
    message = fail("reuters21578", "--from", "y", "--dest", "other", cwd=here)
    assert "has 5 documents with a title and a body: at least 10 are expected" in message


@pytest.mark.data
def test_real_documents() -> None:
    folder = corpus_folder("reuters21578")
    texts = read_all(REUTERS, folder, options_of(REUTERS, check=True))
    assert {split: len(rows) for split, rows in texts.items()} == {"train": 16160, "valid": 947, "test": 946}
    sides = [{split: {row[side] for row in rows} for split, rows in texts.items()} for side in range(2)]
    for of_split in sides:
        assert not of_split["train"] & of_split["valid"] and not of_split["train"] & of_split["test"]
        assert not of_split["valid"] & of_split["test"]
    rows = [row for rows in texts.values() for row in rows]
    assert all(headline == headline.lower() and article for article, headline in rows)
    assert not [row for row in rows if re.search(r"&lt;|&#\d+;|[\x00-\x1f\x7f-\x9f]", " ".join(row))]
    assert not [
        article for article, _ in rows if re.match(r"[A-Z .,]{3,30}, (Jan|Feb|March|April|June|Oct)\b.* - ", article)
    ]
    assert max(len(article.split()) for article, _ in rows) < 70
