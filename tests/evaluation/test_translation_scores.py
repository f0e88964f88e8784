"""Translations read, checked, detokenised and scored by sacreBLEU."""

import gzip
import json
import random
from dataclasses import asdict
from functools import partial

import pytest
import sacrebleu
from fairseq.data import Dictionary
from paths import ROOT
from real_corpora import corpus_folder
from sacremoses import MosesTokenizer
from typed_commands import refused

from fairseq_plugins.commands.evaluate import translation_report
from fairseq_plugins.evaluation.tokenizers import load_tokenizer
from fairseq_plugins.evaluation.translation_scores import (
    LOWEST_SIMILARITY,
    Translation,
    check_pairs,
    check_raw_references,
    check_words,
    compare,
    detokenize,
    headline_words,
    read_translation,
    score,
    similarity,
)
from fairseq_plugins.metrics.rouge import UNKNOWN_REFERENCE
from fairseq_plugins.reports.report import json_text


def sentences(seed, num=200):
    draw = random.Random(seed)
    return [" ".join(draw.choice(["ein", "Haus", "das", "steht", "hier", ","]) for _ in range(9)) for _ in range(num)]


def test_detokenised_text_is_written_as_a_reader_expects_and_headlines_as_english():
    assert detokenize(["ein Haus , und &quot; ja &quot; !"], language="de") == ['ein Haus, und "ja"!']
    assert detokenize(["don &apos;t say it &apos;s new"], language="title") == ["don't say it's new"]


@pytest.mark.parametrize("case, lowercase", [("kept", False), ("ignored", True)])
def test_scores_are_those_of_sacrebleu_with_case_kept_or_ignored(case, lowercase):
    hypotheses, references = [line.lower() for line in sentences(1)], sentences(2)
    bleu, chrf, tokenized = score(Translation(hypotheses, references, hypotheses), references, case=case)
    expected = sacrebleu.corpus_bleu(hypotheses, [references], lowercase=lowercase)
    assert bleu.value == pytest.approx(expected.score, abs=1e-9) and 0 < bleu.interval < bleu.value
    expected = sacrebleu.CHRF(lowercase=lowercase).corpus_score(hypotheses, [references])
    assert chrf.value == pytest.approx(expected.score, abs=1e-9)
    assert "tok:13a" in bleu.signature and "tok:none" in tokenized.signature
    assert ("c:lc" in bleu.signature) == ("c:lc" in tokenized.signature) == lowercase
    lowered = [line.lower() for line in references]
    for item in compare(lowered, lowered, references, case=case):
        assert (item.value == pytest.approx(100)) == (item.other_value == pytest.approx(100)) == lowercase


def test_languages_without_blanks_have_the_tokeniser_that_sacrebleu_takes_for_them():
    references, hypotheses = ["一只大猫在跑。", "狗在睡觉。"], ["一只大猫在睡觉。", "狗在跑。"]
    bleu, _ = score(Translation([], [], hypotheses), references, language="zh")
    assert "tok:zh" in bleu.signature
    expected = sacrebleu.corpus_bleu(hypotheses, [references], tokenize="zh").score
    assert bleu.value == pytest.approx(expected, abs=1e-9) and bleu.value > 10
    assert {item.metric: item.value for item in compare(references, hypotheses, references, language="zh")} == {
        "BLEU": pytest.approx(100),
        "chrF": pytest.approx(100),
    }


def test_figures_survive_json_with_full_precision():
    first, second, references = sentences(1, 30), sentences(2, 30), sentences(3, 30)
    scores = score(Translation(first, references, first), references)
    for other in (first, second):
        comparisons = compare(first, other, references)
        expected = {"scores": [asdict(item) for item in scores], "against": [asdict(item) for item in comparisons]}
        found = json.loads(json_text(translation_report(scores, comparisons).figures))
        assert found == expected
    assert len(expected["scores"]) == 3 and len(expected["against"]) == 2


def test_paired_bootstrap_tells_a_better_system_from_an_equal_one():
    references = sentences(1)
    worse = [line if n % 2 else "hier steht ein ein ein" for n, line in enumerate(references)]
    better, as_bad = compare(references, worse, references), compare(sentences(3), sentences(4), references)
    assert [item.metric for item in better] == ["BLEU", "chrF"]
    assert all(item.value > item.other_value and item.p < 0.01 for item in better)
    assert all(item.p > 0.05 for item in as_bad)
    assert all(item.value == item.other_value > 0 and item.p == 1 for item in compare(worse, worse, references))


