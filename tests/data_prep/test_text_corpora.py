"""Corpora of one side: Penn Treebank, WikiText, text8 and the trees of the Wall Street Journal."""

import dataclasses
import hashlib
import random
import re
import sys
from argparse import Namespace
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from corpora import corpus_folder
from preparation.corpora import CORPORA, language_models, wsj
from preparation.lines import DataError
from preparation.text_corpus import ArchivedText, Counts
from preparation_runs import binarised_text, fail, options_of, prepare, read_all, snapshot, succeed
from small_corpora import PTB, SPLITS, WIKITEXT, text8, tgz, wikitext_files, write_files, zipped

OUTPUTS = {"dict.txt", "digests.json", "prepared.txt", "preprocess.log", "text.json"}
OUTPUTS |= {f"{s}.{end}" for s in SPLITS for end in ["bin", "idx"]}


def named(pattern: str, texts: dict[str, bytes]) -> dict[str, bytes]:
    """Files by names with the split in place of the star."""
    return {pattern.replace("*", split): text for split, text in texts.items()}


def num_tokens(text: bytes) -> int:
    return len(text.decode().split()) + text.count(b"\n")


def expected_lines(text: bytes, train: bytes) -> list[list[str]]:
    known = set(train.decode().split())
    lines = text.decode().split("\n")
    assert lines.pop() == ""
    return [[word if word in known else "<unk>" for word in line.split()] + ["</s>"] for line in lines]


def assert_binarised(folder: Path, texts: dict[str, bytes]) -> None:
    assert {path.name for path in folder.iterdir()} == OUTPUTS
    num_rows = len(set(texts["train"].decode().split()) - {"<unk>"})
    assert len((folder / "dict.txt").read_text().splitlines()) == num_rows
    for split, text in texts.items():
        assert binarised_text(folder, split) == expected_lines(text, texts["train"])


@pytest.fixture(scope="module")
def real_ptb() -> dict[str, bytes]:
    return {split: (corpus_folder("ptb") / f"{split}.txt").read_bytes() for split in SPLITS}


@pytest.fixture(scope="module")
def real_wikitext() -> dict[str, bytes]:
    folder = corpus_folder("wikitext-2")
    return {split: (folder / f"{split}.txt").read_bytes() for split in ["valid", "test"]}


@pytest.mark.data
@pytest.mark.slow
def test_real_ptb_from_archive(real_ptb: dict[str, bytes], here: Path) -> None:
    archive = tgz(named("./simple-examples/data/ptb.*.txt", real_ptb))
    write_files(here / "my files", {"simple-examples.tgz": archive})
    done = succeed("ptb", "--from", "my files", "--dest", "data dir/ptb", "--work", "work dir", cwd=here, check=True)
    dest = here / "data dir" / "ptb"
    assert_binarised(dest, real_ptb)
    assert len((dest / "dict.txt").read_text().splitlines()) == 9998
    for split, num_lines, tokens in [("train", 42068, 929589), ("valid", 3370, 73760), ("test", 3761, 82430)]:
        assert (real_ptb[split].count(b"\n"), num_tokens(real_ptb[split])) == (num_lines, tokens)
        assert re.search(rf"^{split}: {num_lines} lines, {tokens} tokens", done.stdout, re.MULTILINE)
    assert "The binarised corpus is in data dir/ptb. Next:" in done.stdout
    command = r"python -m fairseq_plugins.cli.train reduced doc 'data dir/ptb' --save-dir checkpoints/ptb$"
    assert re.search(command, done.stdout, re.MULTILINE)
    assert "not checked" not in done.stderr
    assert {path.name for path in here.iterdir()} == {"my files", "data dir", "work dir"}


@pytest.mark.data
def test_real_ptb_truncated(real_ptb: dict[str, bytes], here: Path) -> None:
    write_files(here / "x", named("ptb.*.txt", {**real_ptb, "valid": real_ptb["valid"][:200000]}))
    message = fail("ptb", "--from", "x", cwd=here, check=True)
    assert "x/ptb.valid.txt has SHA-256" in message and "--from DIR" in message and "delete" in message
    assert "expected c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2" in message


