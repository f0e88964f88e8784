"""Gigaword: layouts, what is removed, the unknown word."""

import re
from pathlib import Path

import pytest
from fairseq.data.data_utils import post_process
from preparation.corpora import gigaword
from preparation.errors import DataError
from preparation_runs import binarised, fail, options_of, read_all, succeed
from small_corpora import GIGAWORD, gigaword_files, gigaword_items
from small_texts import sentences, text_of, write_files

SIDES = ("article", "title")
ORG_DATA = {split: tuple(f"{split}.{side}.txt" for side in ["src", "tgt"]) for split in ["train", "dev", "test"]}


def write_items(folder: Path, names: tuple[str, str], pairs: list[tuple[str, str]]) -> None:
    write_files(folder, {name: text_of(list(side)) for name, side in zip(names, zip(*pairs))})


def write_gigaword(folder: Path, layout: dict[str, tuple[str, str]], train: list | None = None, end: str = "") -> Path:
    return write_files(folder, gigaword_files(layout, train, end))


@pytest.mark.parametrize("bpe", ["subword-nmt", "sentencepiece-unigram"])
def test_gigaword_script(bpe: str, tmp_path: Path) -> None:
    here = tmp_path / "with spaces"
    bad = [("", "t"), ("a", "..."), ("only punctuation", "<unk> UNK"), ("`` ''", "t")]
    write_gigaword(
        here / "x", GIGAWORD, train=[*gigaword_items(30), *bad, ("in 1999 , ab@@ </s> <pad>x", "the end 12")]
    )
    test = [*gigaword_items(3), ("", "x"), ("the rest", "of it 5")]
    write_items(here, ("zhou.src", "zhou.tgt"), test)
    options = ["--test-source", "zhou.src", "--test-target", "zhou.tgt", "--bpe", bpe]
    done = succeed("gigaword", "--from", "x", *options, "--merges", 40, cwd=here)
    assert (
        "train: 4 of 35 items are invalid, removed: empty article 1, no word in article 1, no word in title 1, "
        "only unknown words in title 1" in done.stdout
    )
    assert "test: 1 of 5 items are invalid, kept in their places: empty article 1" in done.stdout
    dest = here / "data-bin" / "gigaword"
    assert {path.name.split(".")[0] for path in dest.glob("*.idx")} == {"train", "valid", "test", "rush"}
    for number, side in enumerate(SIDES):
        raw = (dest / "raw" / f"test.{side}").read_text().split("\n")[:-1]
        assert raw == [re.sub("[0-9]", "#", pair[number]) for pair in test]
        train = binarised(dest, "train", "article-title", side)
        assert len(train) == 31
        unknown = "<unk>" if bpe == "subword-nmt" else "\u2581<unk>"
        assert all(line.split(" ").count(unknown) == 1 for line in train[:-1])
        text = [post_process(line, bpe.replace("-", "_").removesuffix("_unigram")) for line in train]
        assert text[-1] == ["in #### , ab@ /s padx", "the end ##"][number]
        assert all("<unk>" in line.split() for line in text[:-1])
    symbols = {line.split()[0] for line in (dest / "dict.article.txt").read_text().splitlines()}
    assert not symbols & {"<s>", "</s>", "<pad>", "<unk>"}


def test_gigaword_layouts(tmp_path: Path) -> None:
    corpus = gigaword.Gigaword()
    plain = dict(GIGAWORD, valid=("train/valid.article.txt", "train/valid.title.txt"))
    layouts = {"rush": GIGAWORD, "plain": plain, "org": ORG_DATA}
    for name, layout in layouts.items():
        for compress in [False, True]:
            folder = write_gigaword(tmp_path / f"{name}{compress}", layout, end=".gz" if compress else "")
            texts = read_all(corpus, folder, options_of(corpus))
            assert list(texts) == ["train", "valid", "test"] and len(texts["train"]) == 40
            assert texts["valid"][2] == (
                "article # <unk> : " + sentences("en", 3)[2].lower().replace("2", "#"),
                "title # UNK ##",
            )
    inner = write_gigaword(tmp_path / "deep" / "sumdata", GIGAWORD)
    assert read_all(corpus, inner.parent, options_of(corpus)) == read_all(corpus, inner, options_of(corpus))


@pytest.mark.parametrize(
    "word, token",
    [("<s>", "s"), ("<<s>>", "s"), ("a<</s>>b", "a/sb"), ("<unk>", "<unk>"), ("[UNK]", "<unk>"), ("<<unk>>", "unk")],
)
def test_no_word_becomes_a_symbol_of_the_host(word: str, token: str) -> None:
    assert gigaword.Gigaword().tokenizer("article", False)(word) == token


def test_gigaword_drop_invalid(tmp_path: Path) -> None:
    corpus = gigaword.Gigaword()
    folder = write_gigaword(tmp_path, ORG_DATA)
    write_items(folder, ORG_DATA["test"], [("a", "b"), ("", "c"), ("d", "e")])
    assert read_all(corpus, folder, options_of(corpus))["test"] == [("a", "b"), ("", "c"), ("d", "e")]
    assert read_all(corpus, folder, options_of(corpus, "--drop-invalid"))["test"] == [("a", "b"), ("d", "e")]


def test_gigaword_errors(tmp_path: Path) -> None:
    corpus = gigaword.Gigaword()
    folder = write_gigaword(tmp_path / "x", ORG_DATA)
    options = options_of(corpus, check=True)
    with pytest.raises(DataError, match="train.src.txt has 40 lines, expected 3803957"):
        read_all(corpus, folder, options)
    recipes = set()
    for text in ("a", "b"):
        path = tmp_path / text
        path.write_text(f"{text}\n")
        recipes.add(corpus.variant(options_of(corpus, "--test-source", str(path), "--test-target", str(path))))
    assert len(recipes) == 2
    with pytest.raises(DataError, match="belong together"):
        corpus.find(folder, options_of(corpus, "--test-source", "a"))
    (folder / "test.tgt.txt").unlink()
    with pytest.raises(DataError, match=r"x has no test: .*test.src.txt \+ test.tgt.txt.* --test-source"):
        corpus.find(folder, options_of(corpus))
    (folder / "train.tgt.txt").write_text("a\n" * 39)
    write_items(folder, ORG_DATA["test"], gigaword_items(2))
    with pytest.raises(DataError, match=r"train.src.txt:40: no line to pair with .*\(40 lines against 39\)"):
        read_all(corpus, folder, options_of(corpus))
    message = fail("gigaword", cwd=tmp_path)
    assert "cannot be downloaded" in message and "--from DIR" in message
