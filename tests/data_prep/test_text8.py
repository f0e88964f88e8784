"""text8: lines of words and of characters, the split, a prefix."""

import re
from argparse import Namespace
from collections import Counter
from pathlib import Path

import pytest
from corpora import corpus_folder
from preparation.corpora import text8 as text8_corpus
from preparation.text_corpus import Counts
from preparation_runs import binarised_text, fail, prepare, succeed
from small_corpora import text8
from small_texts import SPLITS, write_files, zipped


@pytest.mark.parametrize(
    "options",
    ["--level byte", "--threshold many", "--level char --threshold 3", "--characters 0", "--characters 100000001"],
)
def test_usage_error(options: str, here: Path) -> None:
    done = prepare("text8", *options.split(), cwd=here)
    assert done.returncode == 2 and options.split()[0] in done.stderr.splitlines()[-1]


def test_level_is_unknown_elsewhere(here: Path) -> None:
    assert prepare("ptb", "--level", "word", cwd=here).returncode == 2


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
    report = text8_corpus.Text8().report(options)
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
    monkeypatch.setattr(text8_corpus, "NUM_CHARACTERS", len(text))
    monkeypatch.setattr(text8_corpus, "NUM_WORDS", len(text.split()))
    monkeypatch.setattr(text8_corpus, "COUNTS", counts)


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
    assert text8_corpus.COUNTS == {"train": (90090000, 90000), "valid": (5005000, 5000), "test": (5005000, 5000)}


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
