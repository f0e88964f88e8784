"""Metrics by sums against those of whole corpora."""

import random
import tracemalloc
from dataclasses import astuple
from statistics import fmean

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from fairseq_plugins.metrics.bootstrap import SAMPLES_AT_ONCE, SEED, bootstrap_means, paired_difference
from fairseq_plugins.metrics.corpus import CORPUS_METRICS, RougeMean, bootstrap_scores, check_script

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


WORDS = [f"w{i}" for i in range(30)]


def draw_references(number):
    return [" ".join(random.choices(WORDS, k=random.randint(5, 12))) for _ in range(number)]


def spoil(references, rate):
    """The references with a share of the words exchanged."""
    return [
        " ".join(random.choice(WORDS) if random.random() < rate else w for w in line.split()) for line in references
    ]


def paired_bootstrap(metric, system, baseline, references):
    return paired_difference(*(bootstrap_scores(metric, runs, references) for runs in (system, baseline)))


def test_samples_are_those_of_all_sentences_drawn_at_once():
    statistics = [np.random.default_rng(run).integers(0, 9, size=(70, 3)) for run in range(2)]
    draws = np.random.default_rng(SEED).multinomial(70, np.full(70, 1 / 70), size=1000)
    expected = [np.mean([one.sum(axis=0)[0] for one in statistics])]
    expected += [np.mean([(draw @ one)[0] for one in statistics]) for draw in draws]
    found = bootstrap_means(lambda total: total[0], statistics)
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_memory_does_not_grow_with_samples_times_sentences():
    statistics = [np.ones((20_000, 4))]
    tracemalloc.start()
    bootstrap_means(lambda total: total[0], statistics)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3.5 * 8 * SAMPLES_AT_ONCE * 20_000


@pytest.fixture(autouse=True)
def seed():
    random.seed(1)


@pytest.mark.parametrize("name", ["bleu", "chrf", "rouge1", "rouge2", "rougeL"])
def test_a_better_system_is_found_whatever_the_metric(name):
    references = draw_references(200)
    system, baseline = ([spoil(references, rate) for _ in range(2)] for rate in (0.1, 0.2))
    metric = CORPUS_METRICS[name]()
    found = paired_bootstrap(metric, system, baseline, references)
    means = [
        np.mean([metric.score(sum(metric.statistics(*pair) for pair in zip(run, references))) for run in runs])
        for runs in (system, baseline)
    ]
    assert found.value == pytest.approx(means[0] - means[1]) and found.value > found.interval > 0
    assert found.p == pytest.approx(1 / 1001)
    other = paired_bootstrap(metric, baseline, system, references)
    assert (other.value, other.interval, other.p) == pytest.approx((-found.value, found.interval, found.p))


def test_one_run_each_is_sacrebleus_test_which_counts_one_side_alone():
    references = draw_references(300)
    system, baseline = spoil(references, 0.2), spoil(references, 0.22)
    found = paired_bootstrap(CORPUS_METRICS["bleu"](), [system], [baseline], references)
    systems = [("baseline", baseline), ("system", system)]
    _, results = PairedTest(systems, {"BLEU": BLEU(references=[references])}, None, test_type="bs", n_samples=1000)()
    theirs, ours = results["BLEU"]
    assert found.value == pytest.approx(ours.score - theirs.score)
    assert 0.02 < ours.p_value < 0.2 and found.p == pytest.approx(2 * ours.p_value, abs=0.03)


def test_equal_systems_do_not_differ():
    references = draw_references(50)
    text = spoil(references, 0.3)
    found = paired_bootstrap(CORPUS_METRICS["rouge1"](), [text, text], [text], references)
    assert (found.value, found.interval, found.p) == (0, 0, 1)


def test_the_interval_is_that_of_95_percent():
    references = draw_references(300)
    system, baseline = spoil(references, 0.2), spoil(references, 0.3)
    metric = CORPUS_METRICS["rouge1"]()
    found = paired_bootstrap(metric, [system], [baseline], references)
    f1 = [[100 * metric.statistics(*pair)[0] for pair in zip(run, references)] for run in (system, baseline)]
    standard_error = np.subtract(*f1).std() / len(references) ** 0.5
    assert found.interval == pytest.approx(1.96 * standard_error, rel=0.1)


def test_runs_of_systems_may_differ_in_number_and_seeds_narrow_no_interval():
    references = draw_references(200)
    system, baseline = spoil(references, 0.1), spoil(references, 0.2)
    metric = CORPUS_METRICS["rouge1"]()
    once = paired_bootstrap(metric, [system], [baseline], references)
    again = paired_bootstrap(metric, [system] * 3, [baseline] * 2, references)
    assert astuple(again) == pytest.approx(astuple(once))
