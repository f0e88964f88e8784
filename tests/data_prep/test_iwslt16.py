"""IWSLT 2016: archives, years of development and test, downloads, the real development and test sets."""

import random
import re
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
from corpora import corpus_folder
from iwslt_files import iwslt16_files
from preparation import archives, lines, ted, tokens
from preparation.corpora import iwslt16
from preparation.errors import DataError
from preparation_runs import binarised, fail, joined, options_of, read_all, succeed
from small_texts import LANGUAGES, tgz


def write_archive(folder: Path, pair: str, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{pair}.tgz"
    path.write_bytes(tgz({f"{pair}/{name}": data for name, data in files.items()}))
    return path


def iwslt_options(pair: str, dev: str = "dev2010", test: str = "", check: bool = False) -> Namespace:
    arguments = [pair, "--dev", dev, *(["--test", test] if test else [])]
    return options_of(iwslt16.IWSLT16(), *arguments, check=check)


def test_iwslt_from_the_archive(here: Path) -> None:
    write_archive(here / "my files", "en-de", iwslt16_files("en-de", end="\r\n"))
    done = succeed("iwslt16", "--pair", "en-de", "--from", "my files", "--merges", 60, "--max-ratio", 0, cwd=here)
    dest = here / "data-bin" / "iwslt16.en-de"
    years = iwslt16.TEST_YEARS
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
    line = next(lines.read_lines(dest / "prepared.txt"))
    assert line.startswith("iwslt16 en-de, valid dev2010, test tst2010 tst2011 tst2012 tst2013 tst2014, 60 merges")


def read_iwslt(folder: Path, files: dict[str, bytes], options: Namespace) -> dict[str, list[tuple[str, str]]]:
    """What the corpus reads of plain files."""
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return read_all(iwslt16.IWSLT16(), folder, options)


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
    corpus, options = iwslt16.IWSLT16(), iwslt_options("de-en")
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
    corpus, options = iwslt16.IWSLT16(), iwslt_options("de-en", check=True)
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
        archives.unpack(path, names | {"a name that is not there"}, tmp_path)


def test_iwslt_wrong_counts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="dev2010.de-en.de.xml has 3 lines, expected 887"):
        read_iwslt(tmp_path, iwslt16_files("de-en"), iwslt_options("de-en", check=True))


@pytest.mark.data
@pytest.mark.parametrize("year", ["dev2010", "tst2010", "tst2011", "tst2012"])
def test_real_iwslt_years(year: str) -> None:
    folder = corpus_folder("iwslt16") / "de-en"
    from sacremoses import MosesDetokenizer

    names = [f"IWSLT16.TED.{year}.de-en.{language}.xml" for language in LANGUAGES]
    pairs = ted.evaluation_pairs(*(folder / name for name in names), *names)
    assert len(pairs) == iwslt16.NUM_PAIRS["de"][year]
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
            assert sum(1 for _ in lines.read_lines(raw)) == count