@pytest.mark.data
@pytest.mark.slow
def test_real_wikitext_2(here: Path) -> None:
    done = succeed("wikitext-2", "--from", corpus_folder("wikitext-2"), cwd=here, check=True)
    for line in ["train: 36718 lines, 2088628 tokens", "valid: 3760 lines, 217646", "dict.txt: 33276 rows"]:
        assert line in done.stdout


@pytest.mark.parametrize("pattern", ["ptb.*.txt", "*.txt", "*.txt.gz"])
def test_plain_text(pattern: str, here: Path) -> None:
    before = snapshot(write_files(here / "plain, text", named(pattern, PTB)))
    succeed("ptb", "--from", "plain, text", cwd=here)
    assert_binarised(here / "data-bin" / "ptb", PTB)
    assert snapshot(here / "plain, text") == before


def test_some_files_are_not_enough(here: Path) -> None:
    write_files(here / "x", named("ptb.*.txt", {split: PTB[split] for split in ["train", "valid"]}))
    message = fail("ptb", "--from", "x", cwd=here)
    assert "simple-examples.tgz" in message and "ptb.test.txt" in message


def test_second_mirror(here: Path, server: SimpleNamespace) -> None:
    write_files(server.folder / "good", wikitext_files("wikitext-2"))
    write_files(server.folder / "parked", {"wikitext-2-v1.zip": b"<html>This domain is for sale</html>"})
    left = {"wikitext-2-v1.zip.part": b"left by an interrupted run"}
    write_files(here / "downloads" / "wikitext-2", left)
    mirrors = [f"{server.url}/gone/", f"{server.url}/parked", f"{server.url}/good/wikitext-2-v1.zip"]
    succeed("wikitext-2", *[part for mirror in mirrors for part in ["--mirror", mirror]], cwd=here)
    assert server.requests == [f"/{folder}/wikitext-2-v1.zip" for folder in ["gone", "parked", "good"]]
    assert_binarised(here / "data-bin" / "wikitext-2", WIKITEXT)
    assert [path.name for path in (here / "data-bin").iterdir()] == ["wikitext-2"]
    assert not list(here.rglob("*.part"))


def test_plain_text_mirror(here: Path, server: SimpleNamespace) -> None:
    write_files(server.folder / "plain", named("ptb.*.txt", PTB))
    succeed("ptb", "--mirror", f"{server.url}/gone", "--mirror", f"{server.url}/plain", cwd=here)
    dest = here / "data-bin" / "ptb"
    assert_binarised(dest, PTB)
    num_requests = len(server.requests)
    dest.rename(here / "elsewhere")
    for options in [["--mirror", f"{server.url}/gone"], ["--from", "downloads/ptb", "--work", "other"]]:
        message = fail("ptb", *options, cwd=here, check=True)
        assert "SHA-256" in message and "downloads/ptb/ptb.train.txt" in message
    assert len(server.requests) == num_requests


@pytest.mark.parametrize("corpus", ["ptb", "wikitext-2"])
@pytest.mark.parametrize("damage", ["truncated", "noise"])
def test_corrupt_archive(corpus: str, damage: str, here: Path) -> None:
    text = (" ".join(map(str, random.Random(1).choices(range(1000), k=20000))) + "\n").encode()
    texts = dict.fromkeys(SPLITS, text)
    name = "simple-examples.tgz" if corpus == "ptb" else "wikitext-2-v1.zip"
    members = named("simple-examples/data/ptb.*.txt" if corpus == "ptb" else "wikitext-2/wiki.*.tokens", texts)
    content = (tgz if corpus == "ptb" else zipped)(members)
    middle = len(content) // 2
    content = content[:middle] if damage == "truncated" else content[:middle] + b"!" + content[middle + 1 :]
    write_files(here / "x", {name: content})
    message = fail(corpus, "--from", "x", cwd=here)
    assert "damaged" in message and name in message and "--from DIR" in message


