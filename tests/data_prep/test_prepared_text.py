"""Lines, tokens, subwords, filters, work in processes and downloads."""

import errno
import io
import json
import multiprocessing
import os
import random
import time
import zipfile
from argparse import Namespace
from email.message import Message
from urllib.error import HTTPError, URLError

import pytest
from fairseq.data.data_utils import post_process
from paths import ROOT
from preparation import lines, sources, steps, subwords
from preparation.corpora import CORPORA, translation
from preparation.lines import ESCAPES, LONGEST_WORD, DataError
from preparation.parallel_corpus import ParallelCorpus, length_fault
from preparation_runs import binarised, joined, moses, options_of, succeed, words_of
from small_corpora import LANGUAGES, SPLITS, gigaword_items, sentences, text_of, write_files, zipped
from subword_nmt import apply_bpe
from typed_commands import type_command

from fairseq_plugins.evaluation.raw_text import Moses, SideText, SubwordNMT, load_pair_texts, load_side_text

CASES = ROOT / "tests/cases"
PERSIAN = (CASES / "joiners.fa").read_text().splitlines()
ENGLISH = ["I want to read the books.", "The houses of this town are small.", "He goes I know not where."]
TEST_ENGLISH = ["One, two & three.", "Four and five.", "Six [seven]."]


def test_names_that_are_no_code_of_two_letters_have_the_rules_of_english():
    assert {moses(side, False)("don't") for side in ("en", "eng", "src", "tgt", "title")} == {"don &apos;t"}
    assert {moses(side, False)("don't") for side in ("de", "tr")} == {"don &apos; t"}


@pytest.mark.parametrize("name", [name for name in CORPORA if isinstance(CORPORA[name], ParallelCorpus)])
def test_the_recipe_tells_when_case_was_lowered(name):
    corpus = CORPORA[name]
    side = "title" if corpus.pairs == ["article-title"] else "en"
    kept, lower = (options_of(corpus, corpus.pairs[0], flag) for flag in ("--no-lowercase", "--lowercase"))
    assert "lowercase" not in corpus.summary(kept) and corpus.tokenizer(side, kept)("I see .") == "I see ."
    told = "lowercase" if name == "agnews" else "lowercase tokens"
    assert told in corpus.summary(lower).split(", ")
    text, tokens = ("I see . And", "i see . and") if name == "gigaword" else ("I see. No. 5", "i see . no. 5")
    assert corpus.tokenizer(side, lower)(text) == (tokens if name != "agnews" else "i see. no . 5")


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
def test_characters_stay_where_they_were(language, line):
    commands = SideText(Moses(language))
    words = commands.split(line)
    composed = commands.tokenizer.join(words)
    assert composed == " ".join(line.replace("a\u0308", "ä").replace("o\u0308", "ö").replace("u\u0308", "ü").split())
    assert moses(language, lowercase=False)(composed).split() == words


def test_lines_end_at_line_feeds_only():
    content = "\ufeffa\r\nb\rc\u2028d\x85e\n\n\x00f\n  last".encode()
    assert list(lines.decode_lines(io.BytesIO(content), "F")) == ["a", "b c d e", "", "f", "last"]
    assert list(lines.decode_lines([b"a\r"], "F")) == ["a"]  # one line, whichever system wrote it


@pytest.mark.parametrize(
    "row, limits, fault",
    [
        (("a b c", "x y"), (1, 8, 1.5), ""),
        (("a b", "x y z w"), (1, 8, 1.5), "ratio"),
        (("a b", "x y z w"), (1, 8, 0), ""),
        (("", "x"), (1, 8, 1.5), "empty side"),
        (("a " * 9, "x"), (1, 8, 0), "length"),
        (("a", "x y"), (2, 8, 0), "length"),
        (("a b c",), (1, 3, 1), ""),
        (("a b", "x " + "y" * 1000), (1, 8, 1.5), ""),
        (("a b", "x " + "y" * 1001), (1, 8, 1.5), "long word"),
        (("a" * 2000,), (1, 8, 0), ""),
        (("a b c d",), (1, 3, 1), "length"),
    ],
)
def test_length_fault(row, limits, fault):
    assert length_fault(row, Namespace(**dict(zip(("min_length", "max_length", "max_ratio"), limits)))) == fault


# Subwords

each_kind = pytest.mark.parametrize("kind", list(subwords.MODEL_FILES))