def test_a_translation_is_read_checked_and_detokenised(tmp_path):
    path = tmp_path / "generate.txt"
    path.write_text("T-0\tja <<unk>>\nH-0\t-1\tja , sagt er !\n")

    def read(references):
        readable = partial(detokenize, language="de")
        return read_translation(path, form="generate", references={"reference": references}, readable=readable)

    found = read(["ja, sagt sie!"])
    assert found == Translation(["ja , sagt er !"], ["ja <<unk>>"], ["ja, sagt er!"])
    with pytest.raises(ValueError, match="has 1 lines and reference 2"):
        read(["ja", "nein"])
    path.write_text("T-0\tja\nH-0\t-1\tj@@ a\n")
    with pytest.raises(ValueError, match="generate.txt, hypotheses, line 1: subword mark @@"):
        read(["ja"])
    path.write_text("".join(f"T-{n}\t{line}\nH-{n}\t-1\t{line}\n" for n, line in enumerate(OWN)))
    with pytest.raises(ValueError, match="^reference is not the reference of the text that .*generate.txt was decoded"):
        read(OTHER)


@pytest.mark.parametrize("tokenizer", ["moses", "blanks", "characters", "hf:tokenizer.json"])
def test_words_are_those_of_the_tokenizer_of_the_data(tokenizer, tmp_path):
    reference = "ba đồng minh của ông"  # short words, which share few n-grams with their letters apart
    (tmp_path / "text.json").write_text(json.dumps({"tokenizer": tokenizer, "case": "kept"}))
    if tokenizer.startswith("hf:"):  # its words begin with the mark of sentencepiece, which is no subword left over
        library = pytest.importorskip("tokenizers").SentencePieceBPETokenizer()
        library.train_from_iterator([reference], vocab_size=99, show_progress=False)
        library.save(str(tmp_path / "tokenizer.json"))
    path = tmp_path / "generate.txt"
    words = load_tokenizer(tokenizer, language="vi", folder=tmp_path).split(reference)
    path.write_text("".join(f"T-{n}\t{' '.join(words)}\nH-{n}\t-1\t{' '.join(words)}\n" for n in range(9)))
    for readable in (partial(headline_words, data=tmp_path), partial(detokenize, language="vi", data=tmp_path)):
        found = read_translation(path, form="generate", references={"raw": [reference] * 9}, readable=readable)
        assert found.detokenized == [reference] * 9


@pytest.mark.parametrize(
    "line, remedy",
    [("ein Ha@@ us", "--remove-bpe=subword_nmt"), ("Ha@@", "subword_nmt"), ("\u2581ein", "--remove-bpe=sentencepiece")],
)
def test_subword_marks_are_refused_with_their_line(line, remedy):
    with pytest.raises(ValueError, match=f"hyp, line 3: subword mark .*{remedy}"):
        check_words(["ein Haus", "mail@@x.de @ _", line], name="hyp", references=["ein Haus", "an @", "@_"])


@pytest.mark.parametrize("own", ["diff @@ -1 +1 @@", "a block \u2581 here"])
def test_marks_that_the_references_have_are_the_texts_own(own):
    check_words(["ein Haus", own], name="hyp", references=["ein Haus", own])
    check_words(["ein Haus"] * 199 + [own], name="hyp", references=["ein Haus"] * 200)


def test_text_that_cannot_be_compared_is_refused():
    with pytest.raises(ValueError, match="hyp has 1 lines and ref 2: line 2 has no counterpart"):
        check_pairs(["a"], ["a", "b"], name="hyp", reference_name="ref")
    with pytest.raises(ValueError, match="hyp, line 1: empty, as all lines are"):
        check_pairs(["", " "], ["a", "b"], name="hyp", reference_name="ref")
    check_pairs(["", "x"], ["a", "b"], name="hyp", reference_name="ref")


# raw references and the targets that decoding printed

TESTS = ROOT / "tests"


@pytest.mark.parametrize(
    "target, reference",
    [
        ("it &apos;s a small house , isn &apos;t it ?", "It's a small house, isn't it?"),
        ("a well @-@ known &quot; R &amp; D &quot; plan", 'A well-known "R&D" plan'),
        ("it costs at AT &amp; amp ; T &amp; lt ; 3 $", "It costs at AT&amp;T &lt; 3$"),  # it has the escapes itself
        ("AT&amp;T rises", "AT&amp;T rises"),  # of no tokeniser
        ("it &apos;s &quot; x &quot;", 'it&apos;s "x"'),
        ("sie wohnt in der STRASSE ##", "Sie wohnt in der Straße 17"),
        ("le chat d &apos; Anne", "le chat d'Anne"),
        ("\u6211 \u7231 \u4f60 \u3002", "\u6211\u7231\u4f60\u3002"),
        (f"the {UNKNOWN_REFERENCE} of {UNKNOWN_REFERENCE} rises", "the price of oil rises"),
        (f"{UNKNOWN_REFERENCE}", "anything at all"),
        (f"{UNKNOWN_REFERENCE} rises , {UNKNOWN_REFERENCE}", "oil rises, again"),
        ("...", "!"),
    ],
)
def test_a_target_is_its_raw_reference_in_other_marks(target, reference):
    check_raw_references([target] * 20, {"b": [reference] * 20}, name="a")