@pytest.mark.parametrize(
    "corpus, files, member",
    [
        (
            "ptb",
            {"simple-examples.tgz": tgz(named("simple-examples/data/ptb.*.txt", {"train": b"a\n", "valid": b"a\n"}))},
            "simple-examples/data/ptb.test.txt",
        ),
        ("text8", {"text8.zip": zipped({"text": b"a b"})}, "text8"),
        (
            "wikitext-2",
            {"wikitext-2-v1.zip": zipped({f"wikitext-2/wiki.{split}.tokens": b"a\n" for split in ["train", "test"]})},
            "wikitext-2/wiki.valid.tokens",
        ),
        (
            "wikitext-2",
            {"wikitext-2-v1.zip": zipped({f"wikitext-2-raw/wiki.{split}.raw": b"a\n" for split in SPLITS})},
            "wikitext-2/wiki.test.tokens, wikitext-2/wiki.train.tokens, wikitext-2/wiki.valid.tokens",
        ),
    ],
    ids=["ptb", "text8", "wikitext-2", "the raw wikitext-2"],
)
def test_missing_member(corpus: str, files: dict[str, bytes], member: str, here: Path) -> None:
    write_files(here / "x", files)
    assert f"has no member {member}:" in fail(corpus, "--from", "x", cwd=here)


@pytest.mark.data
@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_wikitext_2_checksums(split: str, real_wikitext: dict[str, bytes], here: Path) -> None:
    files = named("wiki.*.tokens", real_wikitext)
    (here / "x").mkdir()
    (here / "x" / "wiki.train.tokens.gz").symlink_to(corpus_folder("wikitext-2") / "train.txt.gz")
    if split == "train":
        files["wiki.train.tokens"] = WIKITEXT["train"]
        (here / "x" / "wiki.train.tokens.gz").unlink()
    else:
        name = f"wiki.{split}.tokens"
        files[name] = re.sub(rb"(?<= )[A-Z]\w+(?= )", b"Rupert", files[name], count=1)
        assert files[name] != real_wikitext[split]
    write_files(here / "x", files)
    message = fail("wikitext-2", "--from", "x", cwd=here, check=True)
    assert f"x/wiki.{split}.tokens has SHA-256" in message


def test_text_that_is_not_utf8_or_empty(here: Path) -> None:
    write_files(here / "x", {**named("*.txt", PTB), "valid.txt": b"a b\nc \xff d\n"})
    assert "x/valid.txt:2: not UTF-8 text (byte 3 of the line)" in fail("ptb", "--from", "x", cwd=here)
    write_files(here / "x", {"valid.txt": b""})
    assert "x/valid.txt is empty" in fail("ptb", "--from", "x", cwd=here)


