"""Corpora of one side: Penn Treebank, WikiText, text8 and the trees of the Wall Street Journal."""

import dataclasses
import hashlib
import re
from collections import Counter

from preparation.corpora import CORPORA, language_models, wsj
from preparation.corpora.language_models import Counts
from preparation_runs import binarised_text, fail, options_of, read_all, succeed
from small_corpora import (
    PTB,
    SPLITS,
    WIKITEXT,
    named,
    nltk_sample,
    text8,
    wikitext_files,
    write_files,
    wsj_sections,
    zipped,
)


def num_tokens(text):
    return len(text.decode().split()) + text.count(b"\n")


def assert_binarised(folder, texts):
    known = set(texts["train"].decode().split())
    assert len((folder / "dict.txt").read_text().splitlines()) == len(known - {"<unk>"})
    for split, text in texts.items():
        lines = text.decode().removesuffix("\n").split("\n")
        expected = [[*(word if word in known else "<unk>" for word in line.split()), "</s>"] for line in lines]
        assert binarised_text(folder, split) == expected


def test_plain_text_mirror(here, server):
    write_files(server.folder / "plain", named("ptb.*.txt", PTB))
    gone = f"{server.url}/gone/simple-examples.tgz"  # a mirror may also be the file's own address
    succeed("ptb", "--mirror", gone, "--mirror", f"{server.url}/plain", cwd=here)
    assert server.requests[0] == "/gone/simple-examples.tgz" and not list(here.rglob("*.part"))
    dest = here / "data-bin" / "ptb"
    assert_binarised(dest, PTB)
    num_requests = len(server.requests)
    dest.rename(here / "elsewhere")
    for options in [["--mirror", f"{server.url}/gone"], ["--from", "downloads/ptb", "--work", "other"]]:
        message = fail("ptb", *options, cwd=here, check=True)
        assert "SHA-256" in message and "downloads/ptb/ptb.train.txt" in message
    assert len(server.requests) == num_requests


def test_wrong_counts_and_vocabulary(here, monkeypatch):
    sizes = {split: Counts(num_tokens(text), text.count(b"\n")) for split, text in PTB.items()}
    small = dataclasses.replace(language_models.PTB, checksums={}, counts=sizes, num_rows=4)
    write_files(here / "x", named("*.txt", PTB))
    for changes, error in [
        ({"counts": {**sizes, "valid": Counts(3, 2)}}, "x/valid.txt has 3 tokens in 1 lines, expected 3 in 2 lines"),
        ({"num_rows": 5}, "the vocabulary of x/train.txt has 4 words, expected 5: pass the right files"),
    ]:
        monkeypatch.setitem(CORPORA, "ptb", dataclasses.replace(small, **changes))
        assert error in fail("ptb", "--from", "x", cwd=here, check=True)
    monkeypatch.setitem(CORPORA, "ptb", small)
    assert "dict.txt: 4 rows" in succeed("ptb", "--from", "x", cwd=here, check=True).stdout


def test_blank_lines_are_kept(here):
    write_files(here / "x", wikitext_files("wikitext-2"))
    done = succeed("wikitext-2", "--from", "x", cwd=here)
    dest = here / "data-bin" / "wikitext-2"
    assert_binarised(dest, WIKITEXT)
    lines = binarised_text(dest, "train")
    assert lines.count(["</s>"]) == 4 and len(lines) == 7
    for split, text in WIKITEXT.items():
        counts = rf"^{split}: {text.count(bytes([10]))} lines, {num_tokens(text)} tokens"
        assert re.search(counts, done.stdout, re.MULTILINE)


# text8


def expected_words(text):
    """The words of each split: one that straddles a border belongs to the earlier part."""
    words = {split: [] for split in SPLITS}
    for word in re.finditer(r"\S+", text):
        split = sum(word.start() >= border for border in (len(text) * 9 // 10, len(text) * 19 // 20))
        words[SPLITS[split]].append(word[0])
    return words


def test_words(here):
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


def test_characters(here):
    text = text8(4000)
    write_files(here / "x", {"text8": text.encode()})
    succeed("text8", "--from", "x", "--level", "char", cwd=here)
    dest = here / "data-bin" / "text8-char"
    borders = [0, len(text) * 9 // 10, len(text) * 19 // 20, len(text)]
    for split, start, end in zip(SPLITS, borders, borders[1:]):
        lines = binarised_text(dest, split)
        assert len(lines) == -(-(end - start) // 1000) and all(line[-1] == "</s>" for line in lines)
        assert "".join("".join(line[:-1]) for line in lines).replace("_", " ") == text[start:end]
    assert len((dest / "dict.txt").read_text().splitlines()) == 27
    # A short prefix may lack characters.
    write_files(here / "y", {"text8.prefix": b"a few words only now " * 50})
    succeed("text8", "--from", "y", "--level", "char", "--characters", 1000, cwd=here, check=True)
    assert len((here / "data-bin" / "text8-char-1000" / "dict.txt").read_text().splitlines()) == 12


def pretend_whole(monkeypatch, text, counts):
    """Make ``text`` the whole corpus."""
    monkeypatch.setattr(language_models, "NUM_CHARACTERS", len(text))
    monkeypatch.setattr(language_models, "NUM_WORDS", len(text.split()))
    monkeypatch.setattr(language_models, "COUNTS", counts)


def test_characters_of_the_whole_are_counted(here, monkeypatch):
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
    text = "a few words only now " * 50
    write_files(here / "y", {"text8": text.encode()})
    pretend_whole(monkeypatch, text, {})
    message = fail("text8", "--from", "y", "--level", "char", "--dest", "e", cwd=here, check=True)
    assert "the vocabulary of y/text8 has 12 words, expected 27" in message


# Wall Street Journal


def test_checksums_of_the_sample(tmp_path, monkeypatch):
    corpus, folder = CORPORA["wsj"], write_files(tmp_path, nltk_sample())
    texts = read_all(corpus, folder, options_of(corpus, "--from", folder))
    digests = {
        split: hashlib.sha256("".join(f"{tree}\n" for (tree,) in rows).encode()).hexdigest()
        for split, rows in texts.items()
    }
    monkeypatch.setattr(wsj, "SAMPLE_CHECKSUMS", digests)
    options = options_of(corpus, "--from", folder, check=True)
    assert read_all(corpus, folder, options) == texts and options.result == "wsj-sample"


def test_wsj_script(here):
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
    assert told[1].startswith("  fairseq-plugins train wsj_sample doc data-bin/wsj-sample --save-dir ")
    assert told[2].startswith("  fairseq-plugins trees rerank data-bin/wsj-sample --path ")
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
    write_files(here / "y", wsj_sections())
    succeed("wsj", "--from", "y", cwd=here)
    dest = here / "data-bin" / "wsj"
    assert {path.stem for path in dest.glob("*.idx")} == {"train", "valid", "test", "dev"}
    gold = {f"gold.{split}.trees" for split in ("valid", "test", "dev")}
    assert {path.name for path in (dest / "trees").glob("gold.*")} == gold
