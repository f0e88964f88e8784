"""ROUGE against the rouge-score package and by hand."""

import random

import numpy as np
import pytest
from rouge_score import rouge_scorer

from fairseq_plugins.evaluation.translation_scores import headline_words
from fairseq_plugins.metrics import rouge as rouge_module
from fairseq_plugins.metrics.rouge import (
    METRICS,
    NO_HYPOTHESIS_HAS_THIS,
    Rouge,
    RougeScorer,
    RougeScorerConfig,
    RougeSettings,
    check_tokens,
    score_corpus,
)

WORDS = "police kill killed the gunman of oil prices rises rising in u.s. 3,000 co-operation's markets".split()


def draw(num_texts, *, seed, shortest=0, longest=14):
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=generator.randint(shortest, longest))) for _ in range(num_texts)]


@pytest.mark.parametrize("stemming", ["on", "off"])
def test_a_thousand_pairs_score_as_rouge_score_says(stemming):
    library = rouge_scorer.RougeScorer(list(METRICS), use_stemmer=stemming == "on")
    rouge = Rouge(RougeSettings(stemming=stemming))
    pairs = list(zip(draw(1000, seed=1), draw(1000, seed=2)))
    assert [rouge.score(hypothesis, [reference]) for hypothesis, reference in pairs] == [
        library.score(reference, hypothesis) for hypothesis, reference in pairs
    ]


def test_the_corpus_score_is_the_mean_and_lies_amid_its_interval():
    hypotheses, references = draw(300, seed=1), draw(300, seed=2)
    library = rouge_scorer.RougeScorer(list(METRICS), use_stemmer=True)
    expected = [library.score(reference, hypothesis) for hypothesis, reference in zip(hypotheses, references)]
    for metric, result in zip(METRICS, score_corpus(hypotheses, [[line] for line in references], RougeSettings())):
        values = 100 * np.array([scores[metric] for scores in expected])
        assert [result.precision, result.recall, result.f1] == pytest.approx(values.mean(axis=0), rel=1e-12)
        standard_error = values[:, 2].std() / 300**0.5
        assert result.f1_interval == pytest.approx(1.96 * standard_error, rel=0.1)


def test_rouge_by_hand():
    scores = Rouge(RougeSettings(stemming="off")).score("police kill the gunman", ["police killed the gunman"])
    assert scores["rouge1"].fmeasure == 3 / 4 and scores["rougeL"].fmeasure == 3 / 4
    assert scores["rouge2"].fmeasure == pytest.approx(1 / 3)
    assert Rouge(RougeSettings()).score("police kill the gunman", ["police killed the gunman"])["rouge2"].fmeasure == 1


def test_of_several_references_the_best_counts_for_each_metric():
    rouge = Rouge(RougeSettings())
    scores = rouge.score("oil prices rising", ["rising prices oil", "oil prices fall again today"])
    assert scores["rouge1"].fmeasure == 1 and scores["rouge2"].recall == 1 / 4


@pytest.mark.parametrize(
    "settings, text, cut",
    [
        (dict(max_bytes=7), "oil prices", "oil pri"),
        (dict(max_bytes=3), "für", "fü"),
        (dict(max_bytes=2), "für", "f"),
        (dict(max_words=2), "oil  prices rise", "oil prices"),
        ({}, "oil  prices", "oil  prices"),
    ],
)
def test_limits_cut_both_texts(settings, text, cut):
    rouge = Rouge(RougeSettings(**settings))
    assert rouge.cut(text) == cut
    assert rouge.score(text, [text]) == Rouge(RougeSettings()).score(cut, [cut])


def test_other_scripts_need_the_unicode_tokeniser():
    hypotheses, references = ["日本 の 石油", "prices rising"], [["日本 の 価格"], ["prices rise"]]
    with pytest.raises(ValueError, match="line 1 of the references has no word in a-z and 0-9.*unicode"):
        check_tokens(references, RougeSettings())
    check_tokens([*references, ["oil prices"]], RougeSettings())
    check_tokens(references, RougeSettings(tokenizer="unicode"))
    rouge_1, *_ = score_corpus(hypotheses, references, RougeSettings(tokenizer="unicode"))
    assert rouge_1.f1 == pytest.approx(100 * (3 / 5 + 1) / 2)


