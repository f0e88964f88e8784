"""Features of n-best lists, tuning against a fine grid, and files of weights."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from builders import FAIRSEQ_ARCHITECTURES, build_encdec, build_fairseqs_own, build_tiny_lm

from fairseq_plugins.evaluation.nbest import Candidate, NBestLists
from fairseq_plugins.evaluation.rescoring import (
    CandidateTexts,
    TuningSet,
    candidate_features,
    marked_kind,
    read_weights,
    tune_weights,
    unknown_share,
)
from fairseq_plugins.metrics.corpus import CORPUS_METRICS, CorpusMetric
from fairseq_plugins.models.sliding_context import stream_model


def test_subwords_are_told_by_their_marks():
    assert marked_kind(["a b", "ne@@ w"]) == "subword_nmt"
    assert marked_kind(["\u2581a b"]) == "sentencepiece"
    assert marked_kind(["a b", "a@@b"]) is None
    assert marked_kind(["a b", "ne@@ w", "a \u2581 b"]) == "subword_nmt"  # the text's own
    assert marked_kind(["a b", "a \u2581 b"]) is None


LISTS = NBestLists(
    candidates=[
        [Candidate("w0 w1 w2", -1.0), Candidate("w3", -2.0), Candidate("w0 w1 w2", -3.0)],
        [Candidate("w3 nowhere w5 w6 w7", -0.5)],
    ],
    sources=["w1 w2", "w3 w4 w5 w6"],
    references=[],
)


def numbers_of(text, dictionary):
    return dictionary.encode_line(text, add_if_not_exist=False).long()


@torch.no_grad()
def log_prob_alone(model, text, source=None):
    target, inputs = numbers_of(text, model.decoder.dictionary), []
    if source is not None:
        read = numbers_of(source, model.encoder.dictionary)
        inputs = [read[None], torch.tensor([len(read)])]
    log_probs = model.eval()(*inputs, target.roll(1)[None])[0][0]
    return log_probs.gather(-1, target[:, None]).sum().item()


@pytest.mark.parametrize("max_tokens", [6, 4096])
def test_features_are_the_lists_scores_lengths_and_log_probabilities(max_tokens):
    lm = build_tiny_lm("mos", dropout_output=0.5).double()
    encdec = build_encdec("lstm_encdec_doc", 19, 23, embed_dim=8, hidden_sizes="8 8").double()
    found = candidate_features(LISTS, {"lm": lm, "encdec": encdec}, max_tokens=max_tokens)
    assert unknown_share(NBestLists([[Candidate("", -1.0)]], [], []), lm) == 0 < unknown_share(LISTS, lm)
    assert found.names == ["list", "length", "lm", "encdec"]
    assert found.is_candidate.tolist() == [[True, True, True], [True, False, False]]
    for sentence, (row, candidates) in enumerate(zip(found.values, LISTS.candidates)):
        expected = [
            [
                candidate.score,
                len(candidate.text.split()),
                log_prob_alone(lm, candidate.text),
                log_prob_alone(encdec, candidate.text, LISTS.sources[sentence]),
            ]
            for candidate in candidates
        ]
        np.testing.assert_allclose(row[: len(candidates)], expected, rtol=1e-9)
        assert not row[len(candidates) :].any()


@pytest.mark.parametrize("arch", FAIRSEQ_ARCHITECTURES)
def test_fairseqs_language_models_score_candidates(arch):
    own = build_fairseqs_own(arch)
    found, expected = (candidate_features(LISTS, {"lm": model}).values for model in (own, stream_model(own)))
    np.testing.assert_array_equal(found, expected)


def test_what_a_model_cannot_read_is_named_before_another_model_scores(monkeypatch):
    lm, encdec = build_tiny_lm("tied"), build_encdec("lstm_encdec", 19, 23, embed_dim=8, hidden_sizes="8 8")
    monkeypatch.setattr(lm, "forward", lambda *_, **__: pytest.fail("the language model has scored"))
    monkeypatch.setattr(encdec, "max_positions", lambda: (5, 14))
    long_candidate = [*LISTS.candidates, [Candidate("w1", -1.0), Candidate("w2 " * 14, -1.0)]]
    broken = [LISTS.candidates[0], [Candidate("w1", -1.0), Candidate("w2", -math.inf)]]
    for model, candidates, sources, message in (
        (lm, broken, [], "sentence 1 of the lists, from 0: the candidate that begins with 'w2' has the score -inf"),
        (torch.nn.Linear(1, 1), LISTS.candidates, [], "last.pt: a Linear scores no text"),
        (encdec, LISTS.candidates, [], "last.pt: an encoder-decoder reads the sources: give them with --source"),
        (
            *(encdec, long_candidate, ["w1"] * 3),
            "sentence 2 of the lists, from 0: the candidate that begins with 'w2 w2 .*' has 15 tokens with the end "
            "mark, and last.pt reads at most 14: leave the candidate out",
        ),
        (
            *(encdec, LISTS.candidates, ["w1 w2", "w3 w4 w5 w6 w7"]),
            "sentence 1 of the lists, from 0: the source that begins with 'w3 w4 w5 w6 w7' has 6 tokens with the end "
            "mark, and last.pt reads at most 5: shorten it or take another",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            candidate_features(NBestLists(candidates, sources, []), {"first.pt": lm, "last.pt": model})


REFERENCES = ["das <<unk>> ist da .", "der Hund läuft ."]


def texts_of(references, language=None, reference=None):
    candidates = [
        [Candidate("das <unk> ist da .", -1.0), Candidate("das Haus ist da .", -2.0)],
        [Candidate("der Hund läuft .", -1.0), Candidate("der Hund .", -2.0)],
    ]
    lists = NBestLists(candidates=candidates, sources=[], references=references)
    return CandidateTexts(lists, reference=reference, language=language, case="kept")


@pytest.mark.parametrize("metric", ["bleu", "rouge1", "rougeL"])
def test_an_unknown_word_matches_no_unknown_word_of_the_lists_references(metric):
    found, (reference, _) = CORPUS_METRICS[metric](case="kept"), texts_of(REFERENCES).references
    unknown, known = (
        found.score(found.statistics(text, reference)) for text in ("das <unk> ist da .", "das Haus ist da .")
    )
    assert unknown <= known < 100


def test_a_blank_reference_of_the_lists_is_refused_where_references_are_read():
    texts = texts_of([REFERENCES[0], " "])
    assert texts.chosen([1, 0]) == ["das Haus ist da .", "der Hund läuft ."]
    with pytest.raises(ValueError, match="the references of the lists, line 2: blank, nothing could be compared"):
        _ = texts.references


@pytest.mark.parametrize("language, lowest, highest", [("zh", 10, 90), (None, -1, 1)])
def test_gains_split_the_language_of_the_texts_as_sacrebleu_does(language, lowest, highest):
    first, second = Candidate("一只大猫在睡觉。", -1.0), Candidate("一只大猫在跑。", -2.0)
    lists = NBestLists([[first, second]], sources=[], references=[second.text])
    bleu, chrf = CandidateTexts(lists, reference=None, language=language, case="kept").gains([1], metric="chrf")
    assert (bleu.metric, chrf.metric) == ("BLEU", "chrF") and chrf.other_value < 99 < chrf.value
    assert lowest < bleu.other_value < highest


def test_raw_references_are_not_compared_with_tokens(tmp_path):
    raw, tokens = ["das Haus ist da.", "der Hund läuft."], ["das Haus ist da .", "der Hund läuft ."]
    path = tmp_path / "references.de"
    path.write_text("\n".join(raw), encoding="utf-8")
    with pytest.raises(ValueError, match=r"references.de is raw text and the lists are tokenised.* give --target-lang"):
        _ = texts_of([], reference=path).references
    assert texts_of([], language="de", reference=path).references == raw
    for text, message in (
        ("eine Katze schläft im Haus\n" * 2, "references.de is not the reference of the text that the list was"),
        ("\n\n", "references.de, line 1: blank, nothing could be compared with it"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            _ = texts_of(REFERENCES, reference=path).references
    for lines in (tokens, ["das Haus ist da", "der Hund läuft"], ["das Haus ist da", "der Hund läuft ."]):
        path.write_text("\n".join(lines), encoding="utf-8")
        assert texts_of([], reference=path).references == lines


@pytest.mark.parametrize(
    "weights",
    [
        '{"list": NaN, "length": 0.0}',
        '{"list": Infinity, "length": 0.0}',
        '{"list": "1.0", "length": 0.0}',
        '{"list": 1.0}',
        '{"list": 1.0, "length": 0.0, "model.pt": 0.5}',
    ],
)
def test_weights_that_are_no_numbers_or_of_other_features_are_refused(weights, tmp_path):
    (tmp_path / "weights.json").write_text(f'{{"metric": "bleu", "weights": {weights}, "digests": {{}}}}')
    with pytest.raises(ValueError, match="weights.json holds no weights: write it with --tune"):
        read_weights(tmp_path / "weights.json")


N, K, F = 30, 6, 3


class Share(CorpusMetric):
    """What is right by what is chosen; its parts do not add up as means do."""

    def statistics(self, hypothesis, reference):
        raise NotImplementedError

    def score(self, total):
        return 100 * total[0] / total[1]


@pytest.fixture
def data():
    generator = np.random.default_rng(3)
    is_candidate = np.arange(K) < generator.integers(1, K + 1, size=N)[:, None]
    values = generator.normal(size=(N, K, F)) * [1, 100, 0.01] * is_candidate[..., None]
    statistics = np.stack([generator.integers(0, 5, (N, K)), generator.integers(5, 9, (N, K))], 2).astype(float)
    return TuningSet(names=list("abc"), values=values, is_candidate=is_candidate, statistics=statistics, metric=Share())


def test_the_score_is_of_the_candidates_that_are_chosen(data):
    for weights in np.random.default_rng(5).normal(size=(5, F)) / [1, 100, 0.01]:
        total = np.zeros(2)
        for n in range(N):
            choices = [data.values[n, k] @ weights for k in range(int(data.is_candidate[n].sum()))]
            total += data.statistics[n, int(np.argmax(choices))]
        assert data.score(weights) == pytest.approx(100 * total[0] / total[1], rel=1e-12)


def test_the_search_comes_near_the_best_of_a_grid(data):
    places = np.linspace(-1, 1, 13)
    grid = max(data.score(np.array(point) / [1, 100, 0.01]) for point in product(places, places, places))
    assert data.score(tune_weights(data, num_restarts=10, seed=1)) >= grid - 0.5
    # the order of the list is the least that is reached
    assert data.score(tune_weights(data, num_restarts=0, seed=1)) >= data.score(np.array([1.0, 0.0, 0.0]))


def test_the_search_finds_the_feature_that_tells_the_best_candidates(data):
    quality = data.statistics[..., 0] / data.statistics[..., 1] * data.is_candidate
    values = np.concatenate([data.values, -0.001 * quality[..., None]], axis=2)
    tuned = replace(data, values=values)
    weights = tune_weights(tuned, num_restarts=2, seed=1)
    assert np.abs(weights).sum() == pytest.approx(1) and weights[3] < 0
    assert tuned.score(weights) >= tuned.score(np.array([0, 0, 0, -1.0]))
    assert (weights == tune_weights(tuned, num_restarts=2, seed=1)).all()


@pytest.mark.parametrize("value", [-123.4, -0.1, 1.0])
def test_a_feature_that_never_differs_or_by_rounding_alone_has_no_say(value, data):
    values = data.values.copy()
    values[..., 0] = np.where(data.is_candidate, value, 0)
    weights = tune_weights(replace(data, values=values), num_restarts=2, seed=1)
    assert np.abs(weights[1:]).max() > 1e-4


def test_what_all_candidates_of_a_sentence_share_has_no_part_in_the_weights(data):
    shift = np.random.default_rng(7).normal(size=(N, 1, F)) * [50, 100, 3]
    shifted = replace(data, values=np.where(data.is_candidate[..., None], data.values + shift, 0))
    found = [tune_weights(one, num_restarts=1, seed=1) for one in (data, shifted)]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)


def test_another_seed_searches_elsewhere(data):
    one, other = (tune_weights(data, num_restarts=1, seed=seed) for seed in (1, 2))
    assert (one != other).any()
