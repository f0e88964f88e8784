"""Multi30k, Tatoeba, WMT 2014, IWSLT 2014 and 2016: alignment, splits, steps, downloads, file formats."""

import random
import re
import shutil
from collections import Counter
from contextlib import nullcontext
from functools import partial

import pytest
from preparation import segments
from preparation.corpora import CORPORA, ted_talks, translation
from preparation.lines import DataError, read_lines
from preparation.parallel_corpus import split_rows
from preparation.sources import Text
from preparation_runs import (
    binarised,
    binarised_text,
    fail,
    joined,
    moses,
    options_of,
    prepare,
    read_all,
    snapshot,
    succeed,
    words_of,
)
from small_corpora import (
    ARCHIVES,
    IWSLT14_SETS,
    LANGUAGES,
    PARTIAL,
    SPLITS,
    iwslt14_files,
    iwslt14_partial_files,
    iwslt16_files,
    manythings_files,
    multi30k_files,
    release_files,
    sentences,
    tagged,
    tatoeba_files,
    text_of,
    tgz,
    write_files,
    xml,
)

# Multi30k

AWKWARD = [
    ('Er sagte: "Ja & nein" <unk> |x| [1].\r', 'He said: "Yes & no" <unk> |x| [1].'),
    ("", "not in the other language"),
    ("eins\u2028zwei\x85drei\x00vier\rfünf\x1csechs", "one\u2029two three four\vfive\fsix"),
    (" ".join(["Wörter"] * 1000), " ".join(["words"] * 1000)),
    ("\u00a0 \t", "the other side is space"),
    ("☃ 漢字 \U0001f600", "☃ 漢字 \U0001f600"),
    ("</s> <pad> @@ ▁", "</s> <pad> @@ ▁"),
]


def test_lines_that_invite_misalignment(here):
    for lang, awkward in zip(LANGUAGES, zip(*AWKWARD)):
        train = [*sentences(lang, 40), *awkward, *sentences(lang, 3, seed=2)]
        text = {"train": train, "val": sentences(lang, 5), "test_2016_flickr": [*awkward, "the end"]}
        write_files(here / "x", {f"{split}.{lang}.gz": text_of(lines) for split, lines in text.items()})
    done = succeed("multi30k", "de-en", "--from", "x", "--merges", 60, cwd=here)
    dest = here / "data-bin" / "multi30k.de-en"
    sides = [[joined(line) for line in binarised(dest, "train", "de-en", lang)] for lang in LANGUAGES]
    # Of the seven awkward pairs two have an empty side and one is too long.
    assert [len(side) for side in sides] == [40 + 4 + 3] * 2
    assert "train: 47 of 50 pairs kept; dropped: empty side 2, length 1" in done.stdout
    for source, target in zip(*sides):
        numbers = [re.match(r"\d+", side) for side in (source, target)]
        assert bool(numbers[0]) == bool(numbers[1])
        assert not numbers[0] or numbers[0][0] == numbers[1][0]
    assert sides[0][40] == "Er sagte : &quot; Ja &amp; nein &quot; &lt; unk &gt; &#124; x &#124; &#91; 1 &#93; ."
    assert sides[0][41] == "eins zwei drei vier fünf sechs" and sides[1][41] == "one two three four five six"
    assert sides[0][42] == sides[1][42] == "☃ 漢 字 \U0001f600"
    assert sides[0][43] == sides[1][43] == "&lt; / s &gt; &lt; pad &gt; @ @ ▁"
    assert "test: 2 pairs with an empty side, kept in their places" in done.stdout
    for language in LANGUAGES:
        raw = (dest / "raw" / f"test.{language}").read_bytes().decode()
        assert len(raw.splitlines()) == raw.count("\n") == 8  # no character but LF breaks a line
        side = binarised(dest, "test", "de-en", language)
        assert [bool(line) for line in side] == [bool(line) for line in raw.split("\n")[:-1]]
        assert len(side[3].split()) >= 1000 and side[-1]
        assert not words_of(dest / f"dict.{language}.txt") & {"<s>", "</s>", "<pad>", "<unk>"}
        assert "<unk>" not in " ".join(binarised(dest, "train", "de-en", language))
    raw = (dest / "raw" / "test.de").read_bytes().decode().split("\n")
    assert raw[:3] == ['Er sagte: "Ja & nein" <unk> |x| [1].', "", "eins zwei drei vier fünf sechs"] and raw[4] == ""