def test_what_stands_for_an_unknown_word_is_in_no_script():
    unknown = [[f"日本 の {NO_HYPOTHESIS_HAS_THIS}"], [NO_HYPOTHESIS_HAS_THIS]]
    with pytest.raises(ValueError, match="line 1 of the references has no word .* reads: take it$"):
        check_tokens(unknown, RougeSettings(), remedy="take it")


@pytest.mark.parametrize(
    "text, words",
    [
        ("Für Häuser, 3 prices", "für häuser 3 price"),
        ("re\u0301sume\u0301", "résumé"),
        ("हिन्दी भाषा में", "हिन्दी भाषा में"),
        ("مَرْحَبًا", "مَرْحَبًا"),
        ("İstanbul", "i̇stanbul"),
        ("石油2日", "石 油 2 日"),
        ("น้ำมัน", "น้ ำ มั น"),
        ("a_b", "a b"),
    ],
)
def test_the_unicode_tokeniser_keeps_letters_with_their_marks(text, words):
    assert Rouge(RougeSettings(tokenizer="unicode")).tokenizer.tokenize(text) == words.split()


def test_a_text_scores_all_against_itself_escapes_or_not():
    lines = ["Moody &apos;s cuts AT &amp;amp; T", "the B&regional bank &lt; &#91; x"]
    scores = score_corpus(lines, [[line] for line in lines], RougeSettings())
    assert [score.f1 for score in scores] == [100, 100, 100]
    assert headline_words(lines) == ["Moody 's cuts AT &amp; T", "the B&regional bank < [ x"]


@pytest.mark.parametrize(
    "settings, message",
    [
        (dict(max_bytes=-1), "a limit of -1 bytes: give 0 for no limit"),
        (dict(max_bytes=75, max_words=10), "give one of them"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        RougeSettings(**settings)
    with pytest.raises(ValueError, match=message):  # before anything is decoded
        RougeScorer(RougeScorerConfig(**{f"rouge_{name}": value for name, value in settings.items()}))


def test_a_corpus_without_a_text_is_refused():
    with pytest.raises(ValueError, match="no text"):
        score_corpus([], [], RougeSettings())


def test_the_signature_tells_all_settings_apart():
    settings = [{}, dict(stemming="off"), dict(tokenizer="unicode"), dict(max_bytes=75), dict(max_words=75)]
    signatures = [RougeSettings(**options).signature(num_references=n) for options in settings for n in (1, 2)]
    signatures.append(RougeSettings().signature(num_references=1, references="dictionary"))
    assert len(set(signatures)) == 11


def test_fairseqs_scorer_counts_unknown_words_of_the_reference_and_no_escapes():
    scorer = RougeScorer(RougeScorerConfig())
    scorer.add_string("the <<unk>> &apos;s oil", "the <unk> &apos;s oil")
    rouge_1 = scorer.scores()[0]
    assert rouge_1.precision == rouge_1.recall == 75
    assert scorer.score() == 75
    assert (
        "ROUGE-1 F1 75.00 (P 75.00, R 75.00)" in scorer.result_string() and "ref:dictionary" in scorer.result_string()
    )


def test_a_text_of_too_many_words_is_refused(monkeypatch):
    monkeypatch.setattr(rouge_module, "LONGEST", 20)
    short, long = ["oil prices"] * 2, [["oil " * 20], ["oil prices " * 10 + "rise"]]
    with pytest.raises(ValueError, match="the text that begins with 'oil prices .* has 21 words, .* at most 20: limit"):
        score_corpus(short, long, RougeSettings())
    score_corpus(short, long, RougeSettings(max_words=20))
