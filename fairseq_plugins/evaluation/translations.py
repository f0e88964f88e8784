"""Translations: detokenised, and scored by sacreBLEU."""

from dataclasses import dataclass
from pathlib import Path
from typing import List, Sequence

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest
from sacremoses import MosesDetokenizer

from fairseq_plugins.evaluation.generated_text import check_pairs, check_words, read_generated

NUM_BOOTSTRAP_SAMPLES = 1000


@dataclass(frozen=True)
class Translation:
    """What a system made of a text, in the order of the text.

    Attributes:
        tokenized: its hypotheses in words.
        tokenized_references: those that fairseq-generate wrote beside them.
        detokenized: the hypotheses as a reader expects them.
    """

    tokenized: List[str]
    tokenized_references: List[str]
    detokenized: List[str]


@dataclass(frozen=True)
class Score:
    """One metric of one system.

    Attributes:
        name: the metric and what it compares.
        value: 0 to 100.
        interval: half the width of the 95 % confidence interval, by bootstrap.
        signature: sacreBLEU's, which two scores must share to be compared.
    """

    name: str
    value: float
    interval: float
    signature: str


def detokenize(lines: Sequence[str], *, language: str) -> List[str]:
    """Undo the tokenisation of Moses."""
    detokenizer = MosesDetokenizer(lang=language)
    return [detokenizer.detokenize(line.split(), unescape=True) for line in lines]


def read_translation(path: Path, *, references: Sequence[str], reference_name: str, language: str) -> Translation:
    """Read the output of ``fairseq-generate`` in the given language.

    Raises:
        ValueError: if it does not belong to the references, is cut short or holds subword marks.
    """
    generated = read_generated(path)
    check_pairs(generated.hypotheses, references, name=str(path), reference_name=reference_name)
    check_words(generated.hypotheses, name=f"{path}, hypotheses")
    check_words(generated.references, name=f"{path}, references")
    return Translation(
        tokenized=generated.hypotheses,
        tokenized_references=generated.references,
        detokenized=detokenize(generated.hypotheses, language=language),
    )


def score(translation: Translation, references: Sequence[str]) -> List[Score]:
    """BLEU and chrF of detokenised text against raw references, and BLEU of the tokens as papers report it."""
    comparisons = (
        ("BLEU, detokenised (sacreBLEU)", BLEU(), translation.detokenized, references),
        ("chrF, detokenised (sacreBLEU)", CHRF(), translation.detokenized, references),
        (
            "BLEU, tokenised (as multi-bleu.perl)",
            BLEU(tokenize="none", smooth_method="none", force=True),
            translation.tokenized,
            translation.tokenized_references,
        ),
    )
    scores = []
    for name, metric, hypotheses, compared in comparisons:
        result = metric.corpus_score(list(hypotheses), [list(compared)], n_bootstrap=NUM_BOOTSTRAP_SAMPLES)
        scores.append(Score(name, float(result.score), float(result._ci), metric.get_signature().format(short=True)))
    return scores


@dataclass(frozen=True)
class Comparison:
    """Two systems on the same references: p is the chance of such a difference between equal systems."""

    metric: str
    value: float
    other_value: float
    p: float


def compare(hypotheses: Sequence[str], others: Sequence[str], references: Sequence[str]) -> List[Comparison]:
    """Paired bootstrap (Koehn 2004) of BLEU and chrF of detokenised text; ``others`` is the baseline."""
    metrics = {"BLEU": BLEU(references=[list(references)]), "chrF": CHRF(references=[list(references)])}
    if list(hypotheses) == list(others):
        same = [metric.corpus_score(list(others), None) for metric in metrics.values()]
        return [Comparison(result.name, value=result.score, other_value=result.score, p=1.0) for result in same]
    systems = [("baseline", list(others)), ("system", list(hypotheses))]
    _, results = PairedTest(systems, metrics, references=None, test_type="bs", n_samples=NUM_BOOTSTRAP_SAMPLES)()
    return [
        Comparison(name, value=outcome[1].score, other_value=outcome[0].score, p=outcome[1].p_value)
        for name, outcome in results.items()
        if name != "System"
    ]
