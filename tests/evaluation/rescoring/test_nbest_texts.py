"""Candidates and references as metrics see them."""

import pytest

from fairseq_plugins.evaluation.rescoring.candidate_lists import Candidate, NBestLists
from fairseq_plugins.evaluation.rescoring.nbest_texts import CandidateTexts
from fairseq_plugins.evaluation.rescoring.tuned_weights import distinct_digests, read_weights
from fairseq_plugins.scoring.corpus_metrics import CORPUS_METRICS

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
    judge, (reference, _) = CORPUS_METRICS[metric](case="kept"), texts_of(REFERENCES).references
    unknown, known, right = (
        judge.score(judge.statistics(text, line))
        for text, line in (
            ("das <unk> ist da .", reference),
            ("das Haus ist da .", reference),
            ("das Haus ist da .", "das Haus ist da ."),
        )
    )
    assert unknown <= known < right


def test_a_blank_reference_of_the_lists_is_refused_where_references_are_read():
    texts = texts_of([REFERENCES[0], " "])
    assert texts.chosen([1, 0]) == ["das Haus ist da .", "der Hund läuft ."]
    with pytest.raises(ValueError, match="the references of the lists, line 2: blank, nothing could be compared"):
        _ = texts.references


def test_metrics_split_the_language_of_the_texts_as_sacrebleu_does():
    judge = texts_of(["一只大猫在跑。", "狗在睡觉。"], language="zh").judge("bleu")
    assert judge.score(judge.statistics("一只大猫在睡觉。", "一只大猫在跑。")) > 10
    by_words = texts_of(REFERENCES).judge("bleu")
    assert by_words.score(by_words.statistics("一只大猫在睡觉。", "一只大猫在跑。")) < 1


def test_weights_do_not_tell_copies_of_a_model_apart(tmp_path):
    for name in ("best.pt", "last.pt"):
        (tmp_path / name).write_bytes(b"model")
    paths = [str(tmp_path / name) for name in ("best.pt", "last.pt")]
    with pytest.raises(ValueError, match="--path: .*best.pt and .*last.pt hold the same model: give one of them"):
        distinct_digests(paths)


def test_raw_references_are_not_compared_with_tokens(tmp_path):
    raw, tokens = ["das Haus ist da.", "der Hund läuft."], ["das Haus ist da .", "der Hund läuft ."]
    path = tmp_path / "references.de"
    path.write_text("\n".join(raw), encoding="utf-8")
    with pytest.raises(ValueError, match=r"references.de is raw text, and the lists are tokens.* give --target-lang"):
        _ = texts_of([], reference=path).references
    assert texts_of([], language="de", reference=path).references == raw
    for lines in (tokens, ["das Haus ist da", "der Hund läuft"], ["das Haus ist da", "der Hund läuft ."]):
        path.write_text("\n".join(lines), encoding="utf-8")
        assert texts_of([], reference=path).references == lines


@pytest.mark.parametrize(
    "weights",
    [
        '{"list": NaN, "length": 0.0}',
        '{"list": Infinity, "length": 0.0}',
        '{"list": 1.0}',
        '{"list": 1.0, "length": 0.0, "model.pt": 0.5}',
    ],
)
def test_weights_that_are_no_numbers_or_of_nothing_are_refused(weights, tmp_path):
    (tmp_path / "weights.json").write_text(f'{{"metric": "bleu", "weights": {weights}, "digests": {{}}}}')
    with pytest.raises(ValueError, match="weights.json holds no weights: write it with --tune"):
        read_weights(tmp_path / "weights.json")