def test_steps_are_made_again_only_where_something_changed(here, fake_fairseq):
    write_files(here / "x", multi30k_files())

    def run(*options):
        done = prepare("multi30k", "de-en", "--from", "x", "--merges", 20, *options, cwd=here, **fake_fairseq)
        assert "fairseq-preprocess failed, see downloads/multi30k/de-en/preprocess.log (out of memory)" in done.stderr
        return " ".join(re.findall(r"de-en/(\w+) is already complete", done.stderr))

    assert run() == ""
    assert run() == "text tokens subwords"
    assert run("--merges", 10) == "text tokens"
    assert run("--lowercase") == "text"
    write_files(here / "x", {f"val.{lang}.gz": text_of(sentences(lang, 8)) for lang in LANGUAGES})
    assert run() == ""
    assert not list(here.rglob("*partial*")) and not list((here / "data-bin").iterdir())


def test_mirrors(here, fake_fairseq, server):
    write_files(server.folder / "good", multi30k_files())
    shutil.copytree(server.folder / "good", server.folder / "broken")
    broken = server.folder / "broken" / "train.en.gz"
    broken.write_bytes(broken.read_bytes()[:-20])
    (server.folder / "broken" / "val.de.gz").write_text("<html>This domain is for sale</html>")
    mirrors = [f"{server.url}/gone", f"{server.url}/broken", f"{server.url}/good/"]
    options = [part for mirror in mirrors for part in ["--mirror", mirror]]
    for _ in range(2):  # nothing is downloaded twice
        assert "out of memory" in fail("multi30k", "de-en", *options, "--merges", 20, cwd=here, **fake_fairseq)
        found = {path.name: path.read_bytes() for path in (here / "downloads" / "multi30k").glob("*.gz")}
        assert found == snapshot(server.folder / "good")
        assert server.requests.count("/good/train.en.gz") == server.requests.count("/good/val.de.gz") == 1
        assert len(server.requests) == 6 * 2 + 2


def test_one_side_is_text_for_a_language_model(here):
    text = {"train": [*sentences("en", 58), "Dog's <unk> & rare", "word " * 150]}
    text |= {split: sentences("en", count) for split, count in {"valid": 8, "test": 7}.items()}
    changed = {"train.en.gz": text_of(text["train"]), "val.en.gz": text_of(["", *text["valid"]])}
    write_files(here / "x", {**multi30k_files(), **changed})
    done = succeed("multi30k", "en", "--from", "x", "--lowercase", "--threshold", 2, cwd=here)
    dest = here / "data-bin" / "multi30k.en"
    assert "valid: 1 empty lines, dropped" in done.stdout
    assert (
        "train: 60 of 60 lines kept" in done.stdout and " ptb_small doc data-bin/multi30k.en --save-dir" in done.stdout
    )
    tokenise = moses("en", lowercase=True)
    tokenised = {split: [tokenise(line).split() for line in lines] for split, lines in text.items()}
    counts = Counter(word for line in tokenised["train"] for word in line)
    assert tokenised["train"][58] == "dog &apos;s &lt; unk &gt; &amp; rare".split() and counts["rare"] == 1
    for split, expected in tokenised.items():
        known = [[word if counts[word] > 1 else "<unk>" for word in line] + ["</s>"] for line in expected]
        assert binarised_text(dest, split) == known
    record = "multi30k en, words seen 2 times and more, lowercase tokens, not checked"
    assert next(read_lines(dest / "prepared.txt")) == record
    assert not list(dest.glob("raw")) and not list(dest.glob("*codes"))


