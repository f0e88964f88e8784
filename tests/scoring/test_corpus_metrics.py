"""Metrics by sums against those of whole corpora."""

import random
from statistics import fmean

import pytest
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF

from fairseq_plugins.scoring.corpus_metrics import CORPUS_METRICS, RougeMean, check_script

GENERATOR = random.Random(1)
REFERENCES = [
    " ".join(GENERATOR.choices("the cat sat on a mat .".split(), k=GENERATOR.randint(1, 9))) for _ in range(40)
]
HYPOTHESES = [" ".join(word for word in line.split() if GENERATOR.random() < 0.8) for line in REFERENCES]


def of_the_corpus(name, hypotheses, references):
    if name in ("bleu", "chrf"):
        metric = {"bleu": BLEU(force=True), "chrf": CHRF()}[name]
        return metric.corpus_score(hypotheses, [references]).score
    library = RougeScorer([name], use_stemmer=True)
    pairs = zip(references, hypotheses, strict=True)
    return 100 * fmean(library.score(*pair)[name].fmeasure for pair in pairs)


@pytest.mark.parametrize("name", CORPUS_METRICS)
def test_sums_over_parts_give_the_metric_of_the_whole(name):
    metric = CORPUS_METRICS[name]()
    statistics = [metric.statistics(*pair) for pair in zip(HYPOTHESES, REFERENCES)]
    whole = of_the_corpus(name, HYPOTHESES, REFERENCES)
    assert 10 < whole < 99
    assert metric.score(sum(statistics[:7]) + sum(statistics[7:])) == pytest.approx(whole, rel=1e-12)
    assert metric.score(sum(statistics[:7])) == pytest.approx(of_the_corpus(name, HYPOTHESES[:7], REFERENCES[:7]))


@pytest.mark.parametrize("name", CORPUS_METRICS)
def test_no_text_scores_nothing(name):
    metric = CORPUS_METRICS[name]()
    assert metric.score(0 * metric.statistics("", "")) == 0
    assert metric.score(metric.statistics("", "a cat")) == pytest.approx(0, abs=1e-9)


def test_rouge_does_not_count_the_letters_of_escapes():
    metric = CORPUS_METRICS["rouge1"]()
    assert metric.score(metric.statistics("it &apos;s", "it 's")) == 100
    as_they_are = RougeMean("rouge1", escapes="kept")
    assert as_they_are.score(as_they_are.statistics("it &apos;s", "it 's")) == pytest.approx(80)  # it, apos, s: it, s


def test_references_are_in_a_script_that_the_metric_knows():
    references = ["кошка спит &quot;", "собака"]
    for name in CORPUS_METRICS:
        if name in ("bleu", "chrf"):
            check_script(name, references, flag="--metric")
        else:
            with pytest.raises(ValueError, match="line 1 of the references .*: take --metric bleu or chrf$"):
                check_script(name, references, flag="--metric")


@pytest.mark.parametrize("name", ["bleu", "chrf"])
def test_case_counts_unless_it_is_ignored(name):
    pairs = [(line, line.upper()) for line in REFERENCES]
    for case, expected in (("kept", pytest.approx(0, abs=20)), ("ignored", pytest.approx(100))):
        metric = CORPUS_METRICS[name](case=case)
        assert metric.score(sum(metric.statistics(*pair) for pair in pairs)) == expected
