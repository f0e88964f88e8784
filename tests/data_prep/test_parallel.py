"""Preparation of parallel corpora: the scripts of Multi30k and IWSLT as a user drives them, and the parts."""

import contextlib
import gzip
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from harness import (
    LANGUAGES,
    REPOSITORY,
    SHARED_DATA,
    binarised,
    fail,
    joined,
    prepare,
    sentences,
    snapshot,
    succeed,
    tgz,
)
from parallel import iwslt16, lines, multi30k, pipeline, sources, steps, subwords, ted, tokens
from parallel.corpus import Corpus
from parallel.errors import DataError

pytestmark = pytest.mark.skipif(
    not all(shutil.which(tool) for tool in ["bash", "fairseq-preprocess"]),
    reason="needs bash and fairseq-preprocess on PATH",
)

AWKWARD = {
    "de": [
        'Er sagte: "Ja & nein" <unk> |x| [1].\r',
        "",
        "eins\u2028zwei\x85drei\x00vier\rfünf\x1csechs",
        " ".join(["Wörter"] * 1000),
        "\u00a0 \t",
        "☃ 漢字 \U0001f600",
        "</s> <pad> @@ ▁",
    ],
    "en": [
        'He said: "Yes & no" <unk> |x| [1].',
        "not in the other language",
        "one\u2029two three four\vfive\fsix",
        " ".join(["words"] * 1000),
        "the other side is space",
        "☃ 漢字 \U0001f600",
        "</s> <pad> @@ ▁",
    ],
}


def write_multi30k(folder: Path, texts: dict[str, dict[str, list[str]]]) -> Path:
    folder.mkdir(parents=True)
    for split, sides in texts.items():
        for language, side in sides.items():
            content = "".join(f"{line}\n" for line in side).encode()
            (folder / f"{split}.{language}.gz").write_bytes(gzip.compress(content, mtime=0))
    return folder


def small_multi30k(folder: Path, num_lines: int = 60) -> Path:
    splits = {"train": num_lines, "val": 9, "test_2016_flickr": 7}
    return write_multi30k(
        folder, {split: {lang: sentences(lang, count) for lang in LANGUAGES} for split, count in splits.items()}
    )


# The scripts, Multi30k