# Tatoeba


def key(sentence):
    return re.sub(r"\W+", "", sentence).lower()


def test_split_shares_no_sentence():
    rng = random.Random(1)
    english = [f"Sentence {n % 700}{rng.choice('.!?')}" for n in range(1000)]
    german = [rng.choice([str.upper, str.lower])(f"Satz, {n % 650}.") for n in range(1000)]
    rows = list(dict.fromkeys(zip(english, german)))
    size = len(rows) // 20
    sizes = dict(num_valid=size, num_test=size, largest_group=translation.LARGEST_GROUP)
    splits = split_rows(rows, **sizes)
    assert sorted(row for chosen in splits.values() for row in chosen) == sorted(rows)
    assert all(chosen == sorted(chosen, key=rows.index) for chosen in splits.values())
    for split, others in {"train": ["valid", "test"], "valid": ["train", "test"]}.items():
        assert 50 <= len(splits["test"]) <= 54 and 50 <= len(splits["valid"]) <= 54
        for side in range(2):
            ours = {key(row[side]) for row in splits[split]}
            assert not ours & {key(row[side]) for other in others for row in splits[other]}
    again = split_rows(rng.sample(rows, len(rows)), **sizes)
    assert again.keys() == splits.keys() and all(sorted(again[split]) == sorted(splits[split]) for split in again)


def test_pair_of_a_set_that_is_split(here):
    write_files(here / "x", tatoeba_files())
    done = succeed("tatoeba", "de-en", "--from", "x", "--merges", 60, cwd=here, check=True)
    assert "not the set of 160,381, 2,000 and 2,000 pairs that has known checksums" in done.stderr
    dest = here / "data-bin" / "tatoeba.de-en"
    assert (dest / "prepared.txt").read_text().startswith("tatoeba de-en, 60 merges of subword-nmt, ")
    for language in LANGUAGES:
        train = [joined(line).split()[0] for line in binarised(dest, "train", "de-en", language)]
        assert train == [str(n) for n in range(60)]
        assert (dest / "raw" / f"test.{language}").read_bytes() == text_of(sentences(language, 4, seed=2))


def test_one_side(here):
    """Of a set that is split, which needs no other side, and of a file."""
    for language in LANGUAGES:
        files = {name: data for name, data in tatoeba_files().items() if f".{language}." in name}
        write_files(here / language, files)
        succeed("tatoeba", language, "--from", language, cwd=here)
        dest = here / "data-bin" / f"tatoeba.{language}"
        assert [line[0] for line in binarised_text(dest, "train")] == [str(n) for n in range(60)]
        assert [len(binarised_text(dest, split)) for split in SPLITS] == [60, 5, 4]
    write_files(here / "x", manythings_files())
    succeed("tatoeba", "en", "--from", "x", "--dest", "file", cwd=here)
    lines = [" ".join(line) for split in SPLITS for line in binarised_text(here / "file", split)]
    assert len(lines) == 100 and all(line.endswith(". </s>") for line in lines)


@pytest.mark.parametrize("subject", ["de-en", "en"])
def test_sets_are_not_taken_for_each_other(subject, here, monkeypatch):
    write_files(here / "set", tatoeba_files())
    write_files(here / "file", manythings_files())
    options = [subject, *(["--merges", 20] if subject == "de-en" else [])]
    for source, other in (("set", "file"), ("file", "set")):
        dest = ["--dest", f"result of {source}"]
        succeed("tatoeba", *options, "--from", source, *dest, cwd=here, check=True)
        assert "not checked" not in (here / dest[1] / "prepared.txt").read_text()
        for check in (True, False):
            done = succeed("tatoeba", *options, "--from", source, *dest, cwd=here, check=check)
            assert "already complete" in done.stderr
        message = fail("tatoeba", *options, "--from", other, *dest, cwd=here, check=True)
        assert f"result of {source} was made from other files than those in {other}" in message
    # The numbers of lines of the known set demand its checksums.
    monkeypatch.setattr(translation, "TATOEBA_NUM_PAIRS", {"train": 60, "valid": 5, "test": 4})
    message = fail("tatoeba", *options, "--from", "set", cwd=here, check=True)
    assert re.search(r"set/train.(de|en).gz has SHA-256 .*, expected [0-9a-f]{64}: pass the", message)


