"""Multi30k, Tatoeba and WMT 2014: alignment, subwords, splits, archives, damage, the real corpora."""

import gzip
import random
import re
import shutil
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from corpora import corpus_folder
from preparation import ted, tokens
from preparation.corpora import translation
from preparation.lines import DataError, read_lines, write_lines
from preparation_runs import binarised, binarised_text, fail, joined, options_of, prepare, read_all, snapshot, succeed
from small_corpora import (
    ARCHIVES,
    LANGUAGES,
    SPLITS,
    manythings_files,
    multi30k_files,
    release_files,
    sentences,
    tatoeba_files,
    text_of,
    write_files,
    zipped,
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


@pytest.fixture(scope="module")
def awkward(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A result on lines that invite misalignment."""
    cwd = tmp_path_factory.mktemp("with spaces, commas") / "x y"
    texts = {
        "train": {lang: sentences(lang, 40) + AWKWARD[lang] + sentences(lang, 3, seed=2) for lang in LANGUAGES},
        "val": {lang: sentences(lang, 5) for lang in LANGUAGES},
        "test_2016_flickr": {lang: [*AWKWARD[lang], "the end"] for lang in LANGUAGES},
    }
    files = {f"{split}.{lang}.gz": text_of(text) for split, sides in texts.items() for lang, text in sides.items()}
    write_files(cwd / "from, here", files)
    done = succeed("multi30k", "de-en", "--from", "from, here", "--work", "my work, here", "--merges", 60, cwd=cwd)
    return SimpleNamespace(
        cwd=cwd, dest=cwd / "data-bin" / "multi30k.de-en", texts=texts, stdout=done.stdout, stderr=done.stderr
    )


def test_files_of_the_result(awkward: SimpleNamespace) -> None:
    expected = {"dict.de.txt", "dict.en.txt", "digests.json", "bpe.codes", "prepared.txt", "preprocess.log"}
    expected |= {f"raw/{split}.{lang}" for split in ["valid", "test"] for lang in LANGUAGES}
    for split in ["train", "valid", "test"]:
        expected |= {f"{split}.de-en.{lang}.{end}" for lang in LANGUAGES for end in ["bin", "idx"]}
    assert set(snapshot(awkward.dest)) == expected


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


def test_no_text_becomes_a_symbol_of_fairseq(awkward: SimpleNamespace) -> None:
    for language in LANGUAGES:
        symbols = {line.split(" ")[0] for line in (awkward.dest / f"dict.{language}.txt").read_text().split("\n")}
        assert not symbols & {"<s>", "</s>", "<pad>", "<unk>"}
        assert "<unk>" not in " ".join(binarised(awkward.dest, "train", "de-en", language))


def test_other_recipe_is_told(awkward: SimpleNamespace) -> None:
    again = ["multi30k", "--pair", "de-en", "--from", "from, here", "--work", "my work, here"]
    assert "already complete" in succeed(*again, "--merges", 60, cwd=awkward.cwd).stderr
    assert "already holds 'multi30k de-en, 60 merges" in fail(*again, "--merges", 61, cwd=awkward.cwd)


def test_sentencepiece_lowercase_and_joined_dictionary(here: Path) -> None:
    folder = here / "x"
    folder.mkdir()
    for split, count in {"train": 60, "val": 9, "test_2016_flickr": 7}.items():
        for language in LANGUAGES:  # without compression
            write_lines(folder / f"{split}.{language}", sentences(language, count))
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


def test_steps_are_made_again_only_where_something_changed(here: Path, fake_fairseq: dict[str, str]) -> None:
    write_files(here / "x", multi30k_files())

    def run(*options: object) -> str:
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


def test_mirrors(here: Path, fake_fairseq: dict[str, str], server: SimpleNamespace) -> None:
    write_files(server.folder / "good", multi30k_files())
    shutil.copytree(server.folder / "good", server.folder / "broken")
    broken = server.folder / "broken" / "train.en.gz"
    broken.write_bytes(broken.read_bytes()[:-20])
    (server.folder / "broken" / "val.de.gz").write_text("<html>This domain is for sale</html>")
    mirrors = [f"{server.url}/gone", f"{server.url}/broken", f"{server.url}/good/"]
    options = [part for mirror in mirrors for part in ["--mirror", mirror]]
    message = fail("multi30k", "de-en", *options, "--merges", 20, cwd=here, **fake_fairseq)
    assert "out of memory" in message
    found = {path.name: path.read_bytes() for path in (here / "downloads" / "multi30k").glob("*.gz")}
    assert found == {path.name: path.read_bytes() for path in (server.folder / "good").iterdir()}
    assert server.requests.count("/good/train.en.gz") == server.requests.count("/good/val.de.gz") == 1
    num_requests = len(server.requests)
    assert num_requests == 6 * 2 + 2
    fail("multi30k", "de-en", *options, "--merges", 20, cwd=here, **fake_fairseq)  # nothing is downloaded twice
    assert len(server.requests) == num_requests


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
    expected = damaged(write_files(here / "x", multi30k_files()), kind)
    assert expected in fail("multi30k", "de-en", "--from", "x", cwd=here)


def test_nothing_left_after_the_filter(here: Path) -> None:
    write_files(here / "x", multi30k_files())
    message = fail("multi30k", "de-en", "--from", "x", "--min-length", 90, cwd=here)
    assert "the filter left no training pair" in message


@pytest.mark.parametrize(
    "options",
    ["", "de-xx", "--pair", "en-de --pair de-en", "de-en --frmo x", "de-en --merges 0", "de-en --max-ratio 0.5"]
    + ["de-en --min-length 5 --max-length 4", "de-en --bpe fastbpe", "de-en --threshold 2", "en --merges 5"]
    + ["en --joined-dictionary", "en --max-length 50", "en --bpe subword-nmt", "it"],
)
def test_usage_error(options: str, here: Path) -> None:
    done = prepare("multi30k", *options.split(), cwd=here)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith("usage: ")
    assert not list(here.iterdir())


@pytest.mark.data
@pytest.mark.parametrize("pair", ["de-en", "en-fr"])
def test_real_multi30k(pair: str) -> None:
    folder = corpus_folder("multi30k")
    corpus = translation.Multi30k()
    texts = read_all(corpus, folder, options_of(corpus, pair, check=True))
    assert {split: len(pairs) for split, pairs in texts.items()} == {"train": 29000, "valid": 1014, "test": 1000}
    assert all(all(pair) for pairs in texts.values() for pair in pairs)


@pytest.mark.data
@pytest.mark.slow
def test_real_multi30k_through_the_script(here: Path) -> None:
    folder = corpus_folder("multi30k")
    done = succeed("multi30k", "de-en", "--from", folder, "--merges", 200, cwd=here, check=True)
    assert "train: 29000 of 29000 pairs kept; dropped: none" in done.stdout
    for language in LANGUAGES:
        assert re.search(rf"^test.{language}: 1000 lines", done.stdout, re.MULTILINE)
        with gzip.open(folder / f"test_2016_flickr.{language}.gz") as file:
            assert (here / "data-bin" / "multi30k.de-en" / "raw" / f"test.{language}").read_bytes() == file.read()


def test_one_side_is_text_for_a_language_model(here: Path) -> None:
    files = multi30k_files()
    rest = ["Dog's <unk> & rare", "word " * 150]
    files["train.en.gz"] = text_of([*sentences("en", 58), *rest])
    write_files(here / "x", files)
    done = succeed("multi30k", "en", "--from", "x", "--lowercase", "--threshold", 2, cwd=here)
    dest = here / "data-bin" / "multi30k.en"
    assert (
        "train: 60 of 60 lines kept" in done.stdout
        and "fairseq_plugins.cli.train reduced doc data-bin/multi30k.en --save-dir" in done.stdout
    )
    tokenise = tokens.moses("en", lowercase=True)
    texts = {split: sentences("en", count) for split, count in {"valid": 9, "test": 7}.items()}
    texts["train"] = [*sentences("en", 58), *rest]
    tokenised = {split: [tokenise(line).split() for line in text] for split, text in texts.items()}
    counts = Counter(word for line in tokenised["train"] for word in line)
    assert tokenised["train"][58] == "dog &apos;s &lt; unk &gt; &amp; rare".split() and counts["rare"] == 1
    for split, expected in tokenised.items():
        known = [[word if counts[word] > 1 else "<unk>" for word in line] + ["</s>"] for line in expected]
        assert binarised_text(dest, split) == known
    assert next(read_lines(dest / "prepared.txt")) == (
        "multi30k en, words seen 2 times and more, lowercase tokens, not checked"
    )
    assert not list(dest.glob("raw")) and not list(dest.glob("*codes"))


# Tatoeba


TATOEBA = translation.Tatoeba()


@pytest.mark.parametrize("pair, code", [("de-en", "deu"), ("en-fr", "fra"), ("en-zh", "cmn"), ("tlh-en", "tlh")])
def test_manythings_names(pair: str, code: str, tmp_path: Path) -> None:
    lines = [f"Go {n}.\tGeh {n}!\tCC-BY" for n in range(40)]
    write_files(tmp_path / "text", {f"{code}.txt": text_of(lines, "\r\n")})
    write_files(tmp_path / "archive", {f"{code}-eng.zip": zipped({f"{code}.txt": text_of(lines)})})
    texts = [read_all(TATOEBA, tmp_path / folder, options_of(TATOEBA, pair)) for folder in ["text", "archive"]]
    assert texts[0] == texts[1]
    rows = sorted(row if pair.startswith("en") else row[::-1] for rows in texts[0].values() for row in rows)
    assert rows == sorted((f"Go {n}.", f"Geh {n}!") for n in range(40))


@pytest.mark.parametrize("pair", ["de-fr", "en-en", "en-de-fr", "german", "DE-en", "en-", "e"])
def test_no_pair(pair: str, here: Path) -> None:
    done = prepare("tatoeba", pair, cwd=here)
    assert done.returncode == 2 and "neither a language nor two of which one is en" in done.stderr


def key(sentence: str) -> str:
    return re.sub(r"\W+", "", sentence).lower()


def test_split_shares_no_sentence() -> None:
    rng = random.Random(1)
    english = [f"Sentence {n % 700}{rng.choice('.!?')}" for n in range(1000)]
    german = [rng.choice([str.upper, str.lower])(f"Satz, {n % 650}.") for n in range(1000)]
    rows = list(dict.fromkeys(zip(english, german)))
    splits = translation.split_rows(rows)
    assert sorted(row for chosen in splits.values() for row in chosen) == sorted(rows)
    assert all(chosen == sorted(chosen, key=rows.index) for chosen in splits.values())
    for split, others in {"train": ["valid", "test"], "valid": ["train", "test"]}.items():
        assert 50 <= len(splits["test"]) <= 54 and 50 <= len(splits["valid"]) <= 54
        for side in range(2):
            ours = {key(row[side]) for row in splits[split]}
            assert not ours & {key(row[side]) for other in others for row in splits[other]}
    shuffled = rng.sample(rows, len(rows))
    again = translation.split_rows(shuffled)
    assert {split: sorted(chosen) for split, chosen in again.items()} == {
        split: sorted(chosen) for split, chosen in splits.items()
    }


def test_sentences_that_all_hang_together_cannot_be_split(tmp_path: Path) -> None:
    write_files(tmp_path, {"deu.txt": text_of([f"Go.\tGeh {n}!\tx" for n in range(40)])})
    with pytest.raises(DataError, match="deu.txt has no pair .* valid and test"):
        read_all(TATOEBA, tmp_path, options_of(TATOEBA, "de-en"))


def test_damaged_lines(tmp_path: Path) -> None:
    write_files(tmp_path, {"deu.txt": b"Go.\tGeh.\tx\nRun.\n"})
    with pytest.raises(DataError, match="deu.txt:2: 1 fields, expected English, other language, attribution"):
        read_all(TATOEBA, tmp_path, options_of(TATOEBA, "de-en"))
    write_files(tmp_path, {"deu.txt": b"Go.\tGeh.\tx\n"})
    with pytest.raises(DataError, match="deu.txt has 1 pairs, at least 20 are expected"):
        read_all(TATOEBA, tmp_path, options_of(TATOEBA, "de-en"))


def test_pair_of_a_set_that_is_split(here: Path) -> None:
    write_files(here / "x", tatoeba_files())
    done = succeed("tatoeba", "de-en", "--from", "x", "--merges", 60, cwd=here, check=True)
    assert "not the set of 160,381, 2,000 and 2,000 pairs that has known checksums" in done.stderr
    dest = here / "data-bin" / "tatoeba.de-en"
    assert (dest / "prepared.txt").read_text().startswith("tatoeba de-en, another set, 60 merges of subword-nmt, ")
    for language in ["de", "en"]:
        assert [joined(line).split()[0] for line in binarised(dest, "train", "de-en", language)] == [
            str(n) for n in range(60)
        ]
        assert (dest / "raw" / f"test.{language}").read_bytes() == text_of(sentences(language, 4, seed=2))


@pytest.mark.parametrize("language", ["en", "de"])
def test_one_side_of_a_set_needs_no_other(language: str, here: Path) -> None:
    files = {name: data for name, data in tatoeba_files().items() if f".{language}." in name}
    write_files(here / "x", files)
    done = succeed("tatoeba", language, "--from", "x", cwd=here)
    dest = here / "data-bin" / f"tatoeba.{language}"
    assert "fairseq_plugins.cli.train reduced doc data-bin/tatoeba" in done.stdout
    assert [line[0] for line in binarised_text(dest, "train")] == [str(n) for n in range(60)]
    assert [len(binarised_text(dest, split)) for split in SPLITS] == [60, 5, 4]


def test_one_side_of_a_file(here: Path) -> None:
    write_files(here / "x", manythings_files())
    succeed("tatoeba", "en", "--from", "x", cwd=here)
    lines = [" ".join(line) for split in SPLITS for line in binarised_text(here / "data-bin" / "tatoeba.en", split)]
    assert len(lines) == 100 and all(line.endswith(". </s>") for line in lines)
    message = fail("tatoeba", "en", "--other", "fr", "--from", "x", "--dest", "other", cwd=here)
    assert "x has no fra-eng.zip (or fra.txt), nor train.en.gz" in message
    done = prepare("tatoeba", "en", "--other", "en", cwd=here)
    assert done.returncode == 2 and "--other is a language beside en" in done.stderr


@pytest.mark.parametrize("subject", ["de-en", "en"])
def test_another_set_does_not_pass_for_the_known_one(subject: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(here / "x", tatoeba_files())
    options = [subject, "--from", "x", *(["--merges", 20] if subject == "de-en" else [])]
    succeed("tatoeba", *options, cwd=here, check=True)
    assert "already complete" in succeed("tatoeba", *options, cwd=here, check=True).stderr
    assert "already complete" in succeed("tatoeba", *options, cwd=here).stderr
    assert "not checked" not in (here / "data-bin" / f"tatoeba.{subject}" / "prepared.txt").read_text()
    for sizes in [{"train": 60, "valid": 5, "test": 4}, None]:  # the known set, manythings' file
        if sizes:
            monkeypatch.setattr(translation, "TATOEBA_NUM_PAIRS", sizes)
        else:
            write_files(here / "y", manythings_files())
            options[options.index("x")] = "y"
        message = fail("tatoeba", *options, cwd=here, check=True)
        assert re.search(rf"already holds 'tatoeba {subject}, another set.*', not 'tatoeba {subject}", message)


@pytest.mark.parametrize("files", [tatoeba_files(), manythings_files()])
def test_a_result_is_left_alone_where_its_files_are_gone(files: dict[str, bytes], here: Path) -> None:
    write_files(here / "x", files)
    for subject in ["de-en", "en"]:
        options = [subject, "--from", "x", *(["--merges", 20] if subject == "de-en" else [])]
        if (here / "gone").exists():
            (here / "gone").rename(here / "x")
        succeed("tatoeba", *options, cwd=here)
        (here / "x").rename(here / "gone")
        assert "already complete" in succeed("tatoeba", *options, cwd=here).stderr


def test_a_text_that_is_there_twice_is_refused(here: Path) -> None:
    write_files(here / "x", {**tatoeba_files(), "train.en": b"Another text.\n"})
    message = fail("tatoeba", "en", "--from", "x", cwd=here)
    assert "x has both train.en.gz and train.en: leave the one that is meant" in message
    (here / "x/train.en").unlink()
    succeed("tatoeba", "en", "--from", "x", cwd=here)
    (here / "x/train.en").touch()
    assert "already complete" in succeed("tatoeba", "en", "--from", "x", cwd=here).stderr


def test_other_language_is_for_english_alone(here: Path) -> None:
    for subject in ["de-en", "de"]:
        done = prepare("tatoeba", subject, "--other", "de", cwd=here)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].endswith(f"--other is for en by itself, not for {subject}")


def test_known_sizes_demand_known_checksums(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "TATOEBA_NUM_PAIRS", {"train": 60, "valid": 5, "test": 4})
    write_files(here / "x", tatoeba_files())
    for subject in ["de-en", "en"]:
        message = fail("tatoeba", subject, "--from", "x", cwd=here, check=True)
        assert re.search(r"train.(de|en) in x/train.\1.gz has SHA-256 .*, expected [0-9a-f]{64}: delete it", message)


@pytest.mark.data
@pytest.mark.slow
def test_real_set() -> None:
    folder = corpus_folder("tatoeba-de-en")
    texts = read_all(TATOEBA, folder, options_of(TATOEBA, "en-de", check=True))
    assert {split: len(rows) for split, rows in texts.items()} == {"train": 160381, "valid": 2000, "test": 2000}
    with gzip.open(folder / "test.en.gz", "rt", encoding="utf-8") as file:
        assert [row[0] for row in texts["test"]] == file.read().splitlines()
    alone = read_all(TATOEBA, folder, options_of(TATOEBA, "de", check=True))
    assert [row[0] for row in alone["valid"]] == [row[1] for row in texts["valid"]]


@pytest.mark.data
@pytest.mark.slow
def test_real_sentences_are_split(tmp_path: Path) -> None:
    """The real training sentences in the layout of manythings' file."""
    folder = corpus_folder("tatoeba-de-en")
    sides = [
        gzip.open(folder / f"train.{side}.gz", "rt", encoding="utf-8").read().splitlines() for side in ("en", "de")
    ]
    lines = [f"{english}\t{german}\tCC-BY" for english, german in zip(*sides)]
    write_files(tmp_path, {"deu.txt": text_of(lines)})
    texts = read_all(TATOEBA, tmp_path, options_of(TATOEBA, "en-de", check=True))
    assert sum(map(len, texts.values())) == len(set(lines)) and 2000 <= len(texts["test"]) < 2005
    for side in range(2):
        train = {key(row[side]) for row in texts["train"]}
        assert not [row for split in ["valid", "test"] for row in texts[split] if key(row[side]) in train]


# WMT 2014


READ = ["Q&A with R&D <b>", "nested bold and text", "café \u2013 1 < 2 <3", "the end"]
WMT14 = translation.WMT14()


def write_release(folder: Path, **kwargs: str) -> Path:
    return write_files(folder, release_files(**kwargs))


def read_release(folder: Path, *arguments: str, check: bool = False) -> dict[str, list[tuple[str, ...]]]:
    return read_all(WMT14, folder, options_of(WMT14, *arguments, check=check))


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
        monkeypatch.setattr(translation, "download", lambda attempts, is_sound: asked.append(attempts[0][1].name))
        WMT14.download(folder, options_of(WMT14, "de-en"))
        return asked

    archives = write_release(tmp_path / "archives")
    shutil.unpack_archive(archives / "training-parallel-nc-v9.tgz", tmp_path / "texts")
    others = [name for name in translation.WMT14_URLS if name != "training-parallel-nc-v9.tgz"]
    assert downloaded(tmp_path / "texts") == others
    for path in archives.iterdir():
        shutil.unpack_archive(path, tmp_path / "texts")
    assert downloaded(tmp_path / "texts") == []
    next((tmp_path / "texts").rglob("newstest2012-ref.en.sgm")).unlink()
    assert downloaded(tmp_path / "texts") == ["test-full.tgz", "dev.tgz"]
    assert downloaded(tmp_path / "nothing") == list(translation.WMT14_URLS)


def test_without_a_network_texts_of_the_sets_that_are_read_suffice(tmp_path: Path, monkeypatch) -> None:
    def fail(attempts: object, is_sound: object) -> None:
        raise DataError("no mirror worked")

    monkeypatch.setattr(translation, "download", fail)
    for path in write_release(tmp_path / "archives").iterdir():
        shutil.unpack_archive(path, tmp_path / "texts")
    options = options_of(WMT14, "de-en")
    for name, is_read in (("newstest2012-ref.en.sgm", False), ("newstest2013-ref.en.sgm", True)):
        next((tmp_path / "texts").rglob(name)).unlink()
        with pytest.raises(DataError, match="no mirror") if is_read else nullcontext():
            WMT14.download(tmp_path / "texts", options)


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
    return [tuple(segment) for segment in ted.sgm_segments(path, "F")]


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
