"""Translations read, detokenised and scored by sacreBLEU."""

import json
import random
from dataclasses import asdict

import pytest
import sacrebleu
from sacrebleu.tokenizers import tokenizer_ja_mecab

from fairseq_plugins.cli.evaluate_translation import as_json
from fairseq_plugins.evaluation.translation_scores import Translation, compare, detokenize, read_translation, score


def sentences(seed, num=200):
    draw = random.Random(seed)
    return [" ".join(draw.choice(["ein", "Haus", "das", "steht", "hier", ","]) for _ in range(9)) for _ in range(num)]


def test_detokenised_text_is_written_as_a_reader_expects():
    assert detokenize(["ein Haus , und &quot; ja &quot; !"], language="de") == ['ein Haus, und "ja"!']


def test_headlines_are_detokenised_as_english():
    assert detokenize(["don &apos;t say it &apos;s new"], language="title") == ["don't say it's new"]


def test_scores_are_those_of_sacrebleu():
    hypotheses, references = sentences(1), sentences(2)
    bleu, chrf, tokenized = score(Translation(hypotheses, references, hypotheses), references)
    assert bleu.value == pytest.approx(sacrebleu.corpus_bleu(hypotheses, [references]).score, abs=1e-9)
    assert chrf.value == pytest.approx(sacrebleu.corpus_chrf(hypotheses, [references]).score, abs=1e-9)
    assert "tok:13a" in bleu.signature and "tok:none" in tokenized.signature and 0 < bleu.interval < bleu.value


def test_case_is_ignored_where_it_is_asked():
    references = sentences(2)
    lower = [line.lower() for line in sentences(1)]
    bleu, chrf, _ = score(Translation(lower, lower, lower), references, case="ignored")
    assert bleu.value == pytest.approx(sacrebleu.corpus_bleu(lower, [references], lowercase=True).score, abs=1e-9)
    assert chrf.value == pytest.approx(sacrebleu.CHRF(lowercase=True).corpus_score(lower, [references]).score, abs=1e-9)
    assert "c:lc" in bleu.signature and bleu.value > score(Translation([], [], lower), references)[0].value
    same = [line.lower() for line in references]
    assert [item.value for item in compare(same, lower, references, case="ignored")] == pytest.approx([100, 100])
    assert all(item.other_value == pytest.approx(100) for item in compare(same, same, references, case="ignored"))


def test_languages_without_blanks_have_the_tokeniser_that_sacrebleu_takes_for_them():
    references, hypotheses = ["一只大猫在跑。", "狗在睡觉。"], ["一只大猫在睡觉。", "狗在跑。"]
    bleu, _ = score(Translation([], [], hypotheses), references, language="zh")
    assert "tok:zh" in bleu.signature
    expected = sacrebleu.corpus_bleu(hypotheses, [references], tokenize="zh").score
    assert bleu.value == pytest.approx(expected, abs=1e-9) and bleu.value > 10
    assert {item.metric: item.value for item in compare(references, hypotheses, references, language="zh")} == {
        "BLEU": pytest.approx(100),
        "chrF2": pytest.approx(100),
    }


def test_a_tokeniser_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    with pytest.raises(ValueError, match=r"BLEU of text in ja needs .* pip install 'sacrebleu\[ja\]'"):
        score(Translation([], [], ["a"]), ["a"], language="ja")


def test_figures_survive_json_with_full_precision():
    first, second, references = sentences(1, 30), sentences(2, 30), sentences(3, 30)
    scores = score(Translation(first, references, first), references)
    for other in (first, second):
        comparisons = compare(first, other, references)
        expected = {"scores": [asdict(item) for item in scores], "against": [asdict(item) for item in comparisons]}
        found = json.loads(as_json(scores, comparisons, command="evaluate"))
        assert {name: found[name] for name in expected} == expected and found["command"] == "evaluate"
    assert len(expected["scores"]) == 3 and len(expected["against"]) == 2


def test_paired_bootstrap_tells_a_better_system_from_an_equal_one():
    references = sentences(1)
    worse = [line if n % 2 else "hier steht ein ein ein" for n, line in enumerate(references)]
    better, as_bad = compare(references, worse, references), compare(sentences(3), sentences(4), references)
    assert [item.metric for item in better] == ["BLEU", "chrF2"]
    assert all(item.value > item.other_value and item.p < 0.01 for item in better)
    assert all(item.p > 0.05 for item in as_bad)
    assert all(item.value == item.other_value > 0 and item.p == 1 for item in compare(worse, worse, references))


def test_a_translation_is_read_checked_and_detokenised(tmp_path):
    path = tmp_path / "generate.txt"
    path.write_text("T-0\tja <<unk>>\nH-0\t-1\tja , sagt er !\n")
    options = dict(reference_name="reference", language="de")
    found = read_translation(path, references=["ja, sagt sie!"], **options)
    assert found == Translation(["ja , sagt er !"], ["ja <<unk>>"], ["ja, sagt er!"])
    with pytest.raises(ValueError, match="has 1 lines and reference 2"):
        read_translation(path, references=["ja", "nein"], **options)
    path.write_text("T-0\tja\nH-0\t-1\tj@@ a\n")
    with pytest.raises(ValueError, match="generate.txt, hypotheses, line 1: subword mark @@"):
        read_translation(path, references=["ja"], **options)