# WMT 2014


def test_wmt14(here):
    write_files(here / "my files", release_files(end="\r\n"))
    done = succeed("wmt14", "de-en", "--from", "my files", "--merges", 60, "--max-ratio", 0, cwd=here)
    dest = here / "data-bin" / "wmt14.de-en"
    tests = ["newstest2012", "newstest2014", "newstest2015", "newstest2016"]
    assert {path.name.split(".")[0] for path in dest.glob("*.idx")} == {"train", "valid", "test", *tests}
    assert "train: 60 of 60 pairs kept" in done.stdout
    expected = [f"{corpus} {n}" for seed, corpus in enumerate(ARCHIVES) for n in range(30 - 10 * seed)]
    read = ["Q&A with R&D <b>", "nested bold and text", "café \u2013 1 < 2 <3", "the end"]
    for language in LANGUAGES:
        train = [joined(line) for line in binarised(dest, "train", "de-en", language)]
        assert [" ".join(line.split()[:2]) for line in train] == expected
        for split, test in {"valid": "newstest2013", "test": "newstest2014", **{test: test for test in tests}}.items():
            assert (dest / "raw" / f"{split}.{language}").read_bytes() == text_of([f"{test} {language}", *read])
            assert len(binarised(dest, split, "de-en", language)) == 5


def test_only_what_is_missing_is_downloaded(tmp_path, monkeypatch):
    corpus, options = CORPORA["wmt14"], options_of(CORPORA["wmt14"], "de-en")

    def downloaded(folder):
        asked = []
        monkeypatch.setattr(translation, "download", lambda mirrors, path: asked.append(path.name))
        corpus.download(folder, options)
        return asked

    archives = write_files(tmp_path / "archives", release_files())
    shutil.unpack_archive(archives / "training-parallel-nc-v9.tgz", tmp_path / "texts")
    others = [name for name in translation.WMT14_URLS if name != "training-parallel-nc-v9.tgz"]
    assert downloaded(tmp_path / "texts") == others
    for path in archives.iterdir():
        shutil.unpack_archive(path, tmp_path / "texts")
    assert downloaded(tmp_path / "texts") == []
    next((tmp_path / "texts").rglob("newstest2012-ref.en.sgm")).unlink()
    assert downloaded(tmp_path / "texts") == ["test-full.tgz", "dev.tgz"]
    assert downloaded(tmp_path / "nothing") == list(translation.WMT14_URLS)

    def unreachable(*_):
        raise DataError("no mirror worked")

    monkeypatch.setattr(translation, "download", unreachable)
    for name, is_read in (("newstest2015-deen-ref.en.sgm", False), ("newstest2013-ref.en.sgm", True)):
        next((tmp_path / "texts").rglob(name)).unlink()
        with pytest.raises(DataError, match="no mirror") if is_read else nullcontext():
            corpus.download(tmp_path / "texts", options)


# IWSLT 2014


