"""Text of the user's own: every way to make tokens, splits, given vocabularies, and that commands follow the record."""

import gzip
import json
import re
import shutil
import unicodedata

import pytest
from preparation.corpora import CORPORA
from preparation_runs import binarised, binarised_text, fail, known, options_of, prepare, succeed, words_of
from small_corpora import LANGUAGES, SPLITS, own_files, sentences, text_of, write_files

from fairseq_plugins.evaluation.raw_text import load_pair_texts, load_side_text

VALID = {lang: [*sentences(lang, 6, 1)[:-1], "Ein Satz? No. 5 & <unk> \u00ad x_y!"] for lang in LANGUAGES}
RAW = {
    **{name: data for name, data in own_files().items() if "valid" not in name},
    **{f"valid.{lang}": text_of(lines) for lang, lines in VALID.items()},
}

WAYS = [  # options, text.json without form of Unicode
    ("", {"tokenizer": "moses", "case": "kept", "subwords": "bpe.codes"}),
    ("--subwords none --lowercase --threshold 2", {"tokenizer": "moses", "case": "lower tokens"}),
    ("--subwords sentencepiece", {"tokenizer": "blanks", "case": "kept", "subwords": "sentencepiece.bpe.model"}),
    (
        "--subwords sentencepiece-unigram --tokenizer moses",
        {"tokenizer": "moses", "case": "kept", "subwords": "sentencepiece.unigram.model"},
    ),
    ("--tokenizer none --joined-dictionary", {"tokenizer": "blanks", "case": "kept", "subwords": "bpe.codes"}),
    ("--tokenizer none --subwords none", {"tokenizer": "blanks", "case": "kept"}),
    ("--tokenizer character", {"tokenizer": "characters", "case": "kept"}),
]


@pytest.fixture
def raw(here):
    return write_files(here / "my text", RAW)


@pytest.mark.parametrize("options, record", WAYS, ids=[options or "default" for options, _ in WAYS])
def test_commands_make_the_tokens_of_the_preparation(options, record, raw):
    """Of pairs and of one side. Tokens that train lacks are unknown."""
    given = [*options.split(), *(["--merges", "20"] if record.get("subwords") else [])]
    succeed("own", "de-en", "--from", raw, *given, cwd=raw.parent)
    data = raw.parent / "data-bin/own.de-en"
    assert json.loads((data / "text.json").read_text()) == {**record, "unicode": "NFC"}
    is_joined = (data / "dict.de.txt").read_bytes() == (data / "dict.en.txt").read_bytes()
    assert is_joined == ("--joined-dictionary" in options)
    for source, target in (("de", "en"), ("en", "de")):
        text, other = load_pair_texts(data, source=source, target=target)
        pieces = [text.split(line) for line in VALID[source]]
        assert known(pieces, data / f"dict.{source}.txt") == binarised(data, "valid", "de-en", source)
        assert (data / f"raw/valid.{source}").read_text().splitlines() == VALID[source]
        if record["case"] == "kept" and record["tokenizer"] == "blanks":
            assert [other.join(line) for line in map(text.split, VALID[target])] == VALID[target]
    given = [flag for flag in given if flag != "--joined-dictionary"]
    succeed("own", "de", "--from", raw, *given, cwd=raw.parent)
    data = raw.parent / "data-bin/own.de"
    recorded = json.loads((data / "text.json").read_text())
    assert recorded.pop("language", "") == ("de" if record["tokenizer"] == "moses" else "")
    assert recorded == {**record, "unicode": "NFC"}
    read = known([load_side_text(data).split(line) for line in VALID["de"]], data / "dict.txt")
    assert [f"{line} </s>" for line in read] == [" ".join(line) for line in binarised_text(data, "valid")]


def test_sentencepiece_learns_from_raw_text(here):
    """Punctuation is no part of a word's piece, and no escape is made whole."""
    lines = [f"{line[:-2]}." for line in sentences("en", 60)]
    write_files(here, {f"{split}.en": text_of(lines) for split in SPLITS})
    succeed("own", "en", "--from", ".", "--subwords", "sentencepiece", "--merges", 400, cwd=here)
    pieces = words_of(here / "data-bin/own.en/dict.txt")
    assert "\u2581houses" in pieces and not any(re.search(r"\w\.|&", piece) for piece in pieces)


