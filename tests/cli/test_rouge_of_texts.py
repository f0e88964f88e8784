"""ROUGE of texts that are there, in files or on the standard input."""

import io
import json
import random
import re
import tracemalloc
from statistics import fmean

import pytest
from rouge_score.rouge_scorer import RougeScorer

from fairseq_plugins.cli.evaluate_rouge import EvaluateRouge
from fairseq_plugins.evaluation.translation_scores import score_headlines
from fairseq_plugins.metrics import rouge
from fairseq_plugins.metrics.rouge import METRICS, RougeSettings

TEXTS = {
    "my hypotheses": ["oil prices rise", "police killed the gunman", "rain in spain"],
    "first reference": ["prices of oil rising", "the gunman was killed", "sun"],
    "second reference": ["oil price rises again", "police kill a man", "it rains in spain"],
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, lines in TEXTS.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    return tmp_path


def expected(hypotheses, *references):
    """(F1, recall, precision) of each metric, by the package alone."""
    scorer = RougeScorer(list(METRICS), use_stemmer=True)
    scores = [scorer.score_multi(lines, hypothesis) for hypothesis, *lines in zip(hypotheses, *references)]
    return {
        title: pytest.approx(
            tuple(
                100 * fmean(getattr(score[metric], kind) for score in scores)
                for kind in ("fmeasure", "recall", "precision")
            )
        )
        for metric, title in METRICS.items()
    }


def scored(capsys, *arguments):
    EvaluateRouge().main([*arguments, "--json"])
    found = json.loads(capsys.readouterr().out)
    scores = {score["metric"]: (score["f1"], score["recall"], score["precision"]) for score in found["scores"]}
    return scores, found["signature"]


def test_texts_with_several_references_score_as_rouge_score_says(capsys):
    references = ["--reference", "first reference", "--reference", "second reference"]
    scores, signature = scored(capsys, "--input", "my hypotheses", "--input-format", "text", *references)
    assert scores == expected(*TEXTS.values()) and signature.startswith("#:2|")


@pytest.mark.parametrize(
    "flags, settings",
    [
        ([], RougeSettings()),
        (["--tokenizer", "unicode", "--stemming", "off"], RougeSettings(tokenizer="unicode", stemming="off")),
        (["--max-words", "2"], RougeSettings(max_words=2)),
        (["--max-bytes", "9"], RougeSettings(max_bytes=9)),
    ],
)
def test_flags_are_the_settings_of_the_score(flags, settings, folder, capsys):
    hypotheses, references = ["Öl prices rise", "killed the gunman"], ["Äl price rising", "the gunman killed"]
    (folder / "a").write_text("".join(f"{line}\n" for line in hypotheses))
    (folder / "b").write_text("".join(f"{line}\n" for line in references))
    scores, signature = scored(capsys, *flags, "--input", "a", "--input-format", "text", "--reference", "b")
    found = score_headlines(hypotheses, "a", [folder / "b"], settings)
    assert scores == {one.metric: (one.f1, one.recall, one.precision) for one in found}
    assert signature == settings.signature(num_references=1)


def test_long_lines_take_memory_in_the_sum_of_their_lengths(folder, capsys):
    generator = random.Random(1)
    for name in ("long", "longer"):
        (folder / name).write_text(" ".join(str(generator.randrange(500)) for _ in range(4000)))
    tracemalloc.start()
    scored(capsys, "--input", "long", "--input-format", "text", "--reference", "longer")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20e6  # a table has 16 million entries


def test_there_are_no_more_processes_than_texts_are_for(capsys, monkeypatch):
    monkeypatch.setattr(rouge, "ProcessPoolExecutor", None)
    arguments = ["--input", "my hypotheses", "--input-format", "text", "--reference", "first reference"]
    scores, _ = scored(capsys, *arguments, "--processes", "100000")
    assert scores == expected(TEXTS["my hypotheses"], TEXTS["first reference"])


@pytest.mark.parametrize(
    "line, told",
    [
        ("H-²\t-1\tx", "generated, line 3: '²' is no number of a sentence"),
        (
            "H-999999999999\t-1\tx",
            "generated: sentence 1 has no hypothesis or no reference: was generation cut short, or is "
            "the file of a shard missing?",
        ),
        ("x\ry", "text: its lines end in carriage returns, not in newlines: convert it by tr '\\r' '\\n'"),
    ],
)
def test_lines_that_no_decoder_writes_are_named(line, told, folder, capsys):
    (folder / "generated").write_text(f"T-0\ta\nH-0\t-1\ta\n{line}\n")
    (folder / "text").write_text(line)
    name, form = ("text", "text") if told.startswith("text") else ("generated", "generate")
    with pytest.raises(SystemExit) as error:
        EvaluateRouge().main(["--input", name, "--input-format", form, "--reference", "first reference"])
    assert error.value.code == 2
    assert capsys.readouterr().err == f"python -m fairseq_plugins.cli.evaluate_rouge: error: {told}\n"


def test_several_files_are_one_text(folder, capsys):
    lines = TEXTS["my hypotheses"]
    (folder / "a").write_text(f"{lines[0]}\n")
    (folder / "b").write_text("".join(f"{line}\n" for line in lines[1:]))
    scores, _ = scored(capsys, "--input", "a", "b", "--input-format", "text", "--reference", "first reference")
    assert scores == expected(lines, TEXTS["first reference"])


def test_output_of_fairseq_in_shards_is_one_text(folder, capsys):
    """Each shard has the sentences of its part, in the order of their lengths."""
    shards = {"a": [2, 0], "b": [1]}
    for name, numbers in shards.items():
        pairs = [(n, TEXTS["first reference"][n], TEXTS["my hypotheses"][n]) for n in numbers]
        lines = [f"T-{n}\t{target}\nH-{n}\t-1\t{hypothesis}\n" for n, target, hypothesis in pairs]
        (folder / name).write_text("".join(lines))
    scores, _ = scored(capsys, "--input", "a", "b", "--reference", "first reference")
    assert scores == expected(TEXTS["my hypotheses"], TEXTS["first reference"])


@pytest.mark.parametrize(
    "references, told",
    [
        (["second reference"], "second reference is not the reference of the text that a was decoded from: its line 1"),
        (["second reference", "first reference"], None),
        (["blank"], "blank is not the reference of .*: its line 1 is '', and decoding printed the target 'prices of"),
    ],
)
def test_one_reference_is_that_of_the_decoded_text(references, told, folder, capsys):
    rows = zip(TEXTS["first reference"], TEXTS["my hypotheses"])
    (folder / "a").write_text("".join(f"T-{n}\t{target}\nH-{n}\t-1\t{text}\n" for n, (target, text) in enumerate(rows)))
    (folder / "blank").write_text("\n\n\n")
    arguments = ["--input", "a", *(word for name in references for word in ("--reference", name))]
    if told is None:
        assert scored(capsys, *arguments)[1].startswith("#:2|")
        return
    with pytest.raises(SystemExit) as error:
        EvaluateRouge().main(arguments)
    assert error.value.code == 2 and re.search(told, capsys.readouterr().err)


@pytest.mark.parametrize("flags", [[], ["--input", "-"]])
def test_the_standard_input_is_a_text(flags, monkeypatch, capsys):
    text = "".join(f"{line}\n" for line in TEXTS["my hypotheses"])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    scores, _ = scored(capsys, *flags, "--input-format", "text", "--reference", "first reference")
    assert scores == expected(TEXTS["my hypotheses"], TEXTS["first reference"])


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--input", "empty", "--input-format", "text", "--reference", "first reference"], "empty is empty"),
        (
            ["--input", "my hypotheses", "--input-format", "text", "--reference", "blank"],
            "blank, line 1: blank, nothing could be compared with it: give a reference",
        ),
        (["--input", "my hypotheses", "--reference", "first reference"], "my hypotheses holds no hypothesis: .*"),
        (
            ["--input", "my hypotheses", "--input-format", "text", "--reference", "first reference"]
            + ["--reference", "nowhere"],
            "nowhere does not exist: give a text file",
        ),
        (["--input", "my hypotheses"], "give --reference FILE, the raw text to compare with"),
        (["--input", "a", "--path", "a.pt", "--reference", "first reference"], "--path, --out .* go with DATA, .*"),
        ([".", "--path", "a.pt", "--input", "a", "--out", "o"], "give DATA with --path, to decode, or --input, .*"),
        (["--input", "a", "--split", "valid", "--reference", "first reference"], "--split goes with DATA, which .*"),
        (["--input", "a", "--max-tokens", "9", "--reference", "first reference"], "--max-tokens goes with DATA, .*"),
        ([".", "--path", "a", "--out", "o", "--input-format", "text"], "give DATA .*, with its --input-format, .*"),
        ([".", "--out", "o"], "DATA needs --path CKPT... and --out DIR; .*"),
        (["--input", "a", "--cpu", "--reference", "first reference"], "--cpu goes with DATA, which comes first"),
        (["--processes", "0"], "--processes 0: give at least 1"),
        (["--max-bytes", "-1"], "a limit of -1 bytes: give 0 for no limit, or more"),
        (["--stemming", "maybe"], "argument --stemming: invalid choice: 'maybe' .*"),
    ],
)
def test_what_cannot_be_scored_is_refused_with_one_line(arguments, told, folder, capsys):
    (folder / "empty").touch()
    (folder / "blank").write_text("\n\n\n")
    with pytest.raises(SystemExit) as error:
        EvaluateRouge().main(arguments)
    shown = capsys.readouterr()
    assert error.value.code == 2 and shown.out == ""
    assert re.fullmatch(f"python -m fairseq_plugins.cli.evaluate_rouge: error: {told}\n", shown.err), shown.err
