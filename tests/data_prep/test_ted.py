"""IWSLT 2014 and 2016: training text, test sets, splits, archives, the real corpora, and the files' formats."""

import random
import re
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from corpora import corpus_folder
from preparation import sources, ted, tokens
from preparation.corpora import ted_talks
from preparation.lines import DataError, read_lines
from preparation_runs import binarised, fail, joined, options_of, prepare, read_all, succeed
from small_corpora import IWSLT14_SETS, LANGUAGES, iwslt14_files, iwslt16_files, tagged, tgz, write_files, xml

IWSLT14 = ted_talks.IWSLT14()
PARTIAL = {
    "train": {
        "de": ["er &apos;s hund , und &quot; haus &quot; .", "b c", "d e"],
        "en": ["he &apos;s a dog .", "b", "e"],
    },
    "valid": {"de": ["a &amp; b .", "c d", "e f", "g ."], "en": ["it &apos;s &amp; b .", "c , d", "e", "g ."]},
}


def partial_files() -> dict[str, bytes]:
    files = {(split, side): lines for split, sides in PARTIAL.items() for side, lines in sides.items()}
    return {
        f"{split}.{side}.gz": "".join(f"{line}\n" for line in lines).encode() for (split, side), lines in files.items()
    }


@pytest.mark.parametrize("pair", ["de-en", "en-de"])
def test_usual_text_and_split(pair: str, here: Path) -> None:
    write_files(here / "x" / "de-en", iwslt14_files())
    done = succeed("iwslt14", pair, "--from", "x", "--merges", 200, cwd=here)
    dest = here / "data-bin" / f"iwslt14.{pair}"
    # Two talks give a title and a description each; one of the 90 lines is too long.
    assert "train: 93 of 94 pairs kept; dropped: length 1" in done.stdout
    for language in LANGUAGES:
        sentences = [joined(line) for line in binarised(dest, "train", pair, language)]
        valid = list(read_lines(here / "downloads" / "iwslt14" / pair / "tokens" / f"valid.{language}"))
        assert (
            len(sentences) == 93 - 93 // 23 and len(valid) == len(binarised(dest, "valid", pair, language)) == 93 // 23
        )
        assert sentences[0] == "a &lt; em &gt; nested &lt; / em &gt; title"
        assert sentences[1].startswith("ted talk subtitles and transcript : &lt; b &gt; x &lt; / b &gt; &amp; y")
        # Kept are the titles, 0 to 19 without 9, the titles, 20 to 89; every 23rd of these is in valid.
        numbers = ["", "", *(str(n) for n in range(20) if n != 9), "", "", *(str(n) for n in range(20, 90))]
        held_out = numbers[22::23]
        assert [line.split()[0] if number else "" for line, number in zip(valid, held_out)] == held_out
        raw = (dest / "raw" / f"valid.{language}").read_text().splitlines()
        assert [line.split()[0] for line in raw if line[0].isdigit()] == [number for number in held_out if number]
        rest = [number for index, number in enumerate(numbers, 1) if index % 23]
        assert [re.sub(r"\D.*", "", line.split()[0]) for line in sentences] == rest
        raw = (dest / "raw" / f"test.{language}").read_text().splitlines()
        assert raw == [line for name in IWSLT14_SETS for line in [f"{name} in {language} 's", "The end"]]
        assert all(line == line.lower() for line in binarised(dest, "test", pair, language))


def test_archive_and_files_are_the_same(tmp_path: Path) -> None:
    write_files(tmp_path / "files", iwslt14_files())
    archive = tgz({f"de-en/{name}": data for name, data in iwslt14_files().items()})
    write_files(tmp_path / "archive", {"de-en.tgz": archive})
    texts = [read_all(IWSLT14, tmp_path / name, options_of(IWSLT14, "de-en")) for name in ["files", "archive"]]
    assert texts[0] == texts[1] and list(texts[0]) == ["train", "test"]