def test_a_tokenizer_of_hugging_face(raw):
    tokenizers = pytest.importorskip("tokenizers", reason="the library tokenizers is not installed")
    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator(VALID["de"], vocab_size=300, show_progress=False)
    bpe.save(str(raw / "bytes.json"))
    (raw / "bad.json").write_text("{}")
    given = ["own", "de-en", "--from", raw, "--tokenizer"]
    assert "bad.json is no file of a Hugging" in fail(*given, f"hf:{raw}/bad.json", cwd=raw.parent)
    succeed(*given, f"hf:{raw}/bytes.json", cwd=raw.parent)
    data = shutil.move(raw.parent / "data-bin/own.de-en", raw.parent / "moved")  # complete in itself
    assert json.loads((data / "text.json").read_text())["tokenizer"] == "hf:tokenizer.json"
    expected = [bpe.encode(line).tokens for line in VALID["de"]]
    text, _ = load_pair_texts(data, source="de", target="de")
    assert [text.split(line) for line in VALID["de"]] == expected
    assert [text.join(line) for line in expected] == VALID["de"]
    assert binarised(data, "valid", "de-en", "de") == known(expected, data / "dict.de.txt")
    succeed(*given, f"hf:{raw}/bytes.json", "--lowercase", "--dest", "low", cwd=raw.parent)
    text, _ = load_pair_texts(raw.parent / "low", source="de", target="de")
    assert [text.join(text.split(line)) for line in VALID["de"]] == [line.lower() for line in VALID["de"]]


def test_one_file_a_side_is_split_by_its_seed(here):
    """Into exact numbers. A line that occurs twice, on either side, is in train."""
    sides = {lang: [*sentences(lang, 40), *sentences(lang, 9), "same", "same"] for lang in LANGUAGES}
    sides["en"][49] = "other"
    write_files(here / "x", {f"news.2024.{lang}.gz": text_of(lines) for lang, lines in sides.items()})
    chosen = {}
    for name, seed in (("a", []), ("b", ["--seed", 1]), ("c", ["--seed", 2])):
        options = ["--tokenizer", "none", "--subwords", "none", "--dest", name, *seed]
        succeed("own", "de-en", "--from", "x", "--split", "7,5", *options, cwd=here)
        for lang in LANGUAGES:
            assert [len(binarised(here / name, split, "de-en", lang)) for split in SPLITS] == [51 - 12, 7, 5]
        held_out = []
        for split in ("valid", "test"):
            held_out += zip(*((here / name / f"raw/{split}.{lang}").read_text().splitlines() for lang in LANGUAGES))
        assert set(held_out) < set(zip(*sides.values())) and len({*held_out}) == 12
        for number, lang in enumerate(LANGUAGES):
            assert all(sides[lang].count(row[number]) == 1 for row in held_out)
        chosen[name] = held_out
    assert chosen["a"] == chosen["b"] != chosen["c"]