@each_kind
def test_subwords_come_apart_and_together(kind, tmp_path):
    """As ``fairseq-generate --remove-bpe`` does it, on words in and outside of what was learnt."""
    tokenise = CORPORA["gigaword"].tokenizer("article", options_of(CORPORA["gigaword"]))
    text = [tokenise(f"{source} {target}") for source, target in gigaword_items(50)]
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        subwords.learn(kind, iter(text), 40, path, ("<unk>",))
    assert paths[0].read_bytes() == paths[1].read_bytes()
    split = subwords.load(kind, paths[0])
    remove = "subword_nmt" if kind == "bpe" else "sentencepiece"
    for line in [*text, "<unk> zebra unk <unk> , ☃ 漢字 x<unk>y", "zebra &amp; don &apos;t", "<unk>", ""]:
        line = tokenise(line)
        pieces = split(line)
        assert post_process(pieces, remove) == line
        assert sum("<unk>" in piece for piece in pieces.split()) == line.split().count("<unk>")
    assert max(len(split(line).split()) for line in text) > max(len(line.split()) for line in text)
    with pytest.raises(DataError, match="nothing to merge"):
        subwords.learn(kind, ["a b", "c"], 30, tmp_path / "c")


def test_a_text_without_repeated_letters_is_too_small_for_bpe(tmp_path):
    with pytest.raises(DataError, match="the text is too small"):
        subwords.learn("bpe", ["ab cd", "ef gh"], 30, tmp_path / "codes")
    assert not (tmp_path / "codes").exists()


def test_both_kinds_learn_the_same_number_of_merges(tmp_path):
    import sentencepiece

    text = [moses(language, False)(line) for language in LANGUAGES for line in sentences(language, 50)]
    subwords.learn("bpe", text, 30, tmp_path / "a")
    codes = (tmp_path / "a").read_text().splitlines()
    assert all(line.startswith("&") for line in codes[31:])  # after the line of the version: what keeps escapes whole
    subwords.learn("sentencepiece", text, 30, tmp_path / "b")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "b"))
    characters = set("".join(text)) - {" "} | {"▁"}
    assert processor.vocab_size() == 3 + len(characters) + 30 + 2 * len(ESCAPES)


@each_kind
def test_escapes_stay_whole_even_those_that_train_lacks(kind, tmp_path):
    subwords.learn(kind, ["don &apos;t", "it &apos;s", "l&apos; eau"] * 9, 14, tmp_path / "model")
    split = subwords.load(kind, tmp_path / "model")
    for word, escape in [(f"{a}{escape}{b}", escape) for escape in ESCAPES for a in ("", "l") for b in ("", "s", "99")]:
        pieces = split(word).split()
        assert any(escape in piece for piece in pieces), pieces
        assert "".join(pieces).replace("@@", "").replace("▁", "") == word


def test_train_is_split_as_it_was_learnt(tmp_path):
    """An escape that is too rare in train to be one piece keeps its pieces, so that no text changes."""
    subwords.learn("bpe", ["the &amp; thing then"] * 9 + ["&quot;"], 3, tmp_path / "model")
    split = subwords.load("bpe", tmp_path / "model")
    assert split("&amp; &quot; &lt;") == "&@@ a@@ m@@ p@@ ; &@@ q@@ u@@ o@@ t@@ ; &lt;"


def test_more_words_than_memory_allows(tmp_path, monkeypatch, capsys):
    """The rarest words are left out."""
    monkeypatch.setattr(subwords, "COUNTED_WORDS", 3)
    assert subwords.count_words(["a a a b b", "c d d d", "e"]) == {"a": 3, "d": 3}
    monkeypatch.setattr(subwords, "LEARNT_WORDS", 1)
    subwords.learn("bpe", ["aa aa bb", "cc dd dd dd"], 2, tmp_path / "model")
    told = capsys.readouterr().err
    assert "more than 3 different words" in told and "learning from the 1 most frequent of" in told
    assert "only 1 merges could be learnt of 2" in told and "d d</w>" in (tmp_path / "model").read_text()


# Text as users have it


def prepare_text(here, subject, *options, **sides):
    """Prepare a set of these sides. Its warnings."""
    files = {f"{split}.{side}": text_of(text[split]) for side, text in sides.items() for split in SPLITS}
    write_files(here / "x", files)
    done = succeed("tatoeba", subject, "--from", "x", *options, cwd=here)
    told = [line for line in done.stderr.splitlines() if line.startswith("warning: ") and "EXPECTED_COUNTS" not in line]
    return "\n".join([*told, *(line for line in done.stdout.splitlines() if "detokenising" in line)])