def test_iwslt14(here):
    write_files(here / "x" / "de-en", iwslt14_files())
    pair = "en-de"
    done = succeed("iwslt14", pair, "--from", "x", "--merges", 200, cwd=here)
    dest = here / "data-bin" / f"iwslt14.{pair}"
    # Two talks give a title and a description each; one of the 90 lines is too long.
    assert "train: 93 of 94 pairs kept; dropped: length 1" in done.stdout
    for language in LANGUAGES:
        train = [joined(line) for line in binarised(dest, "train", pair, language)]
        valid = list(read_lines(here / "downloads" / "iwslt14" / pair / "tokens" / f"valid.{language}"))
        assert len(train) == 93 - 93 // 23 and len(valid) == len(binarised(dest, "valid", pair, language)) == 93 // 23
        assert train[0] == "a &lt; em &gt; nested &lt; / em &gt; title"
        assert train[1].startswith("ted talk subtitles and transcript : &lt; b &gt; x &lt; / b &gt; &amp; y")
        # Kept are the titles, 0 to 19 without 9, the titles, 20 to 89; every 23rd of these is in valid.
        numbers = ["", "", *(str(n) for n in range(20) if n != 9), "", "", *(str(n) for n in range(20, 90))]
        held_out = numbers[22::23]
        assert [line.split()[0] if number else "" for line, number in zip(valid, held_out)] == held_out
        raw = (dest / "raw" / f"valid.{language}").read_text().splitlines()
        assert [line.split()[0] for line in raw if line[0].isdigit()] == [number for number in held_out if number]
        rest = [number for index, number in enumerate(numbers, 1) if index % 23]
        assert [re.sub(r"\D.*", "", line.split()[0]) for line in train] == rest
        raw = (dest / "raw" / f"test.{language}").read_text().splitlines()
        assert raw == [line for name in IWSLT14_SETS for line in [f"{name} in {language} 's", "The end"]]
        assert all(line == line.lower() for line in binarised(dest, "test", pair, language))


def test_partial_iwslt14(here):
    write_files(here / "x", iwslt14_partial_files())
    done = succeed("iwslt14", "de-en", "--partial", "--from", "x", "--merges", 9, "--max-ratio", 0, cwd=here)
    dest = here / "data-bin" / "iwslt14-partial.de-en"
    assert "train: 3 of 3 pairs kept" in done.stdout
    for language in LANGUAGES:  # its tokens are not tokenised again
        assert [joined(line) for line in binarised(dest, "train", "de-en", language)] == PARTIAL[f"train.{language}"]
        assert len(binarised(dest, "valid", "de-en", language)) == len(binarised(dest, "test", "de-en", language)) == 2
    assert (dest / "raw" / "valid.en").read_text() == "it's & b.\nc, d\n"
    assert (dest / "raw" / "test.de").read_text() == "e f\ng.\n"


# IWSLT 2016


def test_iwslt16_from_the_archive(here):
    write_files(here / "my files", {"en-de.tgz": tgz(iwslt16_files("en-de", "en-de/", end="\r\n"))})
    done = succeed("iwslt16", "en-de", "--from", "my files", "--merges", 60, "--max-ratio", 0, cwd=here)
    dest = here / "data-bin" / "iwslt16.en-de"
    years = ted_talks.TEST_YEARS
    assert {path.name.split(".")[0] for path in dest.glob("*.idx")} == {"train", "valid", "test", *years}
    assert "train: 60 of 60 pairs kept" in done.stdout
    for language in LANGUAGES:
        train = [joined(line) for line in binarised(dest, "train", "en-de", language)]
        assert len(train) == 60 and train[59].startswith("59 ")
        assert train[5] == "AT &amp; T — 1 &lt; 2 &amp; unknown ; R &amp; D"
        assert train[7] == "&lt; 3 is no tag , &lt; em &gt; neither &lt; / em &gt;"
        splits = ["valid", "test", *years]
        raw = {split: (dest / "raw" / f"{split}.{language}").read_text().split("\n")[:-1] for split in splits}
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


def test_iwslt16_dev_and_test_years(tmp_path):
    write_files(tmp_path, iwslt16_files("fr-en"))
    corpus = CORPORA["iwslt16"]
    texts = read_all(corpus, tmp_path, options_of(corpus, "fr-en", "--dev", "tst2010 dev2010"))
    assert list(texts) == ["train", "valid", "test", "tst2011", "tst2012", "tst2013", "tst2014"]
    assert [source for source, _ in texts["valid"][::3]] == ["dev2010 first in fr .", "tst2010 first in fr ."]
    assert len(texts["test"]) == 12
    texts = read_all(corpus, tmp_path, options_of(corpus, "fr-en", "--dev", "tst2013", "--test", "tst2014"))
    assert list(texts) == ["train", "valid", "test", "tst2014"] and texts["test"] == texts["tst2014"]