@pytest.mark.parametrize("first", ["--lowercase", "--subwords sentencepiece", "--tokenizer none --subwords none"])
def test_another_corpus_gets_the_vocabulary_of_a_model(first, raw):
    """And is tokenised as the model's, unless told otherwise."""
    here, merges = raw.parent, [] if "none" in first else ["--merges", 20]
    succeed("own", "de-en", "--from", raw, *first.split(), *merges, "--dest", "model", cwd=here)
    record = json.loads((here / "model/text.json").read_text())
    codes = ["--codes", f"model/{record['subwords']}"] if "subwords" in record else []
    vocabulary = [*codes, "--source-dict", "model/dict.de.txt", "--target-dict", "model/dict.en.txt"]
    write_files(here / "other", {f"{s}.{lang}": text_of(sentences(lang, 9, 7)) for s in SPLITS for lang in LANGUAGES})
    given = ["own", "de-en", "--from", "other", "--dest", "news"]
    if codes:
        lacking = prepare(*given, *vocabulary[2:], cwd=here)
        message = f"dict.de.txt is of text with subwords: give --codes model/{record['subwords']} as well"
        assert lacking.returncode == 2 and message in lacking.stderr
    told = succeed(*given, *vocabulary, cwd=here).stdout
    assert "\n  fairseq-plugins fine-tune news --path CKPT --save-dir checkpoints/news\n" in told
    for name in ["text.json", "dict.de.txt", "dict.en.txt", *([record["subwords"]] if codes else [])]:
        assert (here / "news" / name).read_bytes() == (here / "model" / name).read_bytes()
    text, _ = load_pair_texts(here / "model", source="de", target="en")
    pieces = [text.split(line) for line in sentences("de", 9, 7)]
    assert binarised(here / "news", "train", "de-en", "de") == known(pieces, here / "model/dict.de.txt")
    write_files(here / "other", {"other.txt": b""})
    (here / "model/dict.de.txt").write_text("Hund 1\n")
    assert "news was made from other files" in fail(*given, *vocabulary, cwd=here)


def test_one_side_gets_the_vocabulary_and_the_language_of_a_model(raw):
    """Of sentencepiece by its file alone, which has learnt from raw text."""
    here = raw.parent
    write_files(here / "news", {"all.lines": text_of([*sentences("de", 9, 7), "Geht's? Ja."])})
    given = ["own", "lines", "--from", "news", "--split", "2,2"]
    succeed("own", "de", "--from", raw, "--merges", 20, "--dest", "moses", cwd=here)
    succeed(*given, "--codes", "moses/bpe.codes", "--source-dict", "moses/dict.txt", "--dest", "a", cwd=here)
    assert (here / "a/text.json").read_bytes() == (here / "moses/text.json").read_bytes()
    succeed("own", "de", "--from", raw, "--subwords", "sentencepiece", "--merges", 20, "--dest", "pieces", cwd=here)
    (here / "pieces/sentencepiece.bpe.model").rename(here / "any.model")
    (here / "pieces/dict.txt").rename(here / "any.txt")
    succeed(*given, "--codes", "any.model", "--source-dict", "any.txt", "--dest", "b", cwd=here)
    assert (here / "b/text.json").read_bytes() == (here / "pieces/text.json").read_bytes()


def test_a_pair_with_dictionaries_of_single_sides_keeps_its_languages(raw):
    here, words = raw.parent, ["--subwords", "none"]
    for side in LANGUAGES:
        succeed("own", side, "--from", raw, *words, "--dest", side, cwd=here)
    given = ["--source-dict", "de/dict.txt", "--target-dict", "en/dict.txt"]
    succeed("own", "de-en", "--from", raw, *words, *given, "--dest", "pair", cwd=here)
    assert "language" not in json.loads((here / "pair/text.json").read_text())
    for side in LANGUAGES:
        found = binarised(here / "pair", "train", "de-en", side)
        assert found == [" ".join(words[:-1]) for words in binarised_text(here / side, "train")]


def test_lower_cased_lines_and_tokens_are_told_apart(raw):
    here, given = raw.parent, ["own", "de", "--from", raw, "--source-dict", "model/dict.txt", "--dest", "news"]
    succeed("own", "de", "--from", raw, "--subwords", "none", "--lowercase", "--dest", "model", cwd=here)
    record = here / "model/text.json"
    record.write_text(record.read_text().replace("lower tokens", "lower lines"))  # as of AG News
    succeed(*given, cwd=here)
    assert ", given vocabulary, lowercase, not checked\n" in (here / "news/prepared.txt").read_text()
    assert "lowercase tokens, not checked': delete it" in fail(*given, "--lowercase", cwd=here)