def test_wrong_counts_and_vocabulary(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {split: Counts(num_tokens(text), text.count(b"\n")) for split, text in PTB.items()}
    small = dataclasses.replace(language_models.PTB, checksums={}, counts=sizes, num_rows=4)
    write_files(here / "x", named("*.txt", PTB))

    def message_of(corpus: ArchivedText) -> str:
        monkeypatch.setitem(CORPORA, "ptb", corpus)
        return fail("ptb", "--from", "x", cwd=here, check=True)

    wrong = {**sizes, "valid": Counts(3, 2)}
    message = message_of(dataclasses.replace(small, counts=wrong))
    assert "x/valid.txt has 3 tokens in 1 lines, expected 3 in 2 lines: delete it" in message
    message = message_of(dataclasses.replace(small, num_rows=5))
    assert "the vocabulary of x/train.txt has 4 words, expected 5: delete it" in message
    monkeypatch.setitem(CORPORA, "ptb", small)
    assert "dict.txt: 4 rows" in succeed("ptb", "--from", "x", cwd=here, check=True).stdout


def test_blank_lines_are_kept(here: Path) -> None:
    write_files(here / "x", wikitext_files("wikitext-2"))
    done = succeed("wikitext-2", "--from", "x", cwd=here)
    dest = here / "data-bin" / "wikitext-2"
    assert_binarised(dest, WIKITEXT)
    lines = binarised_text(dest, "train")
    assert lines.count(["</s>"]) == 4 and len(lines) == 7
    for split, text in WIKITEXT.items():
        counts = rf"^{split}: {text.count(bytes([10]))} lines, {num_tokens(text)} tokens"
        assert re.search(counts, done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    "options",
    ["--level byte", "--threshold many", "--level char --threshold 3", "--characters 0", "--characters 100000001"],
)
def test_usage_error(options: str, here: Path) -> None:
    done = prepare("text8", *options.split(), cwd=here)
    assert done.returncode == 2 and options.split()[0] in done.stderr.splitlines()[-1]


def test_level_is_unknown_elsewhere(here: Path) -> None:
    assert prepare("ptb", "--level", "word", cwd=here).returncode == 2


# text8


def expected_words(text: str) -> dict[str, list[str]]:
    """The words of each split: one that straddles a border belongs to the earlier part."""
    ends = [match.end() for match in re.finditer(r"\S+", text)]
    parts = [
        sum(end - len(word) < border for end, word in zip(ends, text.split()))
        for border in [len(text) * 9 // 10, len(text) * 19 // 20]
    ]
    words = text.split()
    return {"train": words[: parts[0]], "valid": words[parts[0] : parts[1]], "test": words[parts[1] :]}


def test_words(here: Path) -> None:
    text = text8(30000)
    while text[len(text) * 9 // 10 - 1] == " " or text[len(text) * 9 // 10] == " ":
        text += "x"
    write_files(here / "x", {"text8.zip": zipped({"text8": text.encode()})})
    done = succeed("text8", "--from", "x", "--threshold", "7", cwd=here)
    expected = expected_words(text)
    known = {word for word, count in Counter(expected["train"]).items() if count >= 7}
    assert known < set(expected["train"])
    dest = here / "data-bin" / "text8"
    assert len((dest / "dict.txt").read_text().splitlines()) == len(known)
    assert (dest / "prepared.txt").read_text().startswith("text8 --level word --threshold 7, not checked\n")
    assert "--save-dir checkpoints/text8" in done.stdout
    for split in SPLITS:
        lines = binarised_text(dest, split)
        assert [len(line) for line in lines[:-1]] == [1001] * (len(lines) - 1)
        assert all(line[-1] == "</s>" for line in lines)
        stream = [word for line in lines for word in line[:-1]]
        assert stream == [word if word in known else "<unk>" for word in expected[split]]


@pytest.mark.parametrize(
    "level, characters, threshold, is_told",
    [("word", None, 5, True), ("word", None, 7, False), ("word", 3000, 5, False), ("char", None, 0, False)],
)
def test_published_counts_are_told_of_the_whole_by_words(level, characters, threshold, is_told) -> None:
    options = Namespace(level=level, characters=characters, threshold=threshold, dest=Path("data-bin"))
    report = language_models.Text8().report(options)
    assert ("67,428 words" in report) == ("15,301,600" in report) == is_told
    assert "fairseq_plugins.cli.train reduced doc data-bin" in report


@pytest.mark.parametrize("name", ["text8", "text8.gz"])
def test_characters(name: str, here: Path) -> None:
    text = text8(4000)
    write_files(here / "x", {name: text.encode()})
    succeed("text8", "--from", "x", "--level", "char", cwd=here)
    dest = here / "data-bin" / "text8-char"
    assert len((dest / "dict.txt").read_text().splitlines()) == 27
    assert_characters(dest, text)


def assert_characters(dest: Path, text: str) -> None:
    borders = [0, len(text) * 9 // 10, len(text) * 19 // 20, len(text)]
    for split, start, end in zip(SPLITS, borders, borders[1:]):
        lines = binarised_text(dest, split)
        assert len(lines) == -(-(end - start) // 1000)
        assert "".join("".join(line[:-1]) for line in lines).replace("_", " ") == text[start:end]
        assert all(line[-1] == "</s>" for line in lines)


def test_prefix(here: Path) -> None:
    text = text8(4000)
    write_files(here / "prefix", {"text8.prefix.gz": text.encode()})
    write_files(here / "whole", {"text8": text.encode()})
    options = ["--level", "char", "--characters", 5000]
    for folder in ["prefix", "whole"]:
        dest = here / "data-bin" / folder
        succeed("text8", "--from", folder, *options, "--dest", dest, "--work", folder, cwd=here)
        assert_characters(dest, text[:5000])
    message = fail("text8", "--from", "prefix", cwd=here)
    assert "prefix has no text8.zip (or text8), but a prefix: say how much with --characters N" in message
    message = fail("text8", "--from", "prefix", "--characters", len(text) + 1, cwd=here)
    assert f"text8.prefix.gz has {len(text)} characters, expected {len(text) + 1}" in message
    message = fail("text8", "--from", "prefix", "--characters", 12549840, cwd=here, check=True)
    assert "expected 12549840" in message


def test_short_prefix_may_lack_characters(here: Path) -> None:
    write_files(here / "x", {"text8.prefix": b"a few words only now " * 50})
    succeed("text8", "--from", "x", "--level", "char", "--characters", 1000, cwd=here, check=True)
    assert len((here / "data-bin" / "text8-char-1000" / "dict.txt").read_text().splitlines()) == 12


def pretend_whole(monkeypatch: pytest.MonkeyPatch, text: str, counts: dict[str, Counts]) -> None:
    """Make ``text`` the whole corpus."""
    monkeypatch.setattr(language_models, "NUM_CHARACTERS", len(text))
    monkeypatch.setattr(language_models, "NUM_WORDS", len(text.split()))
    monkeypatch.setattr(language_models, "COUNTS", counts)


def test_characters_of_the_whole_are_counted(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = text8(30000)[:80000]
    counts = {"train": Counts(72072, 72), "valid": Counts(4004, 4), "test": Counts(4004, 4)}
    write_files(here / "x", {"text8": text.encode()})
    pretend_whole(monkeypatch, text, counts)
    done = succeed("text8", "--from", "x", "--level", "char", cwd=here, check=True)
    assert all(f"{split}: {lines} lines, {tokens} tokens" in done.stdout for split, (tokens, lines) in counts.items())
    for wrong in [Counts(4003, 4), Counts(4004, 5)]:
        pretend_whole(monkeypatch, text, {**counts, "valid": wrong})
        message = fail("text8", "--from", "x", "--level", "char", "--dest", "d", "--work", "w", cwd=here, check=True)
        assert f"valid of x/text8 has 4004 tokens in 4 lines, expected {wrong[0]} in {wrong[1]} lines" in message


def test_whole_has_all_characters(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a few words only now " * 50
    write_files(here / "x", {"text8": text.encode()})
    pretend_whole(monkeypatch, text, {})
    message = fail("text8", "--from", "x", "--level", "char", cwd=here, check=True)
    assert "the vocabulary of x/text8 has 12 words, expected 27" in message


def test_counts_of_the_real_text() -> None:
    assert language_models.COUNTS == {"train": (90090000, 90000), "valid": (5005000, 5000), "test": (5005000, 5000)}


def test_wrong_text(here: Path) -> None:
    write_files(here / "x", {"text8": b"a few words only now"})
    message = fail("text8", "--from", "x", cwd=here, check=True)
    assert "x/text8 has 5 words in 20 characters, expected 17005207 in 100000000" in message and "delete" in message
    write_files(here / "x", {"text8": "ein paar wörter nur und nichts sonst".encode()})
    assert "x/text8 has more than a-z and blanks (at byte 10)" in fail("text8", "--from", "x", cwd=here)
    for text, byte in [
        ("twenty words and \na line", 17),
        ("no Capital letters there", 3),
        ("nor any 1 of the digits", 8),
    ]:
        write_files(here / "z", {"text8": text.encode()})
        message = fail("text8", "--from", "z", cwd=here)
        assert f"z/text8 has more than a-z and blanks (at byte {byte})" in message
    write_files(here / "y", {"text8.prefix": (b"abc def " * 1568730)})
    message = fail("text8", "--from", "y", "--characters", 12549840, cwd=here, check=True)
    assert "the prefix of y/text8.prefix has SHA-256" in message


@pytest.mark.data
@pytest.mark.slow
def test_real_prefix(here: Path) -> None:
    done = succeed("text8", "--from", corpus_folder("text8"), "--characters", 12549840, cwd=here, check=True)
    assert (
        "train: 1927 lines, 1928826 tokens" in done.stdout
        and (here / "data-bin" / "text8-12549840" / "train.bin").is_file()
    )


# Wall Street Journal


RAW = "( (S (NP-SBJ-1 (NN {word})) (VP (VBD was) (VP (VBN seen) (NP (-NONE- *-1)))) (. .)) )\n"
CLEAN = "(S1 (S (NP (NN {word})) (VP (VBD was) (VP (VBN seen))) (. .)))"
SECTIONS = range(2, 25)


def articles(place: str, end: str = ".mrg") -> dict[str, bytes]:
    """A tree over several lines for each article, two articles a section, and other sections and files."""
    files = {}
    for number in [0, 1, *SECTIONS]:
        for article in (1, 2):
            tree = RAW.format(word=f"word{number}x{article}").replace(" (VP (VBD", "\n    (VP (VBD").encode()
            files[f"{place}/{number:02d}/wsj_{number:02d}{article:02d}{end}"] = b"\n" + tree + b"\n"
    return {**files, f"{place}/02/readme": b"no tree"}


def sections(names: str) -> dict[str, bytes]:
    """A file for each section."""
    return {
        names.format(number): b"".join(RAW.format(word=f"word{number}x{article}").encode() for article in (1, 2))
        for number in SECTIONS
    }


@pytest.mark.parametrize(
    "files",
    [
        articles("."),
        articles("parsed/mrg/wsj"),
        articles("combined/wsj", ".mrg.gz"),
        sections("{:02d}.mrg"),
        sections("wsj/wsj_{:02d}.trees"),
    ],
    ids=["articles", "articles of the disc", "compressed articles", "sections", "sections in a folder"],
)
def test_layouts(files: dict[str, bytes], tmp_path: Path) -> None:
    write_files(tmp_path / "x", files)
    corpus = wsj.WSJ()
    texts = read_all(corpus, tmp_path / "x", options_of(corpus, "--from", tmp_path / "x"))
    numbers = {"train": range(2, 22), "valid": [22], "test": [23], "dev": [24]}
    expected = {
        split: [(CLEAN.format(word=f"word{number}x{article}"),) for number in of_split for article in (1, 2)]
        for split, of_split in numbers.items()
    }
    assert texts == expected and list(texts) == list(numbers)


def test_missing_sections_and_brackets_are_told(tmp_path: Path) -> None:
    corpus = wsj.WSJ()
    options = options_of(corpus, "--from", tmp_path / "x")
    write_files(tmp_path / "x", sections("{:02d}.mrg"))
    for number in (7, 24):
        (tmp_path / "x" / f"{number:02d}.mrg").unlink()
    with pytest.raises(DataError, match="x has no section 07, section 24: put it there, or pass another --from"):
        read_all(corpus, tmp_path / "x", options)
    write_files(tmp_path / "x", {**sections("{:02d}.mrg"), "09.mrg": b"( (S (NN a))\n\n"})
    with pytest.raises(DataError, match="09.mrg, line 2: the text ends within a tree, 1 .* are missing: pass the"):
        read_all(corpus, tmp_path / "x", options)
    write_files(tmp_path / "x", sections("{:02d}.mrg"))
    with pytest.raises(DataError, match="train of .* has 40 lines, expected 39832: pass the right files"):
        read_all(corpus, tmp_path / "x", options_of(corpus, "--from", tmp_path / "x", check=True))


def nltk_sample() -> dict[str, bytes]:
    """An article of two trees each, as NLTK packs them; every tenth is compressed."""
    files = {}
    for number in range(1, 200):
        trees = "".join(RAW.format(word=f"word{number}x{place}") for place in (1, 2)).encode()
        files[f"nltk_data/corpora/treebank/combined/wsj_{number:04d}.mrg{'' if number % 10 else '.gz'}"] = trees
    return {**files, "nltk_data/corpora/treebank/combined/README": b"no tree"}


@pytest.mark.parametrize("place", ["nltk_data", "nltk_data/corpora/treebank", "nltk_data/corpora/treebank/combined"])
def test_the_sample_as_nltk_packs_it(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path, nltk_sample())
    corpus = wsj.WSJ()
    options = options_of(corpus, "--from", tmp_path / place)
    assert options.result == "wsj-sample" and options.subject == "sample"
    numbers = {"train": range(1, 150), "valid": range(150, 170), "test": range(170, 200)}
    expected = {
        split: [(CLEAN.format(word=f"word{number}x{article}"),) for number in of_split for article in (1, 2)]
        for split, of_split in numbers.items()
    }
    assert read_all(corpus, tmp_path / place, options) == expected
    checked = options_of(corpus, "--from", tmp_path / place, check=True)
    with pytest.raises(DataError, match="train of .*combined, cleaned, has SHA-256 .* expected e8d6b31d.*: pass the"):
        read_all(corpus, tmp_path / place, checked)
    digests = {
        split: hashlib.sha256("".join(f"{tree}\n" for (tree,) in rows).encode()).hexdigest()
        for split, rows in expected.items()
    }
    monkeypatch.setattr(wsj, "SAMPLE_CHECKSUMS", digests)  # those of the gold files of such a sample
    assert read_all(corpus, tmp_path / place, checked) == expected


def test_articles_that_the_sample_lacks_or_has_twice_are_told(tmp_path: Path) -> None:
    folder, corpus = tmp_path / "nltk_data/corpora/treebank/combined", wsj.WSJ()
    write_files(tmp_path, nltk_sample())
    for number in range(2, 7):
        (folder / f"wsj_{number:04d}.mrg").unlink()
    options = options_of(corpus, "--from", folder)
    with pytest.raises(DataError, match="has no wsj_0002.mrg, wsj_0003.mrg, wsj_0004.mrg and 2 more: put it there, or"):
        read_all(corpus, folder, options)
    write_files(tmp_path, nltk_sample())
    (folder / "wsj_0007.mrg.gz").touch()
    with pytest.raises(DataError, match="wsj_0007.mrg is there a second time, as wsj_0007.mrg.gz: leave one of them"):
        read_all(corpus, folder, options)


def test_a_section_or_an_article_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    corpus = wsj.WSJ()
    write_files(tmp_path / "x", articles("."))
    (tmp_path / "x/05/wsj_0501.mrg.gz").touch()
    with pytest.raises(DataError, match="wsj_0501.mrg is there a second time, as wsj_0501.mrg.gz: leave one of them"):
        read_all(corpus, tmp_path / "x", options_of(corpus, "--from", tmp_path / "x"))
    write_files(tmp_path / "y", {**sections("{:02d}.mrg"), "wsj_09.mrg.gz": b""})
    with pytest.raises(DataError, match="section 09 is in .*09.mrg and in .*wsj_09.mrg.gz: leave one of them there"):
        read_all(corpus, tmp_path / "y", options_of(corpus, "--from", tmp_path / "y"))


@pytest.mark.parametrize("module", ["treebank", "make_symbols"])
def test_a_package_that_cannot_be_imported_is_told(module: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(here / "x", sections("{:02d}.mrg"))
    monkeypatch.setitem(sys.modules, f"preparation.{module}", None)
    message = fail("wsj", "--from", "x", cwd=here)
    assert module in message and message.endswith(": activate the environment that fairseq is installed in")


def test_wsj_script(here: Path) -> None:
    """Words that train has three times are kept; the others are unknown classes."""
    words = ["The", "the", "THE", "House", "house", "Zanzibar", "walked", "1990"]
    train = "".join(f"(S1 (S (NP (NN {word})) (VP (VB go))))\n" for word in words)
    held_out = "(S1 (S (NP-SBJ (NN House) (-NONE- *)) (VP (VB GO)) (. .)))\n"
    files = {"gold.train.trees": train, "gold.valid.trees": held_out, "gold.test.trees": "(S1 (X (NN running)))\n"}
    write_files(here / "x", {name: text.encode() for name, text in files.items()})
    done = succeed("wsj", "--from", "x", "--threshold", 3, cwd=here)
    assert "train: 2 words, 4 unknown classes, 3 labels" in done.stdout
    told = done.stdout.splitlines()[-3:]
    where = "data-bin/wsj-sample"
    assert told[0] == f"The binarised corpus is in {where}, the gold trees are in {where}/trees. Next:"
    assert told[1].startswith("  python -m fairseq_plugins.cli.train wsj_sample doc data-bin/wsj-sample --save-dir ")
    assert told[2].startswith("  python -m fairseq_plugins.cli.rerank_trees data-bin/wsj-sample --path ")
    dest = here / "data-bin" / "wsj-sample"
    expected = ["the", "the", "the", "<cunk>", "<unk>", "<cunk>", "<unked>", "<unkn>"]
    assert binarised_text(dest, "train") == [f"(S (NP {word} )NP (VP go )VP )S </s>".split() for word in expected]
    assert binarised_text(dest, "valid") == ["(S (NP <cunk> )NP (VP go )VP <unk> )S </s>".split()]
    assert binarised_text(dest, "test") == ["<unk> <unk> <unk> </s>".split()]  # no such symbol in train
    rows = [line.split()[0] for line in (dest / "dict.txt").read_text().splitlines()]
    assert rows == ["(NP", "(S", "(VP", ")NP", ")S", ")VP", "go", "the", "<cunk>", "<unked>", "<unkn>"]
    trees = {path.name: path.read_text() for path in (dest / "trees").iterdir()}
    assert trees == {
        "kept_words.txt": "go\nthe\n",
        "gold.valid.trees": "(S1 (S (NP (NN House)) (VP (VB GO)) (. .)))\n",
        "gold.test.trees": files["gold.test.trees"],
    }
    message = fail("wsj", "--from", "x", "--dest", "other", "--threshold", 9, cwd=here)
    assert "train has no word 9 times: give a smaller --threshold" in message


def test_sections_become_a_result_of_their_own(here: Path) -> None:
    write_files(here / "x", sections("{:02d}.mrg"))
    succeed("wsj", "--from", "x", cwd=here)
    dest = here / "data-bin" / "wsj"
    assert {path.stem for path in dest.glob("*.idx")} == {"train", "valid", "test", "dev"}
    assert {path.name for path in (dest / "trees").glob("gold.*")} == {
        f"gold.{s}.trees" for s in ("valid", "test", "dev")
    }


@pytest.mark.data
@pytest.mark.slow
def test_real_sample(here: Path) -> None:
    source = corpus_folder("wsj-sample")
    done = succeed("wsj", "--from", source, cwd=here, check=True)
    assert "train: 1031 words, 25 unknown classes, 25 labels" in done.stdout
    dest = here / "data-bin" / "wsj-sample"
    record = (dest / "prepared.txt").read_text().splitlines()
    for split, num_lines, num_tokens in (("train", 3253, 203746), ("valid", 248, 15856), ("test", 413, 24974)):
        assert f"{split}: {num_lines} lines, {num_tokens} tokens with one end mark a line" in record
    assert "dict.txt: 1105 rows" in record
    for split in ("valid", "test"):  # they are clean already
        assert (dest / f"trees/gold.{split}.trees").read_bytes() == (source / f"gold.{split}.trees").read_bytes()
