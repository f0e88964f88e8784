"""Beginnings of lines are continued, each by itself."""

import io
import json
import re
import shutil
import sys

import pytest
from commands import ROOT

import fairseq_plugins
from fairseq_plugins.cli.generate_text import GenerateText
from fairseq_plugins.output_layers import base

FIXTURES = ROOT / "tests/fixtures/older_checkpoints"
DOC, MOS = (FIXTURES / f"{name}.pt" for name in ("lstm_lm_doc", "mmlstm_lm_mos"))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = shutil.copytree(
        FIXTURES / "data/lm",
        tmp_path_factory.mktemp("prepared") / "data bin",
        ignore=shutil.ignore_patterns("digests.json"),
    )
    (folder / "text.json").write_text('{"tokenizer": "blanks", "case": "lower tokens"}\n')
    return folder


@pytest.fixture
def generate(monkeypatch, capsys, prepared):
    """``generate(*flags, typed, path)``: exit status, lines that are printed, what is told."""

    def generate(*flags, typed="The dog\n\nA cat\n", path=DOC):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.encode())))
        status = 0
        try:
            GenerateText().main([*map(str, [prepared, "--path", path, *flags]), "--cpu"])
        except SystemExit as ended:
            status = ended.code
        printed, told = capsys.readouterr()
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


def test_the_standard_input_is_read_for_one_thing(generate):
    status, printed, told = generate("--after", "-")
    assert (
        status == 2
        and not printed
        and told.endswith(
            "error: --after - and --input -: the standard input is read once, give a file for one of them\n"
        )
    )


def test_the_precision_of_the_output_layer(generate, monkeypatch):
    monkeypatch.setattr(base, "has_native_bfloat16", lambda device: True)
    flags = ["--beam", 1, "--max-length", 4, "--json", "--output-precision"]
    exact, narrow, default = (generate(*given)[1] for given in ([*flags, "float32"], [*flags, "bfloat16"], flags[:-1]))
    assert exact == default != narrow


def test_text_goes_on_after_earlier_text_and_over_the_ends_of_lines(generate, prepared, tmp_path):
    (tmp_path / "earlier.txt").write_text("a cat finds a seed .\nThe dog\n")
    flags = ["--stop", "length", "--max-length", 25, "--after", tmp_path / "earlier.txt"]
    _, (line,), _ = generate(*flags, typed="The\n")
    lm = fairseq_plugins.load(DOC, prepared)
    text = lm.sample("The", after=["a cat finds a seed .", "The dog"], stop="length", max_length=25)
    assert line == text.replace("\n", " </s> ") and " </s> " in line
    (after,), (alone,) = (generate(*given, "--json", typed="The\n")[1] for given in (flags, flags[:-2]))
    assert json.loads(after)["text"] == text and json.loads(after)["log_probs"] != json.loads(alone)["log_probs"]


@pytest.mark.parametrize(
    "flags, told",
    [
        (["--num", 0], "--num 0: give at least 1"),
        (["--max-length", 0], "--max-length 0: give at least 1"),
        (["--seed", -1], "--seed -1: give 0 or more"),
        (["--temperature", 0], "temperature 0.0: give a value above 0"),
        (["--top-p", 2], "top-p 2.0: give a share"),
        (["--beam", 2, "--num", 3], "--num 3 --beam 2: give a beam of at least 3"),
        (["--beam", 2, "--top-k", 3], "--beam: a search draws nothing; leave out"),
        (["--beam", 2, "--seed", 3], "--seed 3: --beam draws nothing, leave out one of them"),
        (["--after", "nowhere.txt"], "nowhere.txt does not exist"),
        (["--input", "nowhere.txt"], "nowhere.txt does not exist"),
    ],
)
def test_wrong_input_is_told_in_one_line(flags, told, generate):
    status, printed, errors = generate(*flags)
    assert status == 2 and printed == [] and re.search(told, errors) and errors.count("\n") == 1
