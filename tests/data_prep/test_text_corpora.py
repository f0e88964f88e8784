"""Corpora of one side, by Penn Treebank and WikiText: what the host reads back, mirrors, the real corpora."""

import dataclasses
import random
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from corpora import corpus_folder
from preparation.corpora import CORPORA, ptb
from preparation.text_corpus import ArchivedText, Counts
from preparation_runs import binarised_text, fail, snapshot, succeed
from small_corpora import PTB, WIKITEXT, wikitext_files
from small_texts import SPLITS, tgz, write_files, zipped

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
    small = dataclasses.replace(ptb.PTB, checksums={}, counts=sizes, num_rows=4)
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