@pytest.fixture(scope="module")
def awkward(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A result of Multi30k's script on lines that invite misalignment, in folders with spaces and a comma."""
    cwd = tmp_path_factory.mktemp("with spaces, commas") / "x y"
    texts = {
        "train": {lang: sentences(lang, 40) + AWKWARD[lang] + sentences(lang, 3, seed=2) for lang in LANGUAGES},
        "val": {lang: sentences(lang, 5) for lang in LANGUAGES},
        "test_2016_flickr": {lang: [*AWKWARD[lang], "the end"] for lang in LANGUAGES},
    }
    write_multi30k(cwd / "from, here", texts)
    done = succeed("multi30k", "de-en", "--from", "from, here", "--work", "my work, here", "--merges", 60, cwd=cwd)
    return SimpleNamespace(
        cwd=cwd, dest=cwd / "data-bin" / "multi30k.de-en", texts=texts, stdout=done.stdout, stderr=done.stderr
    )


def test_files_of_the_result(awkward: SimpleNamespace) -> None:
    expected = {"dict.de.txt", "dict.en.txt", "bpe.codes", "prepared.txt", "preprocess.log"}
    expected |= {f"raw/{split}.{lang}" for split in ["valid", "test"] for lang in LANGUAGES}
    for split in ["train", "valid", "test"]:
        expected |= {f"{split}.de-en.{lang}.{end}" for lang in LANGUAGES for end in ["bin", "idx"]}
    assert set(snapshot(awkward.dest)) == expected
    assert {path.name for path in awkward.dest.parent.iterdir()} == {"multi30k.de-en"}
    assert not list(awkward.cwd.rglob(".*partial*"))
    assert str(awkward.cwd) not in (awkward.dest / "preprocess.log").read_text()
    assert "data-bin/multi30k.de-en" in awkward.stdout and "warning: EXPECTED_COUNTS=skip" in awkward.stderr


def test_training_pairs_stay_aligned(awkward: SimpleNamespace) -> None:
    sides = [[joined(line) for line in binarised(awkward.dest, "train", "de-en", lang)] for lang in LANGUAGES]
    # Of the seven awkward pairs two have an empty side and one is too long.
    assert [len(side) for side in sides] == [40 + 4 + 3] * 2
    assert "train: 47 of 50 pairs kept; dropped: empty side 2, length 1" in awkward.stdout
    for source, target in zip(*sides):
        numbers = [re.match(r"\d+", side) for side in (source, target)]
        assert bool(numbers[0]) == bool(numbers[1])
        assert not numbers[0] or numbers[0][0] == numbers[1][0]
    assert sides[0][40] == "Er sagte : &quot; Ja &amp; nein &quot; &lt; unk &gt; &#124; x &#124; &#91; 1 &#93; ."
    assert sides[0][41] == "eins zwei drei vier fünf sechs" and sides[1][41] == "one two three four five six"
    assert sides[0][42] == sides[1][42] == "☃ 漢 字 \U0001f600"
    assert sides[0][43] == sides[1][43] == "&lt; / s &gt; &lt; pad &gt; @ @ ▁"


def test_every_test_pair_stays_in_its_place(awkward: SimpleNamespace) -> None:
    assert "test: 2 pairs with an empty side, kept in their places" in awkward.stdout
    for language in LANGUAGES:
        raw = (awkward.dest / "raw" / f"test.{language}").read_bytes().decode()
        assert len(raw.splitlines()) == raw.count("\n") == 8  # no character but LF breaks a line
        side = binarised(awkward.dest, "test", "de-en", language)
        assert len(side) == 8 and side[-1]
        for text, line in zip(raw.split("\n"), side):
            assert bool(text) == bool(line)
            assert len(line.split()) >= 1000 or len(text.split()) < 1000
    raw = (awkward.dest / "raw" / "test.de").read_bytes().decode().split("\n")
    assert raw[0] == 'Er sagte: "Ja & nein" <unk> |x| [1].'
    assert raw[1] == raw[4] == ""
    assert raw[2] == "eins zwei drei vier fünf sechs"
    assert raw[-2] == "the end"


def test_no_text_becomes_a_symbol_of_the_host(awkward: SimpleNamespace) -> None:
    for language in LANGUAGES:
        symbols = {line.split(" ")[0] for line in (awkward.dest / f"dict.{language}.txt").read_text().split("\n")}
        assert not symbols & {"<s>", "</s>", "<pad>", "<unk>"}
        assert "<unk>" not in " ".join(binarised(awkward.dest, "train", "de-en", language))


def test_finished_result_is_left_alone(awkward: SimpleNamespace) -> None:
    before = snapshot(awkward.cwd)
    again = ["multi30k", "--pair", "de-en", "--from", "from, here", "--work", "my work, here"]
    done = succeed(*again, "--merges", 60, cwd=awkward.cwd)
    assert "already complete" in done.stderr
    other = prepare(*again, "--merges", 61, cwd=awkward.cwd)
    assert other.returncode == 1 and "already holds 'multi30k de-en, 60 merges" in other.stderr
    checked = prepare(*again, "--merges", 60, cwd=awkward.cwd, check=True)
    assert checked.returncode == 1 and "not checked" in checked.stderr and "--dest" in checked.stderr
    assert snapshot(awkward.cwd) == before


def test_sentencepiece_lowercase_and_joined_dictionary(here: Path) -> None:
    folder = here / "x"
    folder.mkdir()
    for split, count in {"train": 60, "val": 9, "test_2016_flickr": 7}.items():
        for language in LANGUAGES:  # without compression
            lines.write_lines(folder / f"{split}.{language}", sentences(language, count))
    options = ["--bpe", "sentencepiece", "--merges", 40, "--lowercase", "--joined-dictionary", "--workers", 1]
    succeed("multi30k", "en-de", "--from", folder, "--dest", "out/here", *options, cwd=here)
    dest = here / "out" / "here"
    assert (dest / "dict.de.txt").read_bytes() == (dest / "dict.en.txt").read_bytes()
    for split in ["train", "test"]:
        for language in LANGUAGES:
            side = [
                line.replace(" ", "").replace("▁", " ").strip() for line in binarised(dest, split, "en-de", language)
            ]
            tokenise = tokens.moses(language, lowercase=True)
            assert side == [tokenise(line) for line in sentences(language, len(side))]
    assert (dest / "raw" / "test.de").read_text() == "".join(f"{line}\n" for line in sentences("de", 7))
    assert (dest / "sentencepiece.bpe.model").is_file()


def assert_nothing_runs_in(folder: Path) -> None:
    """No process that a killed run started outlives it for long."""
    for _ in range(100):
        places = []
        for link in Path("/proc").glob("[0-9]*/cwd"):
            with contextlib.suppress(OSError):
                places.append(os.readlink(link))
        if not any(place.startswith(str(folder)) for place in places):
            return
        time.sleep(0.05)
    raise AssertionError(f"something still runs in {folder}")


def test_kill_and_run_again(tmp_path: Path) -> None:
    command = ["bash", str(REPOSITORY / "data-prep" / "multi30k" / "prepare.sh"), "de-en", "--from", "../x"]
    command += ["--merges", "150", "--workers", "2"]
    small_multi30k(tmp_path / "x", num_lines=5000)
    for name in ["undisturbed", "killed"]:
        (tmp_path / name).mkdir()
    env = {**os.environ, "EXPECTED_COUNTS": "skip"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    partial_folders = ["downloads/*/*/.text.*", "downloads/*/*/.tokens.*", "downloads/*/*/.subwords.*", "data-bin/.*"]
    for pattern in partial_folders:
        process = subprocess.Popen(command, cwd=tmp_path / "killed", env=env, **quiet)
        while not list((tmp_path / "killed").glob(pattern)):
            assert process.poll() is None, f"{pattern} never appeared"
            time.sleep(0.002)
        time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert_nothing_runs_in(tmp_path / "killed")
        assert not (tmp_path / "killed" / "data-bin" / "multi30k.de-en").exists()
    for name in ["undisturbed", "killed"]:
        subprocess.run(command, cwd=tmp_path / name, env=env, check=True, **quiet)
    results = [snapshot(tmp_path / name) for name in ["undisturbed", "killed"]]
    for name in results[0]:
        assert results[0][name] == results[1].get(name), name
    assert set(results[0]) == set(results[1])


def test_steps_are_made_again_only_where_something_changed(here: Path, fake_host: dict[str, str]) -> None:
    small_multi30k(here / "x")

    def run(*options: object) -> str:
        done = prepare("multi30k", "de-en", "--from", "x", "--merges", 20, *options, cwd=here, **fake_host)
        assert "fairseq-preprocess failed, see downloads/multi30k/de-en/preprocess.log (out of memory)" in done.stderr
        return " ".join(re.findall(r"de-en/(\w+) is already complete", done.stderr))

    assert run() == ""
    assert run() == "text tokens subwords"
    assert run("--merges", 10) == "text tokens"
    assert run("--lowercase") == "text"
    write_multi30k(here / "y", {"val": {lang: sentences(lang, 8) for lang in LANGUAGES}})
    shutil.copy(here / "y" / "val.de.gz", here / "x")
    shutil.copy(here / "y" / "val.en.gz", here / "x")
    assert run() == ""
    assert not list(here.rglob("*partial*")) and not list((here / "data-bin").iterdir())


def test_mirrors(here: Path, fake_host: dict[str, str], server: SimpleNamespace) -> None:
    small_multi30k(server.folder / "good")
    shutil.copytree(server.folder / "good", server.folder / "broken")
    broken = server.folder / "broken" / "train.en.gz"
    broken.write_bytes(broken.read_bytes()[:-20])
    (server.folder / "broken" / "val.de.gz").write_text("<html>This domain is for sale</html>")
    mirrors = [f"{server.url}/gone", f"{server.url}/broken", f"{server.url}/good/"]
    options = [part for mirror in mirrors for part in ["--mirror", mirror]]
    message = fail("multi30k", "de-en", *options, "--merges", 20, cwd=here, **fake_host)
    assert "out of memory" in message
    found = {path.name: path.read_bytes() for path in (here / "downloads" / "multi30k").glob("*.gz")}
    assert found == {path.name: path.read_bytes() for path in (server.folder / "good").iterdir()}
    assert server.requests.count("/good/train.en.gz") == server.requests.count("/good/val.de.gz") == 1
    num_requests = len(server.requests)
    assert num_requests == 6 * 2 + 2
    fail("multi30k", "de-en", *options, "--merges", 20, cwd=here, **fake_host)  # nothing is downloaded twice
    assert len(server.requests) == num_requests


@pytest.mark.parametrize(
    "corpus, archives", [("multi30k", "train.de.gz"), ("iwslt16", "de-en.tgz or 2016-01.tgz")], ids=["gz", "tgz"]
)
def test_no_mirror_left(corpus: str, archives: str, here: Path, server: SimpleNamespace) -> None:
    message = fail(corpus, "de-en", "--mirror", server.url, "--mirror", "nonsense", cwd=here)
    assert f"download {archives} by hand" in message and "--from DIR" in message
    assert f"/{archives.split()[0]}" in server.requests


def damaged(folder: Path, kind: str) -> str:
    """Do what ``kind`` says to a small corpus; a part of the message that must follow."""
    train = folder / "train.de.gz"
    content = gzip.decompress(train.read_bytes())
    if kind == "truncated archive":
        train.write_bytes(train.read_bytes()[:-50])
        return "x/train.de.gz is truncated or damaged"
    if kind == "no archive":
        train.write_bytes(content)
        return "x/train.de.gz is truncated or damaged"
    if kind == "missing language":
        train.unlink()
        (folder / "val.de.gz").unlink()
        return "x has no train.de.gz, val.de.gz: put"
    if kind == "unequal lines":
        train.write_bytes(gzip.compress(content[: content.rindex(b"59 ")]))
        return "x/train.en.gz:60: no line to pair with in x/train.de.gz (60 lines against 59)"
    if kind == "not UTF-8":
        train.write_bytes(gzip.compress(content.replace(b"\n7 ", b"\n7\xfc ", 1)))
        return "x/train.de.gz:8: not UTF-8 text (byte 2 of the line)"
    assert kind == "empty file"
    for language in LANGUAGES:
        (folder / f"val.{language}.gz").write_bytes(gzip.compress(b""))
    return "x/val.de.gz is empty"


@pytest.mark.parametrize(
    "kind",
    ["truncated archive", "no archive", "missing language", "unequal lines", "not UTF-8", "empty file"],
)
def test_damaged_multi30k(kind: str, here: Path) -> None:
    expected = damaged(small_multi30k(here / "x"), kind)
    assert expected in fail("multi30k", "de-en", "--from", "x", cwd=here)


def test_wrong_checksum(here: Path) -> None:
    small_multi30k(here / "x")
    message = fail("multi30k", "de-en", "--from", "x", cwd=here, check=True)
    assert re.search(r"train\.de in x/train\.de\.gz has SHA-256 [0-9a-f]{64}, expected 2c2b73fd", message)


def test_foreign_folder_is_not_touched(here: Path) -> None:
    small_multi30k(here / "x")
    (here / "mine").mkdir()
    (here / "mine" / "thesis.tex").write_text("precious")
    done = prepare("multi30k", "de-en", "--from", "x", "--dest", "mine", cwd=here)
    assert done.returncode == 1 and "did not write" in done.stderr and "--dest" in done.stderr
    assert snapshot(here / "mine") == {"thesis.tex": b"precious"}


def test_nothing_left_after_the_filter(here: Path) -> None:
    small_multi30k(here / "x")
    message = fail("multi30k", "de-en", "--from", "x", "--min-length", 90, cwd=here)
    assert "the filter left no training pair" in message


@pytest.mark.parametrize("corpus", ["iwslt16", "multi30k"])
def test_help(corpus: str, here: Path) -> None:
    done = succeed(corpus, "--help", cwd=here)
    flags = ["--pair", "--from", "--mirror", "--dest", "--work", "--workers", "--bpe", "--merges", "--max-ratio"]
    assert done.stdout.startswith("usage: prepare.sh") and all(f"  {flag} " in done.stdout for flag in flags)
    assert "EXPECTED_COUNTS=skip" in done.stdout and not list(here.iterdir())


@pytest.mark.parametrize(
    "options",
    ["", "de-xx", "--pair", "en-de --pair de-en", "de-en --frmo x", "de-en --merges 0", "de-en --max-ratio 0.5"]
    + ["de-en --min-length 5 --max-length 4", "de-en --bpe fastbpe", "de-en --from"],
)
def test_usage_error(options: str, here: Path) -> None:
    done = prepare("multi30k", *options.split(), cwd=here)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith("usage: ")
    assert not list(here.iterdir())


# The scripts, IWSLT


def tagged(talks: list[list[str]], end: str = "\n") -> bytes:
    """``train.tags`` text."""
    out = []
    for number, talk in enumerate(talks):
        out += [
            f"<url>http://www.ted.com/talks/{number}.html</url>",
            "<keywords>talks, R & D</keywords>",
            "<speaker>A. Speaker</speaker>",
            f"<talkid>{number}</talkid>",
            "<title>A <em>nested</em> title</title>",
            "<description>TED Talk Subtitles and Transcript: <b>x</b> & y</description>",
            *(f" {line} " for line in talk),
            '<reviewer href="http://www.ted.com/profiles/1">Someone</reviewer>',
            '<translator href="http://www.ted.com/profiles/2">Someone</translator>',
        ]
    return "".join(f"{line}{end}" for line in out).encode()


def xml(talks: dict[str, list[str]], end: str = "\n") -> bytes:
    """An IWSLT16.TED file, with the campaign's own carelessness about ``&``."""
    out = ['<?xml version="1.0" encoding="UTF-8"?>', "<mteval>", '<refset setid="iwslt2016" trglang="x" refid="ref">']
    for number, talk in talks.items():
        out += [f'<doc docid="{number}" genre="lectures">', f"<url>http://www.ted.com/talks/{number}?a=1&b=2</url>"]
        out += ["<description>Q & A, 1 < 2</description>", f"<talkid>{number}</talkid>", "<title>A &eacute;</title>"]
        out += [f'<seg id="{index}"> {line} </seg>' for index, line in enumerate(talk, 1)]
        out += ["</doc>"]
    return "".join(f"{line}{end}" for line in [*out, "</refset>", "</mteval>"]).encode()


def iwslt_files(pair: str, *, end: str = "\n") -> dict[str, bytes]:
    """A small release of a pair: three talks for training, one talk of three lines for each year."""
    files = {}
    for language in pair.split("-"):
        train = sentences(language, 60)
        train[5] = "AT&amp;T &#8212; 1 < 2 &unknown; R&D"
        train[7] = "<3 is no tag, <em>neither</em>"
        files[f"train.tags.{pair}.{language}"] = tagged([train[:20], train[20:21], train[21:]], end)
        for year in iwslt16.YEARS:
            talk = [f"{year} first in {language} .", "Q&A with <b>Procter &amp; <i>Gamble</i></b>&nbsp;: 1 < 2", "bye"]
            files[f"IWSLT16.TED.{year}.{pair}.{language}.xml"] = xml({"69": talk}, end)
    return files


def write_archive(folder: Path, pair: str, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{pair}.tgz"
    path.write_bytes(tgz({f"{pair}/{name}": data for name, data in files.items()}))
    return path


def iwslt_options(pair: str, dev: str = "dev2010", test: str = "", check: bool = False) -> Namespace:
    arguments = [pair, "--dev", dev, *(["--test", test] if test else [])]
    options = pipeline.parse_options(iwslt16.IWSLT16(), arguments)
    options.check = check
    return options


def test_iwslt_from_the_archive(here: Path) -> None:
    write_archive(here / "my files", "en-de", iwslt_files("en-de", end="\r\n"))
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


def read_all(corpus: Corpus, folder: Path, options: Namespace) -> dict[str, list[tuple[str, str]]]:
    """What a corpus reads of a folder."""
    with tempfile.TemporaryDirectory() as scratch:
        texts = corpus.read(corpus.find(folder, options), options, Path(scratch))
        return {split: list(pairs) for split, pairs in texts.items()}


def read_iwslt(folder: Path, files: dict[str, bytes], options: Namespace) -> dict[str, list[tuple[str, str]]]:
    """What the corpus reads of plain files."""
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return read_all(iwslt16.IWSLT16(), folder, options)


def test_iwslt_dev_and_test_years(tmp_path: Path) -> None:
    files = iwslt_files("fr-en")
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
    files = iwslt_files("de-en")
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
    files = iwslt_files("de-en")
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
    assert len(server.requests) == len(places)


def test_iwslt_missing_member(here: Path) -> None:
    files = iwslt_files("de-en")
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
    files = iwslt_files("de-en")
    files = {"noise": rng.randbytes(100000), **files, "more noise": rng.randbytes(100000)}
    path = write_archive(tmp_path, "de-en", files)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    names = {name for name in files if "noise" not in name}
    with pytest.raises(DataError, match="de-en.tgz is truncated or damaged"):
        sources.unpack(path, names | {"a name that is not there"}, tmp_path)


def test_iwslt_wrong_counts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="dev2010.de-en.de.xml has 3 lines, expected 887"):
        read_iwslt(tmp_path, iwslt_files("de-en"), iwslt_options("de-en", check=True))


# The formats


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
    assert ted.segments(xml({"1": [text, "end"]}), "F") == [("1", "1", expected), ("1", "2", "end")]


def test_broken_xml_is_told_with_its_line() -> None:
    content = xml({"1": ["a", "b <i>open</b>"]})
    with pytest.raises(DataError, match=r"^F:10: not well-formed XML \(mismatched tag"):
        ted.segments(content, "F")
    with pytest.raises(DataError, match="^F:[0-9]+: not well-formed XML"):
        ted.segments(xml({"1": ["a", "b"]})[:-30], "F")
    with pytest.raises(DataError, match="^F has no segment"):
        ted.segments(b"<mteval><doc docid='1'></doc></mteval>", "F")
    with pytest.raises(DataError, match="^F:9: not UTF-8 text"):
        ted.segments(xml({"1": ["a"]}).replace(b"> a <", b"> \xe9 <"), "F")


def test_evaluation_pair_demands_the_same_segments(of_files: Callable) -> None:
    source = xml({"1": ["a", "b"], "2": ["c"]})
    assert of_files(ted.evaluation_pairs, source, source) == [("a", "a"), ("b", "b"), ("c", "c")]
    with pytest.raises(DataError, match="S: segment 2 of talk 1 stands opposite segment 1 of talk 2 of T"):
        of_files(ted.evaluation_pairs, source, xml({"1": ["a"], "2": ["b", "c"]}))
    with pytest.raises(DataError, match="S has 3 segments, T has 2"):
        of_files(ted.evaluation_pairs, source, xml({"1": ["a", "b"]}))


def test_lines_end_at_line_feeds_only() -> None:
    content = "\ufeffa\r\nb\rc\u2028d\x85e\n\n\x00f\n  last".encode()
    assert sources.text_lines(content, "F") == ["a", "b c d e", "", "f", "last"]


def test_filter_pairs() -> None:
    pairs = [("a", "x"), ("a b c", "x y"), ("a b", "x y z w"), ("", "x"), ("a b c d", "x y z"), ("a " * 9, "x")]
    dropped: Counter = Counter()
    kept = tokens.filter_pairs(pairs, dropped, min_length=1, max_length=8, max_ratio=1.5)
    assert list(kept) == [("a", "x"), ("a b c", "x y"), ("a b c d", "x y z")]
    assert dropped == {"ratio": 1, "empty side": 1, "length": 1}
    assert len(list(tokens.filter_pairs(pairs, dropped, min_length=1, max_length=9, max_ratio=0))) == 5


def moody(seed: int) -> Callable[[int], tuple[int, int]]:
    """A worker that is fast and slow by turns."""
    rng = random.Random(f"{seed} {os.getpid()}")

    def work(item: int) -> tuple[int, int]:
        if rng.random() < 0.01:
            time.sleep(rng.random() / 20)
        return item, os.getpid()

    return work


@pytest.mark.parametrize("workers", [2, 5])
def test_workers_of_random_speed_keep_the_order(workers: int) -> None:
    num_items = 12 * lines.CHUNK + 7
    found = list(lines.map_in_order(moody, (1,), iter(range(num_items)), workers=workers, label="x"))
    assert [item for item, _ in found] == list(range(num_items))
    assert len({process for _, process in found}) > 1


@pytest.mark.parametrize("workers", [1, 3])
def test_a_bounded_number_of_lines_is_in_memory(workers: int) -> None:
    read = 0

    def endless() -> Iterator[int]:
        nonlocal read
        while True:
            read += 1
            yield read

    stream = lines.map_in_order(moody, (1,), endless(), workers=workers, label="x")
    for taken in range(1, 10 * lines.CHUNK):
        next(stream)
        assert read - taken <= (lines.CHUNKS_AHEAD * workers + 3) * lines.CHUNK
    stream.close()
    assert not multiprocessing.active_children()


def test_the_pipeline_is_a_stream(tmp_path: Path) -> None:
    """From the reader to the files of each step, with a corpus far larger than what may be in memory."""
    alive = most = 0

    class Line(str):
        def __init__(self, text: str) -> None:
            nonlocal alive, most
            alive += 1
            most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    class Generated(multi30k.Multi30k):
        def read(self, files: object, options: object, scratch: Path) -> dict:
            splits = {"train": 20 * lines.CHUNK, "valid": 3, "test": 3}
            return {
                split: ((Line(f"{n} Haus ."), Line(f"{n} house .")) for n in range(count))
                for split, count in splits.items()
            }

    options = pipeline.parse_options(multi30k.Multi30k(), ["de-en", "--merges", "10", "--workers", "2"])
    folders = [tmp_path / name for name in ["text", "tokens", "subwords"]]
    for folder in folders:
        folder.mkdir()
    pipeline.make_text(Generated(), {}, options, folders[0])
    assert alive <= 2 and most <= 10
    pipeline.make_tokens(multi30k.Multi30k(), folders[0], options, folders[1])
    pipeline.make_subwords(multi30k.Multi30k(), folders[1], options, folders[2])
    for folder in folders:
        assert pipeline.splits_of(folder) == {"train": 20 * lines.CHUNK, "valid": 3, "test": 3}
        for n, pair in enumerate(lines.read_pairs(folder, "train", options.sides)):
            assert all(joined(side).split()[0] == str(n) for side in pair)


def test_a_worker_that_dies_is_told() -> None:
    with pytest.raises(DataError, match="a process ended while x .*--workers 1"):
        list(lines.map_in_order(deadly, (), range(3 * lines.CHUNK), workers=2, label="x"))


def deadly() -> Callable[[int], int]:
    return lambda item: os._exit(1) if item == lines.CHUNK + 3 else item


@pytest.mark.parametrize("workers", [2, 3, 100])
def test_parallel_tokenisation_keeps_the_order(workers: int) -> None:
    text = sentences("de", 4 * lines.CHUNK + 7)
    expected = [tokens.moses("de", False)(line) for line in text]
    assert list(lines.map_in_order(tokens.moses, ("de", False), text, workers=workers, label="x")) == expected
    assert list(lines.map_in_order(tokens.moses, ("de", False), [], workers=workers, label="x")) == []


@pytest.mark.parametrize("kind", list(subwords.KINDS))
def test_subwords_can_be_undone(kind: str, tmp_path: Path) -> None:
    text = [tokens.moses("en", False)(line) for line in sentences("en", 50)]
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        subwords.learn(kind, iter(text), 30, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    split = subwords.load(kind, paths[0])
    unknown = "zebra ☃ &amp; 漢字 don &apos;t"
    for line in [*text, unknown, ""]:
        pieces = split(line)
        undone = joined(pieces) if kind == "subword-nmt" else pieces.replace(" ", "").replace("▁", " ").strip()
        assert undone == line
    assert max(len(split(line).split()) for line in text) > max(len(line.split()) for line in text)
    with pytest.raises(DataError, match="nothing to merge"):
        subwords.learn(kind, ["a b", "c"], 30, tmp_path / "c")


def test_both_kinds_learn_the_same_number_of_merges(tmp_path: Path) -> None:
    import sentencepiece

    text = [tokens.moses(language, False)(line) for language in LANGUAGES for line in sentences(language, 50)]
    subwords.learn("subword-nmt", text, 30, tmp_path / "a")
    assert len((tmp_path / "a").read_text().splitlines()) == 31  # with the line of the version
    subwords.learn("sentencepiece", text, 30, tmp_path / "b")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "b"))
    characters = set("".join(text)) - {" "} | {"▁"}
    assert processor.vocab_size() == 3 + len(characters) + 30


def test_interrupted_step_leaves_the_old_one(tmp_path: Path) -> None:
    def fill(text: str, folder: Path) -> None:
        (folder / "file").write_text(text)
        if text == "bad":
            raise DataError("no")

    target = tmp_path / "step"
    steps.run_step(target, {"a": 1}, partial(fill, "good"))
    steps.run_step(target, {"a": 1}, partial(fill, "never called"))
    with pytest.raises(DataError):
        steps.run_step(target, {"a": 2}, partial(fill, "bad"))
    assert (target / "file").read_text() == "good" and list(tmp_path.iterdir()) == [target]
    steps.run_step(target, {"a": 2}, partial(fill, "better"))
    assert (target / "file").read_text() == "better"


# The real corpora


@pytest.mark.data
@pytest.mark.parametrize("year", ["dev2010", "tst2010", "tst2011", "tst2012"])
def test_real_iwslt_years(year: str) -> None:
    folder = SHARED_DATA / "iwslt16" / "de-en"
    if not folder.is_dir():
        pytest.skip("the IWSLT 2016 development and test sets are not in ../shared/data/iwslt16")
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
def test_real_iwslt_years_through_the_script(here: Path) -> None:
    folder = SHARED_DATA / "iwslt16" / "de-en"
    if not folder.is_dir():
        pytest.skip("the IWSLT 2016 development and test sets are not in ../shared/data/iwslt16")
    (here / "x" / "de-en").mkdir(parents=True)
    for path in folder.iterdir():
        (here / "x" / "de-en" / path.name).symlink_to(path)
    for name, data in iwslt_files("de-en").items():
        if name.startswith("train"):
            (here / "x" / "de-en" / name).write_bytes(data)
    options = ["--from", "x", "--dev", "dev2010 tst2010", "--test", "tst2012", "--merges", 50]
    done = succeed("iwslt16", "de-en", *options, cwd=here)
    for split, count in {"valid": 887 + 1565, "tst2012": 1700, "test": 1700}.items():
        for language in LANGUAGES:
            assert re.search(rf"^{split}.{language}: {count} lines", done.stdout, re.MULTILINE)
            raw = here / "data-bin" / "iwslt16.de-en" / "raw" / f"{split}.{language}"
            assert sum(1 for _ in lines.read_lines(raw)) == count


@pytest.mark.data
@pytest.mark.parametrize("pair", ["de-en", "en-fr"])
def test_real_multi30k(pair: str) -> None:
    folder = SHARED_DATA / "multi30k"
    if not folder.is_dir():
        pytest.skip("Multi30k is not in ../shared/data/multi30k")
    options = Namespace(sides=tuple(pair.split("-")), check=True)
    texts = read_all(multi30k.Multi30k(), folder, options)
    assert {split: len(pairs) for split, pairs in texts.items()} == {"train": 29000, "valid": 1014, "test": 1000}
    assert all(all(pair) for pairs in texts.values() for pair in pairs)


@pytest.mark.data
@pytest.mark.slow
def test_real_multi30k_through_the_script(here: Path) -> None:
    folder = SHARED_DATA / "multi30k"
    if not folder.is_dir():
        pytest.skip("Multi30k is not in ../shared/data/multi30k")
    done = succeed("multi30k", "de-en", "--from", folder, "--merges", 200, cwd=here, check=True)
    assert "train: 29000 of 29000 pairs kept; dropped: none" in done.stdout
    for language in LANGUAGES:
        assert re.search(rf"^test.{language}: 1000 lines", done.stdout, re.MULTILINE)
        with gzip.open(folder / f"test_2016_flickr.{language}.gz") as file:
            assert (here / "data-bin" / "multi30k.de-en" / "raw" / f"test.{language}").read_bytes() == file.read()
