"""WMT 2014: the campaigns' SGML, the archives' layout, the script."""

import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from preparation import sgm
from preparation.corpora import wmt14
from preparation.errors import DataError
from preparation_runs import binarised, fail, joined, options_of, read_all, snapshot, succeed
from small_texts import LANGUAGES, write_files
from wmt14_archives import ARCHIVES, release_files

READ = ["Q&A with R&D <b>", "nested bold and text", "café \u2013 1 < 2 <3", "the end"]
CORPUS = wmt14.WMT14()


def write_release(folder: Path, **kwargs: str) -> Path:
    return write_files(folder, release_files(**kwargs))


def read_release(folder: Path, *arguments: str, check: bool = False) -> dict[str, list[tuple[str, ...]]]:
    return read_all(CORPUS, folder, options_of(CORPUS, *arguments, check=check))


def test_script(tmp_path: Path) -> None:
    here = tmp_path / "with spaces"
    here.mkdir()
    write_release(here / "my files", end="\r\n")
    done = succeed("wmt14", "de-en", "--from", "my files", "--merges", 60, "--max-ratio", 0, cwd=here)
    dest = here / "data-bin" / "wmt14.de-en"
    tests = ["newstest2012", "newstest2014", "newstest2015", "newstest2016"]
    assert {path.name.split(".")[0] for path in dest.glob("*.idx")} == {"train", "valid", "test", *tests}
    assert "train: 60 of 60 pairs kept" in done.stdout
    sides = [[joined(line) for line in binarised(dest, "train", "de-en", language)] for language in LANGUAGES]
    expected = [f"{corpus} {n}" for seed, corpus in enumerate(ARCHIVES) for n in range(30 - 10 * seed)]
    for side in sides:
        assert [" ".join(line.split()[:2]) for line in side] == expected
    for split, test in {"valid": "newstest2013", "test": "newstest2014", **{test: test for test in tests}}.items():
        for language in LANGUAGES:
            raw = (dest / "raw" / f"{split}.{language}").read_text(encoding="utf-8").split("\n")[:-1]
            assert raw == [f"{test} {language}", *READ]
            assert len(binarised(dest, split, "de-en", language)) == 5
    assert not list(here.rglob("unpacked"))


@pytest.mark.parametrize("pair", ["en-de", "de-en"])
def test_unpacked_files_are_the_same(pair: str, tmp_path: Path) -> None:
    folder = write_release(tmp_path / "archives")
    expected = read_release(folder, pair)
    assert len(expected["train"]) == 60 and expected["test"][0] == tuple(f"newstest2014 {s}" for s in pair.split("-"))
    for path in folder.iterdir():
        shutil.unpack_archive(path, tmp_path / "files")
    assert read_release(tmp_path / "files", pair) == expected
    other = read_release(tmp_path / "files", pair, "--valid", "newstest2015")
    assert other["valid"] == expected["newstest2015"] and other["newstest2013"] == expected["valid"]


def test_only_archives_whose_texts_are_not_there_are_downloaded(tmp_path: Path, monkeypatch) -> None:
    def downloaded(folder: Path) -> list[str]:
        asked: list[str] = []
        monkeypatch.setattr(wmt14, "download", lambda attempts, is_sound: asked.append(attempts[0][1].name))
        CORPUS.download(folder, options_of(CORPUS, "de-en"))
        return asked

    archives = write_release(tmp_path / "archives")
    shutil.unpack_archive(archives / "training-parallel-nc-v9.tgz", tmp_path / "texts")
    others = [name for name in wmt14.URLS if name != "training-parallel-nc-v9.tgz"]
    assert downloaded(tmp_path / "texts") == others
    for path in archives.iterdir():
        shutil.unpack_archive(path, tmp_path / "texts")
    assert downloaded(tmp_path / "texts") == []
    next((tmp_path / "texts").rglob("newstest2012-ref.en.sgm")).unlink()
    assert downloaded(tmp_path / "texts") == ["test-full.tgz", "dev.tgz"]
    assert downloaded(tmp_path / "nothing") == list(wmt14.URLS)


def test_without_a_network_texts_of_the_sets_that_are_read_suffice(tmp_path: Path, monkeypatch) -> None:
    def fail(attempts: object, is_sound: object) -> None:
        raise DataError("no mirror worked")

    monkeypatch.setattr(wmt14, "download", fail)
    for path in write_release(tmp_path / "archives").iterdir():
        shutil.unpack_archive(path, tmp_path / "texts")
    options = options_of(CORPUS, "de-en")
    for name, is_read in (("newstest2012-ref.en.sgm", False), ("newstest2013-ref.en.sgm", True)):
        next((tmp_path / "texts").rglob(name)).unlink()
        with pytest.raises(DataError, match="no mirror") if is_read else nullcontext():
            CORPUS.download(tmp_path / "texts", options)