def test_tokenised_text_is_warned_of_once_or_left_as_it_is(here):
    lines = ["it &apos;s well @-@ known , ha@@ us", "cafe\u0301 &quot; x", "a third one"] * 3
    write_files(here / "x", {f"{split}.en": text_of(lines) for split in SPLITS})
    given = ["own", "en", "--from", "x", "--dest", "raw"]
    for more in (["--merges", 9], ["--tokenizer", "none", "--subwords", "none", "--work", "w2", "--dest", "none"]):
        lines_told = succeed(*given, *more, cwd=here).stderr.splitlines()
        told = [line for line in lines_told if line.startswith("warning: the text")]
        assert told == [
            "warning: the text of own: 18 of 27 lines look tokenised or split into subwords already (escapes such as "
            "&apos; 18, @-@ 9, @@ 9), and would be so twice: give raw text, or --tokenised to leave it as it is"
        ]
    done = succeed("own", "en", "--from", "x", "--tokenised", "--dest", "as it is", cwd=here)
    assert "look tokenised" not in done.stderr
    assert binarised_text(here / "as it is", "test") == [[*line.split(), "</s>"] for line in lines]
    side = load_side_text(here / "as it is")
    assert [side.join(side.split(line)) for line in lines] == lines


@pytest.mark.parametrize("words", ["x</s> y</s> z</s>", "x@@"])
def test_words_that_subwords_would_not_give_back_are_refused(words, here):
    """The end mark may be the last piece of a word. Moses splits such words."""
    write_files(here / "x", {f"{split}.en": text_of([f"ab {words}"] * 9) for split in SPLITS})
    options = ["own", "en", "--from", "x", "--merges", 3]
    symbol = "train.en has the word </s>, a symbol of fairseq: remove it from your own file"
    error = "/train.en:1: x@@ ends in @@ .*: remove @@" if "@" in words else symbol
    assert re.search(error, fail(*options, "--tokenizer", "none", cwd=here))
    if "@" in words:  # without subwords they may stay, and the text that this leaves is not taken for theirs
        succeed(*options[:4], "--tokenizer", "none", "--subwords", "none", "--dest", "words", cwd=here)
        assert re.search(error, fail(*options, "--tokenizer", "none", cwd=here))
    succeed(*options, cwd=here)


@pytest.mark.parametrize(
    "name, content, error",
    [
        ("dict.txt", b"a 3\nb 2\na 1\n", "dict.txt:3: a is there twice"),
        ("dict.txt", b"\xef\xbb\xbfa 3\nb 2\n", "dict.txt:1: not a line of a dictionary"),
        ("dict.txt", gzip.compress(b"a 3\n", mtime=0), "dict.txt is not text in UTF-8"),
        ("any.codes", b"\xef\xbb\xbf#version: 0.2\na b</w>\n", "any.codes begins with a byte order mark"),
    ],
)
def test_vocabulary_that_would_be_misread_is_refused(name, content, error, here):
    files = {"dict.txt": b"a 3\nb 2\n", "any.codes": b"#version: 0.2\na b</w>\n", name: content}
    write_files(here / "x", {**{f"{split}.en": b"a b\n" for split in SPLITS}, **files})
    given = ["--source-dict", "x/dict.txt", *(["--codes", "x/any.codes"] if name == "any.codes" else [])]
    assert error in fail("own", "en", "--from", "x", *given, cwd=here)
    (here / "x/dict.txt").write_bytes(b"a 3\r\nb 2\r\n")  # fairseq takes it
    succeed("own", "en", "--from", "x", "--source-dict", "x/dict.txt", "--dest", "crlf", cwd=here)