def test_iwslt16_download(tmp_path, server):
    write_files(tmp_path / "files", iwslt16_files("de-en"))
    inner = tgz(iwslt16_files("de-en", "de-en/"))
    write_files(server.folder, {"texts/de/en/de-en.tgz": inner, "old/2016-01.tgz": tgz({"x": b"y"})})
    corpus = CORPORA["iwslt16"]
    mirrors = ["--mirror", f"{server.url}/old", "--mirror", f"{server.url}/"]
    options = options_of(corpus, "de-en", *mirrors, check=True)
    (tmp_path / "work").mkdir()
    places = ["old/de-en.tgz", "old/texts/de/en/de-en.tgz", "old/2016-01.tgz", "de-en.tgz", "texts/de/en/de-en.tgz"]
    corpus.download(tmp_path / "work", options)
    assert server.requests == [f"/{place}" for place in places]
    assert all(corpus.has_files(tmp_path / folder, options) for folder in ("work", "files"))  # none is missing now
    assert set(corpus.find(tmp_path / "work", options)) == set(snapshot(tmp_path / "work")) == {"de-en.tgz"}
    message = fail("iwslt16", "de-en", "--mirror", f"{server.url}/gone", cwd=tmp_path)
    assert "no mirror worked: download de-en.tgz or 2016-01.tgz by hand" in message


# Formats


@pytest.fixture
def of_files(tmp_path):
    """``of_files(read, source, target)``: the pairs that ``read`` finds in two files S and T of these contents."""

    def read_files(read, source, target):
        write_files(tmp_path, {"S": source, "T": target})
        return list(read(Text(tmp_path / "S", "S"), Text(tmp_path / "T", "T")))

    return read_files


TAGGED = tagged([["a", "b"], ["c", "d"], ["e"]])


@pytest.mark.parametrize(
    "source, target, error",
    [
        (TAGGED, tagged([["a", "b"], ["c"], ["e"]]), r"S:17: 2 lines .*, but 1 from T:17 \(5 lines against 4 in all\)"),
        (TAGGED, tagged([["a", "b"], ["c"], ["e", "f"]]), r"S:17: 2 .*, but 1 from T:17 \(5 lines against 5 in all\)"),
        (TAGGED, tagged([[]]), "T has no line besides its tags"),
        (TAGGED, tagged([["a", "b"], ["c", "d"]]), r"S and T do not have the same talks \(5 lines against 4 in all\)"),
        (TAGGED, TAGGED.replace(b"A. Speaker", b"\xff", 1), "T:3: not UTF-8 text"),
    ],
)
def test_training_texts_that_do_not_match(source, target, error, of_files):
    with pytest.raises(DataError, match=f"^{error}"):
        of_files(segments.training_pairs, source, target)


