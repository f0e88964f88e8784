"""Tokens, subwords, filters, work in processes and downloads."""

import io
import multiprocessing
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path
from urllib.error import HTTPError, URLError

import pytest
from fairseq.data.data_utils import post_process
from preparation import lines, sources, subwords, tokens
from preparation.corpora import CORPORA, headlines, translation
from preparation.lines import DataError
from preparation.moses import ESCAPES
from preparation.parallel_corpus import ParallelCorpus
from preparation.steps import make_text, splits_of
from preparation.subwords import make_subwords
from preparation.tokens import make_tokens
from preparation_runs import joined, options_of
from small_corpora import LANGUAGES, gigaword_items, sentences

from fairseq_plugins.evaluation.raw_text import Moses, SideText

CASES = Path(__file__).resolve().parents[1] / "cases"

PAIRS = {name: corpus for name, corpus in CORPORA.items() if isinstance(corpus, ParallelCorpus)}


@pytest.mark.parametrize(
    "line, expected",
    [
        ("I see. And", "i see . and"),
        ("I see. And then ... No. 5", "i see . and then ... no. 5"),
        ('Mr. X said: "AT&T"', "mr. x said : &quot; at &amp; t &quot;"),
    ],
)
def test_case_is_lowered_after_the_tokens_were_found(line: str, expected: str) -> None:
    assert tokens.moses("en", lowercase=True)(line) == expected
    assert tokens.moses("en", lowercase=False)(line).lower() == expected


@pytest.mark.parametrize("name", PAIRS)
def test_recipe_tells_the_order(name: str) -> None:
    corpus = PAIRS[name]
    side = "title" if corpus.pairs == ["article-title"] else "en"
    options = options_of(corpus, corpus.pairs[0], "--lowercase")
    tokenise = corpus.tokenizer_of(options)(side, options.lowercase)
    found = "former" if "lowercase" in corpus.recipe(options).split(", ") else "usual"
    assert found == ("former" if name == "agnews" else "usual")
    assert ("lowercase tokens" in corpus.recipe(options).split(", ")) == (found == "usual")
    if name == "agnews":
        assert tokenise("I see. And No. 5") == "i see. and no . 5"
    elif name == "gigaword":
        assert tokenise("I see . And") == "i see . and"
    else:
        assert tokenise("I see. And No. 5") == "i see . and no. 5"


@pytest.mark.parametrize("name", PAIRS)
def test_case_that_is_kept_has_one_order(name: str) -> None:
    corpus = PAIRS[name]
    options = options_of(corpus, corpus.pairs[0], "--no-lowercase")
    assert "lowercase" not in corpus.recipe(options)
    side = "title" if corpus.pairs == ["article-title"] else "en"
    assert corpus.tokenizer_of(options)(side, options.lowercase)("I see .") == "I see ."


TORN = [(path.suffix[1:], line) for path in sorted(CASES.glob("[jn]*.*")) for line in path.read_text().splitlines()]
TORN += [("en", line) for line in (CASES / "emoji.en").read_text().splitlines()]
TORN += [
    ("he", "\u200f\u05e9\u05dc\u05d5\u05dd!\u200f \u2067x\u2069, y"),
    ("ar", "\u0643\u064a\u0641\u061f \u0647\u064e\u0644\u060c \u0600\u0661\u0662"),
    ("hi", "\u0928\u092e\u0938\u094d\u0924\u0947\u0964 \u0915\u094d\u200d\u0937"),
    ("my", "\u1019\u103c\u1014\u103a\u1019\u102c\u104b"),
    ("en", "A flag \U0001f1e9\U0001f1ea, a thumb \U0001f44d\U0001f3fd and 1\ufe0f\u20e3: x\u0332y's z\u0332."),
    ("en", "\u00ad \u200d a \u0301 \u0301b"),
]


@pytest.mark.parametrize("language, line", TORN)
def test_characters_stay_where_they_were(language: str, line: str) -> None:
    commands = SideText(Moses(language))
    words = commands.split(line)
    composed = commands.tokenizer.join(words)
    assert composed == " ".join(line.replace("a\u0308", "ä").replace("o\u0308", "ö").replace("u\u0308", "ü").split())
    assert tokens.moses(language, lowercase=False)(composed).split() == words


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
    tokenise = headlines.Gigaword().tokenizer("article", False)
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


