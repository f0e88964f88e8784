"""Trees of the Wall Street Journal: layouts, cleaning, symbols, what lies beside the binaries."""

import hashlib
import sys
from pathlib import Path

import pytest
from corpora import corpus_folder
from preparation.corpora import wsj
from preparation.errors import DataError
from preparation_runs import binarised_text, fail, options_of, read_all, succeed
from small_texts import write_files

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