def characters(line, missing):
    """A line as fairseq prints it that was split into characters, some of which the dictionary lacks."""
    dictionary = Dictionary()
    pieces = [f"{one}@@" for word in line.split() for one in word[:-1]] + [word[-1] for word in line.split()]
    for piece in pieces:
        if piece[0] not in missing:
            dictionary.add_symbol(piece)
    split = " ".join(" ".join([*(f"{one}@@" for one in word[:-1]), word[-1]]) for word in line.split())
    tokens = dictionary.encode_line(split, add_if_not_exist=False)
    return dictionary.string(tokens.int(), "subword_nmt", escape_unk=True)


def targets_of(lines, language, missing):
    tokenizer = MosesTokenizer(lang=language)
    return [characters(" ".join(tokenizer.tokenize(line, escape=True)), missing) for line in lines]


MISSING = ("", "&", ";", "&;q", "&u", "eXYZ#&")


def check_corpus(lines, language):
    """A text is its own reference, whatever the dictionary lacks. Others are found."""
    for missing in MISSING:
        assert similarity(targets_of(lines, language, missing), lines) > 1.2 * LOWEST_SIMILARITY
    half, targets = len(lines) // 2, targets_of(lines, language, "&;")
    for texts in ((targets[1:], lines[:-1]), (targets[:half], lines[-half:]), (targets, lines[::-1])):
        assert similarity(*texts) < 0.8 * LOWEST_SIMILARITY


def test_a_text_is_told_from_others_whatever_the_dictionary_lacks():
    sides = {}
    for language in ("de", "en"):
        with gzip.open(ROOT / f"fairseq_plugins/demo_corpus/test.{language}.gz", "rt", encoding="utf-8") as file:
            sides[language] = file.read().splitlines()[:60]
        check_corpus(sides[language], language)
    assert similarity(targets_of(sides["en"], "en", "&"), sides["de"]) < 0.8 * LOWEST_SIMILARITY
    for name in ("escapes.en", "nfd.de", "joiners.fa", "joiners.si", "emoji.en"):  # words that tokenisers tear
        lines = (TESTS / "cases" / name).read_text(encoding="utf-8").splitlines()
        for missing in MISSING:
            assert similarity(targets_of(lines, name[-2:], missing), lines) > LOWEST_SIMILARITY


@pytest.mark.data
@pytest.mark.parametrize("language", ["de", "en"])
def test_real_texts_are_told_from_others(language):
    for name in (f"newstest2013/newstest2013.{language}.gz", f"multi30k/val.{language}.gz"):
        with gzip.open(corpus_folder(name.split("/")[0]) / name.split("/")[1], "rt", encoding="utf-8") as file:
            check_corpus([line for line in file.read().splitlines() if line.strip()][::60], language)


OTHER = ["der Preis von Gold steigt", "eine Katze schläft im Haus", "morgen regnet es in Berlin", "er singt ein Lied"]
OWN = ["the price of oil rises", "police kill a gunman", "stocks fall on Monday", "it rains in London"]


@pytest.mark.parametrize(
    "targets, references, message",
    [
        (OWN, OTHER, "b is not the reference of the text that a was decoded from: its line [1-4] is '"),
        (OWN, OWN[1:] + OWN[:1], "its line [1-4] is '.*', and decoding printed the target '"),
        (OWN, ["x" * 1000] * 4, r"its line 1 is 'x{40} \.\.\.', and decoding printed the target 'the price of"),
        (OWN, [""] * 4, "its line 1 is ''"),
        ([line.replace(" ", "") for line in OWN], OWN, "the words of target 0, 'thepriceofoilrises', are joined"),
    ],
)
def test_another_text_is_refused(targets, references, message):
    with pytest.raises(ValueError, match=message):
        check_raw_references(targets, {"b": references}, name="a")


def test_lists_refuse_what_is_no_language(tmp_path, capsys):
    for name, content in (("list", "H-0\t-1\txy zab\n"), ("reference", "xyzab\n"), ("model.pt", "")):
        (tmp_path / name).write_text(content)
    files = ["--path", tmp_path / "model.pt", "--input", tmp_path / "list", "--reference", tmp_path / "reference"]
    told = refused("rescore", [tmp_path, *files, "--tune", tmp_path / "weights", "--target-lang", "xx"], capsys)
    assert "--target-lang xx: not a language; give a code, such as de" in told
