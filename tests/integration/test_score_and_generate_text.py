"""Plain text is scored as its stream is, and beginnings of lines are continued, each by itself."""

import gzip
import io
import json
import math
import re
import subprocess
import sys

import pytest
from binarised_data import copy_data
from commands import ENVIRONMENT, command
from paths import ROOT, SMALL_MODELS

import fairseq_plugins
from fairseq_plugins.commands.language_models import LINES_AT_ONCE
from fairseq_plugins.evaluation.language_model import TrainedLanguageModel

DOC, MOS = (SMALL_MODELS / f"{name}.pt" for name in ("lstm_lm_doc", "mmlstm_lm_mos"))
LINES = ["The dog eats a bone .", "", "A zebra  sings\there .", "the cat"]
TEXT = "".join(f"{line}\n" for line in LINES)


class Terminal(io.BytesIO):
    def isatty(self):
        return True


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Data with the record of its text, as data-prep leaves it."""
    folder = tmp_path_factory.mktemp("prepared") / "data bin"
    return copy_data(SMALL_MODELS / "data/lm", folder, tokenizer="blanks", case="lower tokens")


@pytest.fixture
def score(call):
    """``score(*arguments, typed, stream)``: exit status, lines that are printed, what is told."""

    def score(*arguments, typed=TEXT, **options):
        status, printed, told = call("lm score", *arguments, "--cpu", typed=typed, **options)
        return status, printed.split("\n")[:-1], told

    return score


def test_a_line_for_each_line_in_its_order(prepared, score):
    status, printed, told = score(prepared, "--path", DOC)
    assert status == 0 and [line.split("\t", 3)[3] for line in printed] == LINES
    expected = fairseq_plugins.load(DOC, prepared).score(LINES)
    for line, one in zip(printed, expected):
        log_prob, tokens, unknown, _ = line.split("\t", 3)
        assert float(log_prob) == pytest.approx(one.total, abs=1e-6)
        assert (int(tokens), int(unknown)) == (len(one.tokens), sum(one.unknown))
    assert re.fullmatch(r"4 lines, 17 tokens with end marks, 5 unknown; [\d.]+ s, [\d,]+ tokens/s\n", told)


def test_a_line_for_each_token(prepared, score):
    _, printed, _ = score(prepared, "--path", DOC, MOS, "--per", "token")
    rows = [line.split("\t") for line in printed]
    expected = fairseq_plugins.load([DOC, MOS], prepared).score(LINES)
    flat = [(n, *token) for n, one in enumerate(expected, 1) for token in zip(one.tokens, one.nats, one.unknown)]
    assert [(int(row[0]), row[1], row[4]) for row in rows] == [
        (n, token, "unknown" if unknown else "-") for n, token, _, unknown in flat
    ]
    for row, (_, _, nats, _) in zip(rows, flat):
        assert float(row[2]) == pytest.approx(nats, abs=1e-6)
        assert float(row[3]) == pytest.approx(nats / math.log(2), abs=1e-6)


def test_an_object_for_each_line(prepared, score):
    _, printed, _ = score(prepared, "--path", DOC, "--json")
    found = [json.loads(line) for line in printed]
    assert [(one["line"], one["text"]) for one in found] == list(enumerate(LINES, 1))
    for one in found:
        assert one["log_prob"] == pytest.approx(-sum(one["nats"]))
        assert len({len(one[name]) for name in ("tokens", "nats", "bits", "unknown")}) == 1


def test_raw_and_tokenised_text(prepared, score):
    raw, tokenised = (score(prepared, "--path", DOC, *flags)[1] for flags in ([], ["--tokenised"]))
    assert [line.split("\t")[2] for line in raw] == ["1", "0", "4", "0"]
    assert [line.split("\t")[2] for line in tokenised] == ["2", "0", "5", "0"]
    assert score(prepared, "--path", DOC, "--tokenised", typed=TEXT.lower())[1][0].lower() == raw[0].lower()


def test_documents_are_files(prepared, score, tmp_path):
    lines = [line for line in (ROOT / "tests/builders.py").read_text().split("\n") if line]
    (tmp_path / "one").write_text("\n".join(lines[:9]))
    (tmp_path / "two").write_text("\n".join(lines[9:15]))
    files = ["--input", tmp_path / "one", tmp_path / "two"]
    _, both, _ = score(prepared, "--path", DOC, *files, "--context", "document", "--buffer", 4)
    separate = [score(prepared, "--path", DOC, "--input", file, "--context", "document")[1] for file in files[1:]]
    totals = [[float(line.split("\t")[0]) for line in text] for text in (both, [*separate[0], *separate[1]])]
    assert len(both) == 15 and totals[0] == pytest.approx(totals[1], rel=1e-5)
    assert totals[0] != pytest.approx(
        [float(line.split("\t")[0]) for line in score(prepared, "--path", DOC, *files)[1]]
    )


@pytest.mark.parametrize(
    "stream, flags, buffer",
    [
        (io.BytesIO, [], LINES_AT_ONCE),
        (Terminal, [], 1),
        (Terminal, ["--input", "one.txt"], LINES_AT_ONCE),
        (Terminal, ["--input", "one.txt", "-"], 1),
        (Terminal, ["--buffer", 3], 3),
    ],
)
def test_lines_that_are_typed_are_scored_one_by_one(stream, flags, buffer, prepared, score, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.txt").write_text("the dog\n")
    buffers, score_stream = [], TrainedLanguageModel.score_stream

    def noted(self, lines, **options):
        buffers.append(options["buffer"])
        return score_stream(self, lines, **options)

    monkeypatch.setattr(TrainedLanguageModel, "score_stream", noted)
    assert score(prepared, "--path", DOC, *flags, stream=stream)[0] == 0 and set(buffers) == {buffer}


def test_a_program_that_waits_for_each_answer_gets_it(prepared):
    arguments = command("fairseq_plugins", "lm", "score", prepared, "--path", DOC, "--cpu", "--buffer", 1)
    streams = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=ENVIRONMENT)
    with subprocess.Popen(arguments, **streams) as process:
        for line in ("the dog", "", "the cat"):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            assert process.stdout.readline().endswith(f"\t{line}\n")
        process.stdin.close()
        assert process.stdout.read() == "" and process.wait(timeout=60) == 0


def test_a_picture_shows_the_first_line_that_is_not_blank(prepared, score, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "fairseq_plugins.commands.language_models.draw_surprisal", lambda line, text: drawn.append(line.text)
    )
    monkeypatch.setattr("fairseq_plugins.commands.language_models.save_picture", lambda picture, path: None)
    flags = [prepared, "--path", DOC, "--plot", tmp_path / "surprisal.png"]
    assert score(*flags, typed="\n \nthe dog\nthe cat\n")[0] == 0 and drawn == ["the dog"]
    status, printed, told = score(*flags, typed="\n \n")
    assert status == 2 and len(printed) == 2 and told.endswith("there is no line to draw, all lines are blank\n")


def test_an_empty_file_among_others_has_no_line(prepared, score, tmp_path):
    for name, text in {"one": "the dog\n", "none": "", "nothing": "", "two": "the cat\n"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "none.gz").write_bytes(gzip.compress(b""))
    files = [tmp_path / name for name in ("none", "one", "nothing", "none.gz", "two")]
    status, printed, _ = score(prepared, "--path", DOC, "--input", *files, "-", typed="")
    assert status == 0 and [line.split("\t")[3] for line in printed] == ["the dog", "the cat"]
    status, printed, told = score(prepared, "--path", DOC, "--input", files[2], files[0])
    assert status == 2 and printed == []
    assert re.search("error: .*nothing and .*none is empty: give a sentence a line\n$", told)


def test_what_came_before_a_line_that_is_no_text_is_printed(prepared, score):
    status, printed, told = score(prepared, "--path", DOC, typed=b"the dog\n\nthe \0 cat\n\xff\nthe cat\n")
    assert status == 2 and [line.split("\t", 3)[3] for line in printed] == ["the dog", "", "the \0 cat"]
    assert "error: standard input, line 4: not UTF-8: invalid start byte; convert it" in told.splitlines()[-1]


CASES = ROOT / "tests/cases"


@pytest.fixture(scope="module")
def of_moses(prepared, tmp_path_factory):
    """The same data, of raw text that Moses tokenised."""
    folder = tmp_path_factory.mktemp("of moses") / "data"
    return copy_data(prepared, folder, tokenizer="moses", language="de", case="kept")


@pytest.mark.parametrize("num_times", [1, 300])
def test_tokens_instead_of_raw_text_are_warned_of_once(num_times, of_moses, prepared, score, caplog):
    tokenised = (CASES / "tokenised.en").read_bytes() * num_times
    status, printed, _ = score(of_moses, "--path", DOC, typed=tokenised)
    assert status == 0 and len(printed) == 4 * num_times
    (warning,) = [record.getMessage() for record in caplog.records]
    seen = min(4 * num_times, 1000)
    assert warning.startswith(f"standard input: {seen:,} of {seen:,} lines look tokenised or split into subwords al")
    assert f"(escapes such as &apos; {seen:,}, @-@ {seen // 4}, @@ {seen // 2}, \u2581 {3 * seen // 4})" in warning
    caplog.clear()
    fairseq_plugins.load(DOC, of_moses).score(tokenised.decode().splitlines())
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["the text"]
    caplog.clear()
    score(of_moses, "--path", DOC, "--tokenised", typed=tokenised)
    score(prepared, "--path", DOC, typed=b"It 's a well @-@ known &quot; fact &quot; .\n")  # tokens of its own
    assert not caplog.records


@pytest.mark.parametrize("flags", [[], ["--json"], ["--per", "token"]])
def test_a_terminal_without_the_letters_has_the_scores(flags, prepared, score, monkeypatch):
    line = "the M\u00e4dchen \u2603 \U0001f44d"
    _, expected, _ = score(prepared, "--path", DOC, *flags, typed=line)
    terminal = io.BytesIO()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", io.TextIOWrapper(terminal, encoding="ascii"))
        assert score(prepared, "--path", DOC, *flags, typed=line)[0] == 0
        sys.stdout.flush()
        printed = terminal.getvalue().decode("ascii").splitlines()
    if flags == ["--json"]:
        assert [json.loads(one) for one in printed] == [json.loads(one) for one in expected]
    else:
        letters = {"\\u00e4": "\u00e4", "\\u2603": "\u2603", "\\ud83d\\udc4d": "\U0001f44d"}
        for escaped, letter in letters.items():
            printed = [one.replace(escaped, letter) for one in printed]
        assert printed == expected


# lm generate


@pytest.fixture
def generate(call, prepared):
    """``generate(*flags, typed, path)``: exit status, lines that are printed, what is told."""

    def generate(*flags, typed="The dog\n\nA cat\n", path=DOC):
        status, printed, told = call("lm generate", prepared, "--path", path, *flags, "--cpu", typed=typed)
        return status, printed.split("\n")[:-1], told

    return generate


def test_texts_are_those_of_the_library_and_of_each_line_alone(generate, prepared):
    flags = ["--num", 2, "--seed", 4, "--temperature", 0.8, "--top-k", 9, "--top-p", 0.9, "--max-length", 12]
    status, printed, told = generate(*flags)
    assert (status, told) == (0, "") and len(printed) == 6
    lm = fairseq_plugins.load(DOC, prepared)
    options = dict(num=2, seed=4, temperature=0.8, top_k=9, top_p=0.9, max_length=12)
    prefixes = ["The dog", "", "A cat"]
    assert printed == [one.text for prefix in prefixes for one in lm.continuations(prefix, **options)]
    assert generate(*flags, typed="A cat\n")[1] == printed[4:] and printed[0].startswith("the dog")
    assert generate(*flags, "--seed", 5)[1] != printed


def test_a_beam_search_of_an_ensemble(generate):
    _, printed, _ = generate("--beam", 4, "--num", 3, "--json", "--unknown", "excluded", path=f"{DOC}:{MOS}")
    found = [json.loads(line) for line in printed]
    assert [one["prefix"] for one in found] == [prefix for prefix in ("The dog", "", "A cat") for _ in range(3)]
    for start in (0, 3, 6):
        means = [one["log_prob"] / len(one["tokens"]) for one in found[start : start + 3]]
        assert means == sorted(means, reverse=True)
    assert all("<unk>" not in one["tokens"] and len(one["log_probs"]) == len(one["tokens"]) for one in found)


def test_text_goes_on_after_earlier_text_and_over_the_ends_of_lines(generate, prepared, tmp_path):
    (tmp_path / "earlier.txt").write_text("a cat finds a seed .\nThe dog\n")
    flags = ["--stop", "length", "--max-length", 25, "--after", tmp_path / "earlier.txt"]
    _, (line,), _ = generate(*flags, typed="The\n")
    lm = fairseq_plugins.load(DOC, prepared)
    text = lm.sample("The", after=["a cat finds a seed .", "The dog"], stop="length", max_length=25)
    assert line == text.replace("\n", " </s> ") and " </s> " in line
    (after,), (alone,) = (generate(*given, "--json", typed="The\n")[1] for given in (flags, flags[:-2]))
    assert json.loads(after)["text"] == text and json.loads(after)["log_probs"] != json.loads(alone)["log_probs"]