def test_texts_that_are_there_are_not_downloaded(tmp_path: Path, monkeypatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(ted_talks, "download", lambda attempts, is_sound: asked.append(attempts[0][1].name))
    for place in ("files", "files/de-en"):
        IWSLT14.download(write_files(tmp_path / place, iwslt14_files()), options_of(IWSLT14, "de-en"))
    assert asked == []
    IWSLT14.download(tmp_path / "nothing", options_of(IWSLT14, "de-en"))
    assert asked == ["de-en.tgz"]


def test_too_few_pairs_for_valid(here: Path) -> None:
    write_files(here / "x", iwslt14_files())
    message = fail("iwslt14", "de-en", "--from", "x", "--max-length", 6, "--min-length", 6, "--merges", 9, cwd=here)
    assert re.search("the filter left [0-9]+ training pairs, too few for valid, one in 23 of them", message)


def test_partial_set(here: Path) -> None:
    write_files(here / "x", partial_files())
    done = succeed("iwslt14", "de-en", "--partial", "--from", "x", "--merges", 9, "--max-ratio", 0, cwd=here)
    dest = here / "data-bin" / "iwslt14-partial.de-en"
    assert "train: 3 of 3 pairs kept" in done.stdout
    for language in LANGUAGES:  # its tokens are not tokenised again
        assert [joined(line) for line in binarised(dest, "train", "de-en", language)] == PARTIAL["train"][language]
        assert len(binarised(dest, "valid", "de-en", language)) == len(binarised(dest, "test", "de-en", language)) == 2
    assert (dest / "raw" / "valid.en").read_text() == "it's & b.\nc, d\n"
    assert (dest / "raw" / "test.de").read_text() == "e f\ng.\n"


def test_partial_set_is_asked_for(here: Path) -> None:
    write_files(here / "x", partial_files())
    message = fail("iwslt14", "de-en", "--from", "x", cwd=here)
    assert "x has no de-en.tgz" in message and "the partial set is taken with --partial" in message
    message = fail("iwslt14", "de-en", "--partial", "--from", "x", cwd=here, check=True)
    assert "train.de in x/train.de.gz has SHA-256" in message
    (here / "x" / "valid.en.gz").unlink()
    message = fail("iwslt14", "de-en", "--partial", "--from", "x", cwd=here)
    assert "x has no valid.en" in message and "--partial" in message
    assert "cannot be downloaded" in fail("iwslt14", "de-en", "--partial", cwd=here)
    assert prepare("iwslt14", "de-en", "--partial", "--no-lowercase", cwd=here).returncode == 2


@pytest.mark.data
def test_real_partial_set() -> None:
    folder = corpus_folder("iwslt14-partial")
    texts = read_all(IWSLT14, folder, options_of(IWSLT14, "de-en", "--partial", check=True))
    assert {split: len(rows) for split, rows in texts.items()} == {"train": 45853, "valid": 3641, "test": 3642}
    reference = IWSLT14.reference_of(options_of(IWSLT14, "de-en", "--partial"))("en")
    raw = [reference(row[1]) for row in texts["test"]]
    assert raw[0] == "yes, you know it." and not any(re.search(r"&(apos|quot|amp);", line) for line in raw)


# IWSLT 2016


def write_archive(folder: Path, pair: str, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{pair}.tgz"
    path.write_bytes(tgz({f"{pair}/{name}": data for name, data in files.items()}))
    return path


def iwslt_options(pair: str, dev: str = "dev2010", test: str = "", check: bool = False) -> Namespace:
    arguments = [pair, "--dev", dev, *(["--test", test] if test else [])]
    return options_of(ted_talks.IWSLT16(), *arguments, check=check)


def test_iwslt_from_the_archive(here: Path) -> None:
    write_archive(here / "my files", "en-de", iwslt16_files("en-de", end="\r\n"))
    done = succeed("iwslt16", "--pair", "en-de", "--from", "my files", "--merges", 60, "--max-ratio", 0, cwd=here)
    dest = here / "data-bin" / "iwslt16.en-de"
    years = ted_talks.TEST_YEARS
    assert {path.name.split(".")[0] for path in dest.glob("*.idx")} == {"train", "valid", "test", *years}
    assert "train: 60 of 60 pairs kept" in done.stdout
    for language in LANGUAGES:
        train = [joined(line) for line in binarised(dest, "train", "en-de", language)]
        assert len(train) == 60 and train[59].startswith("59 ")
        assert train[5] == "AT &amp; T — 1 &lt; 2 &amp; unknown ; R &amp; D"
        assert train[7] == "&lt; 3 is no tag , &lt; em &gt; neither &lt; / em &gt;"
        raw = {
            split: (dest / "raw" / f"{split}.{language}").read_text().split("\n")[:-1]
            for split in ["valid", "test", *years]
        }
        middle = "Q&A with Procter & Gamble\u00a0: 1 < 2"
        assert raw["valid"] == [f"dev2010 first in {language} .", middle, "bye"]
        assert raw["test"] == [line for year in years for line in raw[year]]
        for split, expected in raw.items():
            assert len(binarised(dest, split, "en-de", language)) == len(expected)
        assert raw["tst2012"][0] == f"tst2012 first in {language} ."
        pooled = binarised(dest, "test", "en-de", language)
        assert pooled == [line for year in years for line in binarised(dest, year, "en-de", language)]
    line = next(read_lines(dest / "prepared.txt"))
    assert line.startswith("iwslt16 en-de, valid dev2010, test tst2010 tst2011 tst2012 tst2013 tst2014, 60 merges")


def read_iwslt(folder: Path, files: dict[str, bytes], options: Namespace) -> dict[str, list[tuple[str, str]]]:
    """What the corpus reads of plain files."""
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return read_all(ted_talks.IWSLT16(), folder, options)


def test_iwslt_dev_and_test_years(tmp_path: Path) -> None:
    files = iwslt16_files("fr-en")
    texts = read_iwslt(tmp_path, files, iwslt_options("fr-en", "tst2010 dev2010"))
    assert list(texts) == ["train", "valid", "test", "tst2011", "tst2012", "tst2013", "tst2014"]
    assert [source for source, _ in texts["valid"][::3]] == ["dev2010 first in fr .", "tst2010 first in fr ."]
    assert len(texts["test"]) == 12
    texts = read_iwslt(tmp_path, files, iwslt_options("fr-en", "tst2013", "tst2014"))
    assert list(texts) == ["train", "valid", "test", "tst2014"] and texts["test"] == texts["tst2014"]
    with pytest.raises(DataError, match="tst2013 cannot be in both --dev and --test"):
        read_iwslt(tmp_path, files, iwslt_options("fr-en", "tst2013", "tst2013 tst2014"))
    with pytest.raises(SystemExit):
        iwslt_options("fr-en", "dev2011")


def test_iwslt_archive_of_all_pairs(tmp_path: Path) -> None:
    files = iwslt16_files("de-en")
    inner = tgz({f"de-en/{name}": data for name, data in files.items()})
    other = tgz({"en-de/train.tags.en-de.en": b"x\n"})
    outer = {"2016-01/texts/en/de/en-de.tgz": other, "2016-01/texts/de/en/de-en.tgz": inner}
    (tmp_path / "2016-01.tgz").write_bytes(tgz(outer))
    corpus, options = ted_talks.IWSLT16(), iwslt_options("de-en")
    found = corpus.find(tmp_path, options)
    assert list(found) == ["2016-01.tgz"]
    texts = read_all(corpus, tmp_path, options)
    assert texts == read_iwslt(tmp_path, files, iwslt_options("de-en"))
    options.check = True
    with pytest.raises(DataError, match="has not the MD5"):
        corpus.read(found, options, tmp_path)


def test_iwslt_download(tmp_path: Path, server: SimpleNamespace) -> None:
    files = iwslt16_files("de-en")
    write_archive(server.folder / "texts" / "de" / "en", "de-en", files)
    (server.folder / "old").mkdir()
    (server.folder / "old" / "2016-01.tgz").write_bytes(tgz({"x": b"y"}))
    corpus, options = ted_talks.IWSLT16(), iwslt_options("de-en", check=True)
    options.mirror = [f"{server.url}/old", f"{server.url}/"]
    corpus.download(tmp_path, options)
    places = ["old/de-en.tgz", "old/texts/de/en/de-en.tgz", "old/2016-01.tgz", "de-en.tgz", "texts/de/en/de-en.tgz"]
    assert server.requests == [f"/{place}" for place in places]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["de-en.tgz"]
    assert set(corpus.find(tmp_path, options)) == {"de-en.tgz"}
    corpus.download(tmp_path, options)
    texts = tmp_path / "texts"
    (texts / "de-en").mkdir(parents=True)
    for name, data in files.items():
        (texts / "de-en" / name).write_bytes(data)
    corpus.download(texts, options)
    assert len(server.requests) == len(places)


def test_iwslt_no_mirror_left(here: Path, server: SimpleNamespace) -> None:
    message = fail("iwslt16", "de-en", "--mirror", server.url, cwd=here)
    assert "no mirror worked: download de-en.tgz or 2016-01.tgz by hand" in message


def test_iwslt_missing_member(here: Path) -> None:
    files = iwslt16_files("de-en")
    del files["IWSLT16.TED.tst2013.de-en.en.xml"]
    write_archive(here / "x", "de-en", files)
    message = fail("iwslt16", "de-en", "--from", "x", cwd=here)
    assert "x/de-en.tgz has no member IWSLT16.TED.tst2013.de-en.en.xml" in message
    for name, data in files.items():
        (here / "y" / "de-en").mkdir(parents=True, exist_ok=True)
        (here / "y" / "de-en" / name).write_bytes(data)
    message = fail("iwslt16", "de-en", "--from", "y", cwd=here)
    assert "y/de-en has no IWSLT16.TED.tst2013.de-en.en.xml (nor has y de-en.tgz or 2016-01.tgz)" in message


@pytest.mark.parametrize("kept", [0.01, 0.5, 0.99], ids=["beginning", "half", "nearly all"])
def test_iwslt_truncated_archive(kept: float, tmp_path: Path) -> None:
    rng = random.Random(1)
    files = iwslt16_files("de-en")
    files = {"noise": rng.randbytes(100000), **files, "more noise": rng.randbytes(100000)}
    path = write_archive(tmp_path, "de-en", files)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    names = {name for name in files if "noise" not in name}
    with pytest.raises(DataError, match="de-en.tgz is truncated or damaged"):
        sources.unpack(path, names | {"a name that is not there"}, tmp_path)


def test_iwslt_wrong_counts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="dev2010.de-en.de.xml has 3 lines, expected 887"):
        read_iwslt(tmp_path, iwslt16_files("de-en"), iwslt_options("de-en", check=True))


@pytest.mark.data
@pytest.mark.parametrize("year", ["dev2010", "tst2010", "tst2011", "tst2012"])
def test_real_iwslt_years(year: str) -> None:
    folder = corpus_folder("iwslt16") / "de-en"
    from sacremoses import MosesDetokenizer

    names = [f"IWSLT16.TED.{year}.de-en.{language}.xml" for language in LANGUAGES]
    pairs = ted.xml_pairs(*(folder / name for name in names), *names)
    assert len(pairs) == ted_talks.NUM_PAIRS["de"][year]
    assert all(map(all, pairs))
    for language, side in zip(LANGUAGES, zip(*pairs)):
        assert not re.search("&(amp|lt|gt|quot);", " ".join(side))
        tokenise, detokeniser = tokens.moses(language, False), MosesDetokenizer(language)
        for line in side[::10]:
            assert "".join(detokeniser.detokenize(tokenise(line).split()).split()) == "".join(line.split())


@pytest.mark.data
@pytest.mark.slow
def test_real_iwslt_years_through_the_script(here: Path) -> None:
    folder = corpus_folder("iwslt16") / "de-en"
    (here / "x" / "de-en").mkdir(parents=True)
    for path in folder.iterdir():
        (here / "x" / "de-en" / path.name).symlink_to(path)
    for name, data in iwslt16_files("de-en").items():
        if name.startswith("train"):
            (here / "x" / "de-en" / name).write_bytes(data)
    options = ["--from", "x", "--dev", "dev2010 tst2010", "--test", "tst2012", "--merges", 50]
    done = succeed("iwslt16", "de-en", *options, cwd=here)
    for split, count in {"valid": 887 + 1565, "tst2012": 1700, "test": 1700}.items():
        for language in LANGUAGES:
            assert re.search(rf"^{split}.{language}: {count} lines", done.stdout, re.MULTILINE)
            raw = here / "data-bin" / "iwslt16.de-en" / "raw" / f"{split}.{language}"
            assert sum(1 for _ in read_lines(raw)) == count


# Formats


@pytest.fixture
def of_files(tmp_path: Path) -> Callable[..., list[tuple[str, str]]]:
    """``of_files(read, source, target)``: the pairs that ``read`` finds in two files S and T of these contents."""

    def read_files(read: Callable, source: bytes, target: bytes) -> list[tuple[str, str]]:
        paths = [tmp_path / "S", tmp_path / "T"]
        for path, content in zip(paths, [source, target]):
            path.write_bytes(content)
        return list(read(*paths, "S", "T"))

    return read_files


def test_training_pairs_tell_where_talks_differ(of_files: Callable) -> None:
    source = tagged([["a", "b"], ["c", "d"], ["e"]])
    target = tagged([["a", "b"], ["c"], ["e"]])
    with pytest.raises(DataError) as error:
        of_files(ted.training_pairs, source, target)
    assert str(error.value) == "S:17: 2 lines up to the next tag, but 1 from T:17 (5 lines against 4 in all)"
    with pytest.raises(DataError, match="T has no line besides its tags"):
        of_files(ted.training_pairs, source, tagged([[]]))
    with pytest.raises(DataError, match="T:3: not UTF-8 text"):
        of_files(ted.training_pairs, source, target.replace(b"A. Speaker", b"\xff"))


@pytest.mark.parametrize("last", [["f"], ["f", "g"]], ids=["equal totals", "other totals"])
def test_talks_of_other_lengths_are_refused_though_the_texts_may_be_as_long(
    of_files: Callable, last: list[str]
) -> None:
    source, target = tagged([["a"], ["b", "c"], ["d", "e"]]), tagged([["a"], ["b"], ["d", "e", *last]])
    total = 3 + len(last) + 1
    with pytest.raises(DataError) as error:
        of_files(ted.training_pairs, source, target)
    told = f"S:16: 2 lines up to the next tag, but 1 from T:16 (5 lines against {total} in all)"
    assert str(error.value) == told


def test_entities_of_training_text_do_not_break_lines(of_files: Callable) -> None:
    source = tagged([["a&NewLine;b &#10;&#x2028; c&#133;", "d &lt;x&gt; &amp;amp; &notit;"]])
    pairs = of_files(ted.training_pairs, source, source)
    assert [line for line, _ in pairs] == ["a b    c\u2026", "d <x> &amp; &notit;"]


def test_titles_can_be_text(of_files: Callable) -> None:
    source = tagged([["a"], ["b", "c"]])
    assert of_files(ted.training_pairs, source, source) == [("a", "a"), ("b", "b"), ("c", "c")]
    texts = ["A <em>nested</em> title", "TED Talk Subtitles and Transcript: <b>x</b> & y"]
    read = partial(ted.training_pairs, kept_tags=("title", "description"))
    assert [line for line, _ in of_files(read, source, source)] == [*texts, "a", *texts, "b", "c"]
    with pytest.raises(DataError, match="S:5: 3 lines up to the next tag, but 4 from T:5"):
        of_files(read, source, tagged([["a", "b"], ["b", "c"]]))


def test_empty_lines_of_training_text_keep_their_places(of_files: Callable) -> None:
    pairs = of_files(ted.training_pairs, tagged([["a", "", "c"]], "\r\n"), tagged([["x", "y\u2028z", ""]]))
    assert pairs == [("a", "x"), ("", "y z"), ("c", "")]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Q & A", "Q & A"),
        ("Q&A; R&D;", "Q&A; R&D;"),
        ("&amp;lt; stays &lt;", "&lt; stays <"),
        ("&eacute;&nbsp;&#233;&#xe9;", "é\u00a0éé"),
        ("1 < 2 > 0 <3 <- a<b", "1 < 2 > 0 <3 <- a<b"),
        ("a <b>bold <i>and</i> more</b> c", "a bold and more c"),
        ("a <br/> b<!-- comment -->c", "a  bc"),
        ("a&#10;b&#0;c&#x2028;d\x01e\x00f&NewLine;g", "a b\ufffdc d e f g"),
        ("two\nlines\r\nhere", "two lines here"),
        ("&undefined; &notanentity;", "&undefined; &notanentity;"),
        ("", ""),
    ],
)
def test_segment_text(text: str, expected: str) -> None:
    assert ted.xml_segments(xml({"1": [text, "end"]}), "F") == [("1", "1", expected), ("1", "2", "end")]


