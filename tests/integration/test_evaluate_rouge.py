"""ROUGE by ``evaluate rouge`` and ``fairseq-generate --scoring rouge``, compared with the package rouge-score."""

import json
import re
import shutil
from statistics import fmean

import fairseq_cli.generate
import pytest
from binarised_data import write_split
from paths import SMALL_MODELS
from rouge_score.rouge_scorer import RougeScorer
from translation_commands import FAIRSEQ_FLAGS

from fairseq_plugins.evaluation.nbest import read_generated
from fairseq_plugins.metrics.rouge import RougeSettings, score_corpus

TEXTS = {
    "hypotheses": ["oil prices rise", "police killed the gunman", "rain in spain"],
    "reference": ["prices of oil rising", "the gunman was killed", "sun"],
    "second reference": ["oil price rises again", "police kill a man", "it rains in spain"],
}


def by_rouge_score(hypotheses, *references):
    """F1, recall and precision of each metric."""
    metrics = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
    scorer = RougeScorer(list(metrics), use_stemmer=True)
    scores = [scorer.score_multi(lines, hypothesis) for hypothesis, *lines in zip(hypotheses, *references)]
    kinds = ("fmeasure", "recall", "precision")
    return {
        title: tuple(100 * fmean(getattr(score[metric], kind) for score in scores) for kind in kinds)
        for metric, title in metrics.items()
    }


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with :data:`TEXTS`."""
    monkeypatch.chdir(tmp_path)
    for name, lines in TEXTS.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    return tmp_path


@pytest.fixture
def scored(printed_by):
    """``scored(*arguments)``: the scores of the command, and its signature."""

    def scored(*arguments):
        found = json.loads(printed_by("evaluate rouge", *arguments, "--input-format", "text", "--json"))
        scores = {score["metric"]: (score["f1"], score["recall"], score["precision"]) for score in found["scores"]}
        return scores, found["signature"]

    return scored


@pytest.mark.usefixtures("folder")
def test_texts_with_several_references_score_as_rouge_score_says(scored):
    scores, signature = scored("--input", "hypotheses", "--reference", "reference", "--reference", "second reference")
    expected = by_rouge_score(*TEXTS.values())
    assert scores == {title: pytest.approx(values) for title, values in expected.items()}
    assert signature.startswith("#:2|")


@pytest.mark.parametrize(
    "flags, settings",
    [
        ([], RougeSettings()),
        (["--tokenizer", "unicode", "--stemming", "off"], RougeSettings(tokenizer="unicode", stemming="off")),
        (["--max-words", "2"], RougeSettings(max_words=2)),
        (["--max-bytes", "9"], RougeSettings(max_bytes=9)),
    ],
)
def test_flags_are_the_settings_of_the_score(flags, settings, folder, scored):
    hypotheses, references = ["Öl prices rise", "killed the gunman"], ["Äl price rising", "the gunman killed"]
    (folder / "a").write_text("".join(f"{line}\n" for line in hypotheses))
    (folder / "b").write_text("".join(f"{line}\n" for line in references))
    scores, signature = scored(*flags, "--input", "a", "--reference", "b")
    found = score_corpus(hypotheses, [[reference] for reference in references], settings)
    assert scores == {one.metric: (one.f1, one.recall, one.precision) for one in found}
    assert signature == settings.signature(num_references=1)


def test_a_split_is_decoded_and_scored(folder, stand_in, printed_by):
    pairs = enumerate(zip(TEXTS["reference"], TEXTS["hypotheses"]))
    (folder / "decoded").write_text("".join(f"T-{n}\t{target}\nH-{n}\t-1\t{text}\n" for n, (target, text) in pairs))
    stand_in("generate", "print(open('decoded').read(), end='')")
    for side in ("article", "title"):
        write_split(folder / "data", f"test.article-title.{side}", [[5, 2]] * 3)
    shutil.copy(SMALL_MODELS / "lstm_encdec_doc.pt", folder / "model.pt")
    given = ["data", "--path", "model.pt", "--reference", "second reference", "reference", "--out", "out"]
    printed = printed_by("evaluate rouge", *given)
    lines = re.findall(r"^(ROUGE-\w)  F1 +(\S+) \+- \S+  recall +(\S+)  precision +(\S+)$", printed, re.M)
    expected = by_rouge_score(*TEXTS.values())
    assert lines == [(title, *(f"{value:.2f}" for value in values)) for title, values in expected.items()]
    assert (folder / "out/rouge.txt").read_text() == printed
    assert (folder / "out/hypotheses.txt").read_text() == (folder / "hypotheses").read_text()


def test_fairseq_generate_prints_the_same_scores(run_here, tmp_path):
    given = [SMALL_MODELS / "data/translation", *FAIRSEQ_FLAGS, "--path", SMALL_MODELS / "lstm_encdec_doc.pt"]
    flags = ["--scoring", "rouge", "--rouge-max-bytes", 8, "--rouge-stemming", "off"]
    (tmp_path / "generate.txt").write_text(run_here(fairseq_cli.generate, *given, *flags))
    hypotheses, references = read_generated(tmp_path / "generate.txt")
    settings = RougeSettings(max_bytes=8, stemming="off")
    scores = score_corpus(hypotheses, [[reference] for reference in references], settings)
    expected = ", ".join(f"{one.metric} F1 {one.f1:.2f} (P {one.precision:.2f}, R {one.recall:.2f})" for one in scores)
    (last_line,) = re.findall("^Generate test with beam=5: (.*)", (tmp_path / "generate.txt").read_text(), re.M)
    assert last_line == f"{expected} {settings.signature(num_references=1, references='dictionary')}"
