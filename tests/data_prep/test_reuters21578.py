"""Reuters-21578: documents in SGML, the first sentence, titles, the split."""

import re
from pathlib import Path

import pytest
from corpora import corpus_folder
from preparation.corpora import reuters21578
from preparation.corpora.reuters21578 import Document, documents, first_sentence, split_rows, title
from preparation.errors import DataError
from preparation_runs import binarised, fail, joined, options_of, read_all, succeed
from small_corpora import reuters_document, reuters_files
from small_texts import tgz, write_files

CORPUS = reuters21578.Reuters21578()


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
    splits = split_rows(rows)
    assert splits["train"] == rows[:10000]
    assert splits["valid"] == [row for row in rows[10000:11000] if row[0] != "x"]
    assert splits["test"] == [row for row in rows[11000:] if row[0] != "y"]
    assert "valid: 1 of 1000 documents leave, their titles are in train" in capsys.readouterr().out
    rows[10600], rows[11600] = ("text 5", "x"), ("text 6", "y")
    rows[11601], rows[11602], rows[11603] = ("text 10001", "z"), ("z", "title 10002"), ("text 10600", "title 10500")
    splits = split_rows(rows)
    assert splits["valid"] == [row for row in rows[10000:11000] if row not in (rows[10500], rows[10600])]
    assert splits["test"] == [row for row in rows[11000:11600] + rows[11603:] if row[0] != "y"]
    told = capsys.readouterr().out
    assert "valid: 1 of 1000 documents leave, their titles are in train, and 1 more, their first sentences are" in told
    assert "test: 2 of 1000 documents leave, their titles are in train or valid, and 2 more, their first sen" in told
    assert [len(rows) for rows in split_rows([(str(n), str(n)) for n in range(60)]).values()] == [48, 6, 6]


def test_release_is_the_same_as_the_joined_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = reuters_files()["reut2-000-020.sgm.gz"]
    ends = [match.end() for match in re.finditer(b"</REUTERS>\n", text)]
    parts = dict.fromkeys(reuters21578.PARTS, b"<!DOCTYPE lewis>\n")
    parts["reut2-000.sgm"] += text[: ends[9]]
    parts["reut2-001.sgm"] += text[ends[9] : ends[49]]
    parts["reut2-021.sgm"] += text[ends[49] :]
    write_files(tmp_path / "joined", {"reut2-000-020.sgm": text})
    write_files(tmp_path / "parts", parts)
    write_files(tmp_path / "release", {"reuters21578.tar.gz": tgz(parts)})
    options = options_of(CORPUS)
    expected = read_all(CORPUS, tmp_path / "joined", options)
    assert [len(rows) for rows in expected.values()] == [48, 6, 6]
    for name in ["parts", "release"]:
        assert read_all(CORPUS, tmp_path / name, options) == expected
    monkeypatch.setattr(reuters21578, "NUM_DOCUMENTS", 50)
    assert [len(rows) for rows in read_all(CORPUS, tmp_path / "parts", options).values()] == [40, 5, 5]


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
    texts = read_all(CORPUS, folder, options_of(CORPUS, check=True))
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