def test_lines_end_at_line_feeds_only() -> None:
    content = "\ufeffa\r\nb\rc\u2028d\x85e\n\n\x00f\n  last".encode()
    assert sources.text_lines(content, "F") == ["a", "b c d e", "", "f", "last"]


def test_length_fault() -> None:
    rows = [("a", "x"), ("a b c", "x y"), ("a b", "x y z w"), ("", "x"), ("a b c d", "x y z"), ("a " * 9, "x")]
    faults = [tokens.length_fault(row, min_length=1, max_length=8, max_ratio=1.5) for row in rows]
    assert faults == ["", "", "ratio", "empty side", "", "length"]
    assert [tokens.length_fault(row, min_length=1, max_length=9, max_ratio=0) for row in rows].count("") == 5
    assert [tokens.length_fault(row, min_length=2, max_length=9, max_ratio=0) for row in rows[:2]] == ["length", ""]
    alone = [tokens.length_fault((line,), min_length=1, max_length=3, max_ratio=1) for line in ["a b c", "", "a b c d"]]
    assert alone == ["", "empty side", "length"]


def moody(seed: int) -> Callable[[int], tuple[int, int]]:
    """A worker that is fast and slow by turns."""
    rng = random.Random(f"{seed} {os.getpid()}")

    def work(item: int) -> tuple[int, int]:
        if rng.random() < 0.01:
            time.sleep(rng.random() / 20)
        return item, os.getpid()

    return work


@pytest.mark.parametrize("workers", [2, 5])
def test_workers_of_random_speed_keep_the_order(workers: int) -> None:
    num_items = 12 * lines.CHUNK + 7
    found = list(lines.map_in_order(moody, (1,), iter(range(num_items)), workers=workers, label="x"))
    assert [item for item, _ in found] == list(range(num_items))
    assert len({process for _, process in found}) > 1


@pytest.mark.parametrize("workers", [1, 3])
def test_a_bounded_number_of_lines_is_in_memory(workers: int) -> None:
    read = 0

    def endless() -> Iterator[int]:
        nonlocal read
        while True:
            read += 1
            yield read

    others = set(multiprocessing.active_children())
    stream = lines.map_in_order(moody, (1,), endless(), workers=workers, label="x")
    for taken in range(1, 10 * lines.CHUNK):
        next(stream)
        assert read - taken <= (lines.CHUNKS_AHEAD * workers + 3) * lines.CHUNK
    stream.close()
    assert set(multiprocessing.active_children()) <= others


def test_the_pipeline_is_a_stream(tmp_path: Path) -> None:
    """From the reader to the files of each step, with a corpus far larger than what may be in memory."""
    alive = most = 0

    class Line(str):
        def __init__(self, text: str) -> None:
            nonlocal alive, most
            alive += 1
            most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    class Generated(translation.Multi30k):
        def read(self, files: object, options: object, scratch: Path) -> dict:
            splits = {"train": 20 * lines.CHUNK, "valid": 3, "test": 3}
            return {
                split: ((Line(f"{n} Haus ."), Line(f"{n} house .")) for n in range(count))
                for split, count in splits.items()
            }

    corpus = translation.Multi30k()
    options = options_of(corpus, "de-en", "--merges", "10", "--workers", "2")
    folders = [tmp_path / name for name in ["text", "tokens", "subwords"]]
    for folder in folders:
        folder.mkdir()
    make_text(Generated(), {}, options, folders[0])
    assert alive <= 2 and most <= 10
    make_tokens(corpus, options, folders[0], folders[1])
    make_subwords((), options, folders[1], folders[2])
    for folder in folders:
        assert splits_of(folder) == {"train": 20 * lines.CHUNK, "valid": 3, "test": 3}
        for n, row in enumerate(lines.read_rows(folder, "train", options.sides)):
            assert all(joined(side).split()[0] == str(n) for side in row)


def test_a_worker_that_dies_is_told() -> None:
    with pytest.raises(DataError, match="a process ended while x .*--workers 1"):
        list(lines.map_in_order(deadly, (), range(3 * lines.CHUNK), workers=2, label="x"))


def deadly() -> Callable[[int], int]:
    return lambda item: os._exit(1) if item == lines.CHUNK + 3 else item


