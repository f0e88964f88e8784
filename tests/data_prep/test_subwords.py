"""Subwords: they can be undone, no symbol is split, all kinds learn as many merges."""

from pathlib import Path

import pytest
from fairseq.data.data_utils import post_process
from preparation import subwords, tokens
from preparation.corpora import gigaword
from preparation.errors import DataError
from preparation.moses import ESCAPES
from preparation_runs import joined
from small_corpora import gigaword_items
from small_texts import LANGUAGES, sentences


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
    codes = (tmp_path / "a").read_text().splitlines()
    assert all(line.startswith("&") for line in codes[31:])  # after the line of the version: what keeps escapes whole
    subwords.learn("sentencepiece", text, 30, tmp_path / "b")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "b"))
    characters = set("".join(text)) - {" "} | {"▁"}
    assert processor.vocab_size() == 3 + len(characters) + 30 + 2 * len(ESCAPES)


@pytest.mark.parametrize("kind", list(subwords.KINDS))
def test_subwords_come_apart_and_together(kind: str, tmp_path: Path) -> None:
    """As ``fairseq-generate --remove-bpe`` does it, on words in and outside of what was learnt."""
    tokenise = gigaword.Gigaword().tokenizer("article", False)
    text = [tokenise(f"{source} {target}") for source, target in gigaword_items(50)]
    path = tmp_path / "model"
    subwords.learn(kind, text, 40, path, ("<unk>",))
    split = subwords.load(kind, path)
    remove = kind.replace("-", "_").removesuffix("_unigram")
    for line in [*text, "<unk> zebra unk <unk> , ☃ 漢字 x<unk>y", "<unk>", ""]:
        line = tokenise(line)
        pieces = split(line)
        assert post_process(pieces, remove) == line
        assert sum("<unk>" in piece for piece in pieces.split()) == line.split().count("<unk>")


@pytest.mark.parametrize("kind", list(subwords.KINDS))
def test_escapes_stay_whole_even_those_that_train_lacks(kind: str, tmp_path: Path) -> None:
    words = ["don &apos;t", "it &apos;s", "l&apos; eau"] * 9
    subwords.learn(kind, words, 14, tmp_path / "model")
    split = subwords.load(kind, tmp_path / "model")
    for word in [f"{start}{escape}{end}" for escape in ESCAPES for start in ("", "l") for end in ("", "s", "99")]:
        pieces = split(word).split()
        (escape,) = (one for one in ESCAPES if one in word)
        assert any(escape in piece for piece in pieces), pieces
        assert "".join(pieces).replace("@@", "").replace("▁", "") == word


def test_train_is_split_as_it_was_learnt(tmp_path: Path) -> None:
    """An escape that is too rare in train to be one piece keeps its pieces, so that no text changes."""
    subwords.learn("subword-nmt", ["the &amp; thing then"] * 9 + ["&quot;"], 3, tmp_path / "model")
    split = subwords.load("subword-nmt", tmp_path / "model")
    assert split("&amp; &quot; &lt;") == "&@@ a@@ m@@ p@@ ; &@@ q@@ u@@ o@@ t@@ ; &lt;"