def test_broken_xml_is_told_with_its_line() -> None:
    content = xml({"1": ["a", "b <i>open</b>"]})
    with pytest.raises(DataError, match=r"^F:10: not well-formed XML \(mismatched tag"):
        ted.xml_segments(content, "F")
    with pytest.raises(DataError, match="^F:[0-9]+: not well-formed XML"):
        ted.xml_segments(xml({"1": ["a", "b"]})[:-30], "F")
    with pytest.raises(DataError, match="^F has no segment"):
        ted.xml_segments(b"<mteval><doc docid='1'></doc></mteval>", "F")
    with pytest.raises(DataError, match="^F:9: not UTF-8 text"):
        ted.xml_segments(xml({"1": ["a"]}).replace(b"> a <", b"> \xe9 <"), "F")


def test_evaluation_pair_demands_the_same_segments(of_files: Callable) -> None:
    source = xml({"1": ["a", "b"], "2": ["c"]})
    assert of_files(ted.xml_pairs, source, source) == [("a", "a"), ("b", "b"), ("c", "c")]
    with pytest.raises(DataError, match="S: segment 2 of talk 1 stands opposite segment 1 of talk 2 of T"):
        of_files(ted.xml_pairs, source, xml({"1": ["a"], "2": ["b", "c"]}))
    with pytest.raises(DataError, match="S has 3 segments, T has 2"):
        of_files(ted.xml_pairs, source, xml({"1": ["a", "b"]}))
