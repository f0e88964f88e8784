"""Multi30k: alignment on awkward text, subwords and dictionaries, damaged files, mirrors, the real corpus."""

import gzip
import re
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from corpora import corpus_folder
from preparation import lines, tokens
from preparation.corpora import multi30k
from preparation_runs import binarised, binarised_text, fail, joined, options_of, prepare, read_all, snapshot, succeed
from small_corpora import multi30k_files
from small_texts import LANGUAGES, sentences, text_of, write_files

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


def test_no_text_becomes_a_symbol_of_the_host(awkward: SimpleNamespace) -> None:
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


def test_steps_are_made_again_only_where_something_changed(here: Path, fake_host: dict[str, str]) -> None:
    write_files(here / "x", multi30k_files())

    def run(*options: object) -> str:
        done = prepare("multi30k", "de-en", "--from", "x", "--merges", 20, *options, cwd=here, **fake_host)
        assert "fairseq-preprocess failed, see downloads/multi30k/de-en/preprocess.log (out of memory)" in done.stderr
        return " ".join(re.findall(r"de-en/(\w+) is already complete", done.stderr))

    assert run() == ""
    assert run() == "text tokens subwords"
    assert run("--merges", 10) == "text tokens"
    assert run("--lowercase") == "text"
    write_files(here / "x", {f"val.{lang}.gz": text_of(sentences(lang, 8)) for lang in LANGUAGES})
    assert run() == ""
    assert not list(here.rglob("*partial*")) and not list((here / "data-bin").iterdir())


def test_mirrors(here: Path, fake_host: dict[str, str], server: SimpleNamespace) -> None:
    write_files(server.folder / "good", multi30k_files())
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
    corpus = multi30k.Multi30k()
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
    assert next(lines.read_lines(dest / "prepared.txt")) == (
        "multi30k en, words seen 2 times and more, lowercase tokens, not checked"
    )
    assert not list(dest.glob("raw")) and not list(dest.glob("*codes"))