def test_training_text(of_files):
    read = segments.training_pairs
    source = tagged([["a&NewLine;b &#10;&#x2028; c&#133;", "d &lt;x&gt; &amp;amp; &notit;"]])
    assert [line for line, _ in of_files(read, source, source)] == ["a b    c\u2026", "d <x> &amp; &notit;"]
    source = tagged([["a"], ["b", "c"]])
    assert of_files(read, source, source) == [("a", "a"), ("b", "b"), ("c", "c")]
    texts = ["A <em>nested</em> title", "TED Talk Subtitles and Transcript: <b>x</b> & y"]
    with_titles = partial(read, kept_tags=("title", "description"))
    assert [line for line, _ in of_files(with_titles, source, source)] == [*texts, "a", *texts, "b", "c"]
    with pytest.raises(DataError, match="S:5: 3 lines up to the next tag, but 4 from T:5"):
        of_files(with_titles, source, tagged([["a", "b"], ["b", "c"]]))
    pairs = of_files(read, tagged([["a", "", "c"]], "\r\n"), tagged([["x", "y\u2028z", ""]]))
    assert pairs == [("a", "x"), ("", "y z"), ("c", "")]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Q & A; R&D;", "Q & A; R&D;"),
        ("&amp;lt; stays &lt;", "&lt; stays <"),
        ("&eacute;&nbsp;&#233;&#xe9; &notit;", "é\u00a0éé &notit;"),
        ("1 < 2 > 0 <3 <- a<b", "1 < 2 > 0 <3 <- a<b"),
        ("a <b>bold <i>and</i> more</b> c", "a bold and more c"),
        ("a <br/> b<!-- comment -->c", "a  bc"),
        ("a&#10;b&#0;c&#x2028;d\x01e\x00f&NewLine;g", "a b\ufffdc d e f g"),
        ("two\nlines\r\nhere", "two lines here"),
        ("to <john.doe>, <http://x.y>: i <n and j> m", "to <john.doe>, <http://x.y>: i <n and j> m"),
        ("<script>x</script> <title>y</title> z", "x y z"),
        ("", ""),
    ],
)
def test_text_of_segments(text, expected, tmp_path):
    first, second = f'<hl>\n<seg id="1">{text}</SEG>\n</hl>', "<p>\n<seg id=2> end </seg>\n</p>"
    sgml = f'<srcset setid="x">\n<DOC sysid="ref" docid=d1 genre="news">\n{first}{second}</DOC>\n</srcset>\n'
    write_files(tmp_path, {"xml": xml({"1": [text, "end"]}), "sgml": sgml.encode()})
    assert segments.read_segments(Text(tmp_path / "sgml")) == [("d1", "1", expected), ("d1", "2", "end")]
    assert segments.read_segments(Text(tmp_path / "xml")) == [("1", "1", expected), ("1", "2", "end")]


SET = '<srcset setid="x">\n'


@pytest.mark.parametrize(
    "content, error",
    [
        (xml({"1": ["a", "b"]})[:-30], "F:10: segment 2 is not closed: is the file truncated"),
        (b"<mteval><doc docid='1'></doc></mteval>", "F has no segment"),
        (xml({"1": ["a"]}).replace(b"> a <", b"> \xe9 <"), "F:9: not UTF-8 text"),
        (f'{SET}<doc>\n<seg id="1">x\n<seg id="2">y', "F:3: segment 1 is not closed before the n"),
        (f'{SET}<doc>\n<seg id="1">x\n</doc>', "F:3: segment 1 is not closed before the document"),
        (f'{SET}<doc>\n<seg id="7">x', "F:3: segment 7 is not closed: is the file truncated"),
        (f'{SET}<doc>\n<seg id="7">x</seg>', "F: <doc> is not closed"),
        ('<refset><doc>\n<seg id="7">x</seg></doc>', "F: <refset> is not closed: is the file tr"),
        (f"{SET}text</srcset>", "F has no segment"),
    ],
)
def test_broken_segments(content, error, tmp_path):
    write_files(tmp_path, {"F": content if isinstance(content, bytes) else content.encode()})
    with pytest.raises(DataError, match=f"^{error}"):
        segments.read_segments(Text(tmp_path / "F", "F"))


def test_evaluation_pair_demands_the_same_segments(of_files):
    source = xml({"1": ["a", "b"], "2": ["c"]})
    assert of_files(segments.segment_pairs, source, source) == [("a", "a"), ("b", "b"), ("c", "c")]
    with pytest.raises(DataError, match="S: segment 2 of talk 1 stands opposite segment 1 of talk 2 of T"):
        of_files(segments.segment_pairs, source, xml({"1": ["a"], "2": ["b", "c"]}))
    with pytest.raises(DataError, match="S has 3 segments, T has 2"):
        of_files(segments.segment_pairs, source, xml({"1": ["a", "b"]}))