@pytest.mark.parametrize("workers", [2, 3, pytest.param(20, marks=pytest.mark.slow)])
def test_parallel_tokenisation_keeps_the_order(workers: int) -> None:
    text = sentences("de", 4 * lines.CHUNK + 7)
    expected = [tokens.moses("de", False)(line) for line in text]
    assert list(lines.map_in_order(tokens.moses, ("de", False), text, workers=workers, label="x")) == expected
    assert list(lines.map_in_order(tokens.moses, ("de", False), [], workers=workers, label="x")) == []


# Downloads


URL = "http://mirror/file.tgz"


class Answer(io.BytesIO):
    """A file of ``size`` bytes, of which those of ``content`` come."""

    def __init__(self, content: bytes, size: int) -> None:
        super().__init__(content)
        self.headers = {"Content-Length": str(size)}


def status(code: int) -> HTTPError:
    return HTTPError(URL, code, "no", Message(), io.BytesIO())


WHOLE = Answer(b"the file", 8)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list:
    """What the mirror will answer, an error or a file each time; no pause is made."""
    left: list = []

    def answer(request: object, timeout: float) -> Answer:
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return Answer(found.getvalue(), int(found.headers["Content-Length"]))

    monkeypatch.setattr(sources.urllib.request, "urlopen", answer)
    monkeypatch.setattr(sources, "PAUSE", 0.0)
    return left


@pytest.mark.parametrize(
    "errors",
    [[status(503)], [URLError("refused"), TimeoutError("timed out")], [Answer(b"the", 8), status(429)]],
    ids=["busy", "network", "cut"],
)
def test_passing_error_is_tried_again(errors: list, answers: list, tmp_path: Path) -> None:
    answers += [*errors, WHOLE]
    sources.download([(URL, tmp_path / "file.tgz")], lambda path: True)
    assert not answers and (tmp_path / "file.tgz").read_bytes() == b"the file"
    assert [path.name for path in tmp_path.iterdir()] == ["file.tgz"]


@pytest.mark.parametrize("errors", [[status(404)], [ValueError("unknown url type")], [status(503)] * 3])
def test_lasting_error_goes_to_the_next_mirror(errors: list, answers: list, tmp_path: Path) -> None:
    answers += [*errors, WHOLE]
    sources.download([(URL, tmp_path / "file.tgz")] * 2, lambda path: True)
    assert not answers and (tmp_path / "file.tgz").read_bytes() == b"the file"
    answers += [*errors, *errors]
    with pytest.raises(DataError, match="no mirror worked: download other.tgz by hand"):
        sources.download([(URL, tmp_path / "other.tgz")] * 2, lambda path: True)
    assert not answers and [path.name for path in tmp_path.iterdir()] == ["file.tgz"]


class Endless:
    """A file without an announced size that never ends."""

    headers: dict[str, str] = {}

    def __init__(self, block: bytes, seconds: float) -> None:
        self.block, self.seconds = block, seconds

    def __enter__(self) -> "Endless":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def read1(self, size: int) -> bytes:
        time.sleep(self.seconds)
        return self.block


@pytest.mark.parametrize(
    "mirror, limit, told",
    [
        (Endless(b"x", 0.01), {"TIMEOUT": 0.1}, "bytes in 0 seconds"),
        (Endless(b"x" * 1000, 0.0), {"LARGEST": 9000}, "more than 9,000 bytes came"),
        (Endless(b"x" * 1000, 0.01), {"LONGEST": 0.1}, "the file has not ended after"),
        (Answer(b"x", 1 << 40), {}, "it announces 1,099,511,627,776 bytes"),
        (None, {"TIMEOUT": 0.1}, "no answer within 0.1 seconds"),
    ],
    ids=["drip", "large", "long", "announced", "headers"],
)
def test_a_mirror_that_never_ends_is_left(
    mirror: object, limit: dict, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
) -> None:
    def answer(request: object, timeout: float) -> object:
        if mirror is None:
            time.sleep(20)
        return mirror

    monkeypatch.setattr(sources.urllib.request, "urlopen", answer)
    for name, value in {"PAUSE": 0.0, **limit}.items():
        monkeypatch.setattr(sources, name, value)
    with pytest.raises(DataError, match="no mirror worked: download file.tgz by hand"):
        sources.download([(URL, tmp_path / "file.tgz")], lambda path: True)
    assert f"that mirror failed: {told}" in re.sub(r"[0-9]+ bytes in", "bytes in", capsys.readouterr().err)
    assert not list(tmp_path.iterdir())