def test_sets_that_are_not_there(tmp_path: Path) -> None:
    folder = write_release(tmp_path / "a", without="newstest2015")
    assert "newstest2015" not in read_release(folder, "de-en")
    folder = write_release(tmp_path / "b", without="newstest2014-deen-ref")
    with pytest.raises(DataError, match="has no member newstest2014-deen-src.de.sgm and newstest2014-deen-ref.en.sgm"):
        read_release(folder, "de-en")
    folder = write_release(tmp_path / "c", without="commoncrawl.de-en.en")
    with pytest.raises(DataError, match="commoncrawl.tgz has no member commoncrawl.de-en.en"):
        read_release(folder, "de-en")
    (tmp_path / "d").mkdir()
    with pytest.raises(DataError, match="d has no training-parallel-europarl-v7.tgz .*test-full.tgz or test.tgz"):
        read_release(tmp_path / "d", "de-en")


def test_damaged_files(tmp_path: Path) -> None:
    write_release(tmp_path / "x")
    archive = tmp_path / "x" / "training-parallel-commoncrawl.tgz"
    content = archive.read_bytes()
    archive.write_bytes(content[: len(content) // 2])
    message = fail("wmt14", "en-de", "--from", "x", cwd=tmp_path)
    assert "x/training-parallel-commoncrawl.tgz is truncated or damaged" in message
    archive.write_bytes(content)
    with pytest.raises(DataError, match="newstest2012-src.en.sgm in .*dev.tgz has 5 lines, expected 3003"):
        read_release(tmp_path / "x", "en-de", check=True)
    for language, count in [("de", 5), ("en", 4)]:
        (tmp_path / "x" / f"commoncrawl.de-en.{language}").write_text("a\n" * count)
    with pytest.raises(DataError, match=r"commoncrawl.de-en.de:5: no line to pair with in .*\(5 lines against 4\)"):
        read_release(tmp_path / "x", "en-de")
    (tmp_path / "x" / "commoncrawl.de-en.en").write_bytes(b"a\na\nb\xff\na\na\n")
    with pytest.raises(DataError, match="commoncrawl.de-en.en:3: not UTF-8 text"):
        read_release(tmp_path / "x", "en-de")


def test_nothing_of_a_failed_run_is_left(tmp_path: Path) -> None:
    write_release(tmp_path / "x", without="news-commentary-v9.de-en.en")
    before = snapshot(tmp_path / "x")
    message = fail("wmt14", "en-de", "--from", "x", cwd=tmp_path)
    assert "training-parallel-nc-v9.tgz has no member news-commentary-v9.de-en.en" in message
    assert snapshot(tmp_path / "x") == before
    assert not any((tmp_path / "downloads" / "wmt14" / "en-de").iterdir())


def sgml(tmp_path: Path, body: str) -> list[tuple[str, str, str]]:
    path = tmp_path / "F"
    path.write_bytes(f'<srcset setid="x" srclang="any">\n{body}\n</srcset>\n'.encode())
    return [tuple(segment) for segment in sgm.segments(path, "F")]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Q & A; R&D;", "Q & A; R&D;"),
        ("&amp;lt; stays &lt;", "&lt; stays <"),
        ("&notit; &eacute;&nbsp;&#233;", "&notit; é\u00a0é"),
        ("a <b>bold <i>and</i> more</b> c", "a bold and more c"),
        ("1 < 2 <3 a<b <y & z", "1 < 2 <3 a<b <y & z"),
        ("to <john.doe>, <http://x.y>: i <n and j> m", "to <john.doe>, <http://x.y>: i <n and j> m"),
        ("<script>x</script> <title>y</title> z", "x y z"),
        ("two\r\nlines", "two lines"),
        ("", ""),
    ],
)
def test_text_of_segments(text: str, expected: str, tmp_path: Path) -> None:
    first, second = f'<hl>\n<seg id="1">{text}</SEG>\n</hl>', "<p>\n<seg id=2> end </seg>\n</p>"
    body = f'<DOC sysid="ref" docid=d1 genre="news">\n{first}{second}</DOC>'
    assert sgml(tmp_path, body) == [("d1", "1", expected), ("d1", "2", "end")]


def test_broken_sgml_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="^F:3: segment 1 is not closed before the next one"):
        sgml(tmp_path, '<doc docid="a">\n<seg id="1">x\n<seg id="2">y</seg>\n</doc>')
    with pytest.raises(DataError, match="^F:3: segment 7 is not closed: is the file truncated"):
        sgml(tmp_path, '<doc docid="a">\n<seg id="7">x')
    with pytest.raises(DataError, match="^F: <doc> is not closed"):
        sgml(tmp_path, '<doc docid="a">\n<seg id="7">x</seg>')
    with pytest.raises(DataError, match="^F: <refset> is not closed: is the file truncated"):
        sgml(tmp_path, '<refset setid="y">\n<doc docid="a">\n<seg id="7">x</seg>\n</doc>')
    with pytest.raises(DataError, match="^F has no segment"):
        sgml(tmp_path, "text")