def test_codes_of_the_first_version_and_unigram_models_are_known(here):
    (here / "old").write_text("a b</w>\nc d</w>\n")
    (here / "a.model").write_bytes(b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02")
    options = ["--source-dict", "dict.txt", "--codes"]
    assert options_of(CORPORA["own"], "en", *options, str(here / "old")).subwords == "bpe"
    for kind in ("sentencepiece", "sentencepiece-unigram"):
        model = [*options, str(here / "a.model"), "--subwords", kind]
        assert options_of(CORPORA["own"], "en", *model).subwords == kind


def test_unknown_words_are_told(here):
    """Of dictionaries that are swapped nearly all."""
    texts = {"de": b"ein Haus ist da\n", "en": b"a house is here\n"}
    files = {f"{split}.{side}": text for split in SPLITS for side, text in texts.items()}
    dictionaries = {f"{side}.txt": b"".join(b"%s 1\n" % word for word in text.split()) for side, text in texts.items()}
    write_files(here / "x", {**files, **dictionaries})
    options = ["own", "de-en", "--from", "x", "--source-dict"]
    told = succeed(*options, "x/de.txt", "--target-dict", "x/en.txt", "--dest", "a", cwd=here).stdout
    assert "train.de: 1 lines, 5 tokens with one end mark a line\n" in told
    told = succeed(*options, "x/en.txt", "--target-dict", "x/de.txt", "--dest", "b", cwd=here).stdout
    assert "train.de: 1 lines, 5 tokens with one end mark a line, 80.0 % unknown\n" in told


@pytest.mark.parametrize(
    "name, line, options",
    [("all.de", "Ärger über {}", "own de --split 4,4"), ("deu.txt", "Café {0}\tÄrger über {0}", "tatoeba de-en")],
)
def test_splits_compare_composed_text(name, line, options, here):
    lines = [*map(line.format, "abcdefghijklmnopqrstuvwxyz")]
    decomposed = [unicodedata.normalize("NFD", line) for line in lines]
    write_files(here / "x", {name: text_of([*lines, *decomposed, *(line.format(n) for n in range(9))])})
    done = succeed(*options.split(), "--from", "x", "--subwords", "none", cwd=here)
    assert "in train as well" not in done.stderr


def test_lines_that_are_empty_on_a_side_are_dropped(here):
    sides = {"de": ["a b", "", "c", "d"], "en": ["x", "y", " \u00a0", "z"]}
    files = {f"{split}.{side}": text_of(lines) for split in SPLITS for side, lines in sides.items()}
    write_files(here / "x", files)
    given = ["--from", "x", "--tokenizer", "none", "--subwords", "none"]
    done = succeed("own", "de-en", *given, cwd=here)
    succeed("own", "de", *given, cwd=here)
    for split in SPLITS:
        assert binarised(here / "data-bin/own.de-en", split, "de-en", "en") == ["x", "z"]
        lines = binarised_text(here / "data-bin/own.de", split)
        assert lines == [["a", "b", "</s>"], ["c", "</s>"], ["d", "</s>"]]
    assert (here / "data-bin/own.de-en/raw/test.en").read_text() == "x\nz\n"
    assert "test: 2 pairs with an empty side, dropped" in done.stdout


def test_headlines(here):
    sides = {"article": [*sentences("en", 30), "...", "Words"], "title": [*sentences("en", 30), "Title", "-"]}
    files = {f"{split}.{side}": text_of(lines) for split in SPLITS for side, lines in sides.items()}
    write_files(here / "x", files)
    done = succeed("own", "article-title", "--from", "x", "--headlines", "--subwords", "none", cwd=here)
    assert "train: 2 of 32 items are invalid, removed: no word in article 1, no word in title 1" in done.stdout
    assert "valid: 2 of 32 items are invalid, kept in their places" in done.stdout
    assert "train gigaword doc data-bin/own.article-title" in done.stdout
    record = json.loads((here / "data-bin/own.article-title/text.json").read_text())
    assert record["case"] == "lower tokens"
    train = binarised(here / "data-bin/own.article-title", "train", "article-title", "title")
    assert len(train) == 30 and "don &apos;t" in " ".join(train)


def test_a_name_that_is_no_language_and_paths_with_spaces(here):
    write_files(here / "my text", {"all my.lines": text_of(sentences("fr", 30))})
    options = ["lines", "--from", here / "my text", "--split", "3,2", "--merges", 9, "--dest", "my data"]
    assert "train ptb_small doc 'my data'" in succeed("own", *options, cwd=here).stdout
    assert json.loads((here / "my data/text.json").read_text())["language"] == "en"