def test_perfect_translations_of_text_with_joiners_have_bleu_100(here, capsys):
    english = {"train": ENGLISH, "valid": ENGLISH, "test": TEST_ENGLISH}
    told = prepare_text(here, "en-fa", "--merges", 20, fa=dict.fromkeys(SPLITS, PERSIAN), en=english)
    assert "valid.fa: tokenising and detokenising gives 3 of 3 lines back; 0 are changed" in told.splitlines()
    assert "look tokenised" not in told
    data = here / "data-bin/tatoeba.en-fa"
    _, text = load_pair_texts(data, source="en", target="fa")
    pieces = binarised(data, "test", "en-fa", "fa")
    assert [text.join(line.split()) for line in pieces] == PERSIAN
    texts = (f"T-{n}\t{joined(line)}\nH-{n}\t-0.1\t{joined(line)}\n" for n, line in enumerate(pieces))
    (here / "generate.txt").write_text("".join(texts))
    reference = data / "raw/test.fa"
    assert reference.read_text().splitlines() == PERSIAN
    type_command("evaluate bleu", ["--input", str(here / "generate.txt"), "--reference", str(reference), "--json"])
    assert json.loads(capsys.readouterr().out)["scores"][0]["value"] == pytest.approx(100)


def test_accents_are_composed_unless_they_are_to_be_kept(here):
    composed, decomposed = ((CASES / f"{form}.de").read_text().splitlines() for form in ("nfc", "nfd"))
    made = {}
    for form, text in (("nfc", composed), ("nfd", decomposed)):
        prepare_text(here, "de", "--dest", f"{form}.bin", de=dict.fromkeys(SPLITS, text))
        made[form] = [(here / f"{form}.bin" / name).read_bytes() for name in ("dict.txt", "train.bin", "text.json")]
        text_of_side = load_side_text(here / f"{form}.bin")
        assert [text_of_side.split(line) for line in decomposed] == [text_of_side.split(line) for line in composed]
        assert [text_of_side.join(text_of_side.split(line)) for line in decomposed] == composed
    assert made["nfc"] == made["nfd"]
    prepare_text(here, "de", "--no-nfc", "--dest", "kept", de=dict.fromkeys(SPLITS, decomposed))
    kept = load_side_text(here / "kept")
    assert "no NFC" in (here / "kept/prepared.txt").read_text().splitlines()[0]
    assert [kept.join(kept.split(line)) for line in decomposed] == decomposed != composed
    assert {word for line in decomposed for word in kept.split(line)} <= words_of(here / "kept/dict.txt")


def test_warnings(here):
    tokenised = (CASES / "tokenised.en").read_text().splitlines()
    assert prepare_text(here, "de", de={"train": tokenised, "valid": PERSIAN, "test": TEST_ENGLISH}).startswith(
        "warning: the text of tatoeba: 4 of 10 lines look tokenised or split into subwords already (escapes such as "
        "&apos; 4, @-@ 1, @@ 2, \u2581 3), and would be so twice: give raw text\n"
    )
    splits = {"train": ENGLISH, "valid": [*PERSIAN, *ENGLISH[:2]], "test": [ENGLISH[0], *TEST_ENGLISH]}
    told = prepare_text(here, "en", en=splits)
    assert all(warning in told for warning in ("valid: 2 of its ", "test: 1 of its 4 lines are in train as well: "))


# Work in processes


def moody(seed):
    """A worker that is fast and slow by turns."""
    rng = random.Random(f"{seed} {os.getpid()}")

    def work(item):
        if rng.random() < 0.01:
            time.sleep(rng.random() / 20)
        return item, os.getpid()

    return work


def test_workers_of_random_speed_keep_the_order():
    num_items = 12 * lines.CHUNK + 7
    found = list(lines.map_in_order(moody, (1,), iter(range(num_items)), workers=3, label="x"))
    assert [item for item, _ in found] == list(range(num_items)) and len({process for _, process in found}) > 1
    assert list(lines.map_in_order(moody, (1,), [], workers=3, label="x")) == []


@pytest.mark.parametrize("workers", [1, 3])
def test_a_bounded_number_of_lines_is_in_memory(workers):
    read = 0

    def endless():
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


def test_raw_text_is_a_stream(tmp_path):
    alive = most = 0

    class Line(str):
        def __init__(self, text):
            nonlocal alive, most
            alive += 1
            most = max(most, alive)

        def __del__(self):
            nonlocal alive
            alive -= 1

    class Generated(translation.Multi30k):
        def read(self, files, options, scratch):
            return {split: ((Line(f"{n} Haus ."), Line(f"{n} house .")) for n in range(5000)) for split in SPLITS}

    steps.make_text(Generated(), {}, options_of(Generated(), "de-en"), tmp_path)
    assert alive <= 2 and most <= 10 and steps.splits_of(tmp_path) == dict.fromkeys(SPLITS, 5000)


def deadly():
    return lambda item: os._exit(1) if item == lines.CHUNK + 3 else item


def test_a_worker_that_dies():
    with pytest.raises(DataError, match="a process ended while x .*--workers 1"):
        list(lines.map_in_order(deadly, (), range(3 * lines.CHUNK), workers=2, label="x"))


# Archives and downloads


def test_any_flipped_bit_of_an_archive_is_damage_or_nothing(tmp_path):
    text = b"Go.\tGeh.\n" * 3
    content = zipped({"deu.txt": text})
    for place in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        (tmp_path / "a.zip").write_bytes(damaged)
        sound = sources.is_sound(tmp_path / "a.zip")
        try:
            sources.unpack(sources.Text(tmp_path / "a.zip"), {"deu.txt"}, tmp_path)
        except DataError:
            continue
        assert sound and (tmp_path / "deu.txt").read_bytes() == text


def test_an_error_of_the_disk_is_no_damage():
    with pytest.raises(OSError, match="No space left"), sources.damage_reported("a.zip"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(DataError, match="a.zip is truncated or damaged"), sources.damage_reported("a.zip"):
        raise zipfile.BadZipFile


URL = "http://mirror/file.tgz"


class Answer(io.BytesIO):
    """A file of ``size`` bytes, of which those of ``content`` come. It never ends where ``size`` is 0."""

    def __init__(self, content, size):
        super().__init__(content)
        self.headers = {"Content-Length": str(size)}

    def read1(self, size):
        if self.headers["Content-Length"] != "0":
            return super().read1(size)
        time.sleep(0.01)
        return b"x"


def status(code):
    return HTTPError(URL, code, "no", Message(), io.BytesIO())


WHOLE = (b"the file", 8)


@pytest.fixture
def answers(monkeypatch):
    """Answers of the mirror in turn, each an error, or content and size. The pauses between them are left out."""
    left = []

    def answer(request, timeout):
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return Answer(*found)

    monkeypatch.setattr(sources.urllib.request, "urlopen", answer)
    monkeypatch.setattr(sources, "PAUSE", 0.0)
    monkeypatch.setattr(sources, "TIMEOUT", 0.1)
    return left


@pytest.mark.parametrize(
    "errors",
    [
        [status(503)],
        [URLError("refused"), TimeoutError("timed out")],
        [(b"the", 8), status(429)],
        [(b"", 0)],
    ],
    ids=["busy", "network", "cut", "drip"],
)
def test_passing_error_is_tried_again(errors, answers, tmp_path):
    answers += [*errors, WHOLE]
    sources.download([URL], tmp_path / "file.tgz", lambda path: True)
    assert not answers and (tmp_path / "file.tgz").read_bytes() == b"the file"
    assert [path.name for path in tmp_path.iterdir()] == ["file.tgz"]


@pytest.mark.parametrize("errors", [[status(404)], [ValueError("unknown url type")], [status(503)] * 3])
def test_lasting_error_goes_to_the_next_mirror(errors, answers, tmp_path):
    answers += [*errors, WHOLE]
    sources.download([URL] * 2, tmp_path / "file.tgz", lambda path: True)
    assert not answers and (tmp_path / "file.tgz").read_bytes() == b"the file"
    answers += [*errors, *errors]
    with pytest.raises(DataError, match="no mirror worked: download other.tgz by hand"):
        sources.download([URL] * 2, tmp_path / "other.tgz", lambda path: True)
    assert not answers and [path.name for path in tmp_path.iterdir()] == ["file.tgz"]


def test_a_full_disk_is_no_failure_of_a_mirror(answers, tmp_path):
    answers += [WHOLE, WHOLE]
    (tmp_path / "full.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        sources.download([URL] * 2, tmp_path / "full", lambda path: True)
    assert len(answers) == 1


def test_a_long_word_is_learnt_from_and_split_in_stretches(tmp_path, monkeypatch):
    """Models split raw text like that, too. subword-nmt takes minutes for such a word."""
    learnt = []
    learn = subwords.learn_bpe.learn_bpe
    monkeypatch.setattr(
        subwords.learn_bpe,
        "learn_bpe",
        lambda words, *rest, **options: learn(learnt.extend(words) or learnt, *rest, **options),
    )
    x, y = "x" * LONGEST_WORD, "y" * LONGEST_WORD
    subwords.learn("bpe", [f"xy {x}{y}{x}xy"] * 2, 20, tmp_path / "bpe.codes")
    assert sorted(learnt) == [f"{x} 4", "xy 4", f"{y} 2"]
    pieces = subwords.load("bpe", tmp_path / "bpe.codes")(f"xy {x}{y}xy xy")
    assert post_process(pieces, "subword_nmt") == f"xy {x}{y}xy xy"
    assert pieces.split() == SubwordNMT(tmp_path / "bpe.codes").split(f"xy {x}{y}xy xy")
    alone = apply_bpe.BPE(io.StringIO((tmp_path / "bpe.codes").read_text())).segment(x)
    assert f" {alone}@@ " in pieces
