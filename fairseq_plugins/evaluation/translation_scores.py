"""Translations and headlines against raw references: BLEU and chrF by sacreBLEU, ROUGE, and whether the texts match."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, List, Literal, Optional, Sequence, Tuple

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric
from sacremoses import MosesTokenizer

from fairseq_plugins.evaluation.decoding import read_generated
from fairseq_plugins.evaluation.raw_text import load_detokenizer
from fairseq_plugins.evaluation.tokenizers import Blanks, Moses
from fairseq_plugins.files import name_of, read_lines
from fairseq_plugins.metrics.corpus import (
    CORPUS_METRICS,
    SACREBLEU_METRICS,
    TITLES,
    LetterCase,
    bleu_of_text,
    bootstrap_scores,
    paired_difference,
)
from fairseq_plugins.metrics.rouge import (
    NUM_BOOTSTRAP_SAMPLES,
    UNKNOWN_REFERENCE,
    RougeScore,
    RougeSettings,
    check_tokens,
    score_corpus,
    without_escapes,
)
from fairseq_plugins.options import UserError

TextFormat = Literal["generate", "text"]
"""The output of ``fairseq-generate --remove-bpe``, or plain text, a sentence a line."""


@dataclass(frozen=True)
class Translation:
    """Output of a system, in the order of the text.

    Attributes:
        tokenized: hypotheses in words; empty for a translation that was not made by fairseq-generate.
        tokenized_references: references that fairseq-generate wrote beside them.
        detokenized: the hypotheses as plain text.
    """

    tokenized: List[str]
    tokenized_references: List[str]
    detokenized: List[str]


@dataclass(frozen=True)
class Score:
    """One metric of one system.

    Attributes:
        name: the metric and the texts that it compares.
        value: 0 to 100.
        interval: half the width of the 95 % confidence interval, by bootstrap.
        signature: of sacreBLEU; only scores with the same signature are comparable.
    """

    name: str
    value: float
    interval: float
    signature: str


def detokenize(lines: Sequence[str], *, language: str, data: Optional[Path] = None) -> List[str]:
    """Undo the tokenisation of ``data``, or of Moses; ``language`` may be the side of a headline corpus."""
    tokenizer = load_detokenizer(data, language=language)
    return [tokenizer.join(line.split()) for line in lines]


def read_translation(
    *paths: Path,
    form: TextFormat,
    references: Sequence[str],
    reference_name: str,
    language: str = "",
    data: Optional[Path] = None,
) -> Translation:
    """Read a translation. Files are read as one; ``-`` is the standard input.

    Args:
        form: of the files; only the output of ``fairseq-generate`` is detokenised.
        references: raw text, a sentence each.
        language: of the detokeniser, such as "de".
        data: folder that the models were trained on, or None for tokens of Moses.

    Raises:
        UserError: if the translation does not belong to the references, is cut short or holds subword marks, or a
            reference is blank.
    """
    targets: List[str] = []
    if form == "generate":
        hypotheses, targets = read_generated(*paths)
    else:
        hypotheses = [line for path in paths for line in read_lines(path)]
    name = name_of(*paths)
    check_pairs(hypotheses, references, name=name, reference_name=reference_name)
    check_words(hypotheses, name=f"{name}, hypotheses" if form == "generate" else name, references=references)
    check_words(targets, name=f"{name}, references", references=references)
    check_blank_references(references, name=reference_name)
    if form == "text":
        return Translation(tokenized=[], tokenized_references=[], detokenized=hypotheses)
    readable, readable_targets = (detokenize(lines, language=language, data=data) for lines in (hypotheses, targets))
    check_raw_references(readable_targets, references, name=name, reference_name=reference_name)
    return Translation(tokenized=hypotheses, tokenized_references=targets, detokenized=readable)


def score(
    translation: Translation, references: Sequence[str], *, case: LetterCase = "kept", language: str = ""
) -> List[Score]:
    """BLEU and chrF of detokenised text against raw references, and BLEU of the tokens, if there are any.

    Many papers report the last one. The signatures show ``case`` and the tokeniser of the ``language``. Raises
    UserError if the tokeniser is not installed.
    """
    lowercase = case == "ignored"
    comparisons: List[Tuple[str, Metric, Sequence[str], Sequence[str]]] = [
        (
            "BLEU, detokenised (sacreBLEU)",
            bleu_of_text(case=case, language=language),
            translation.detokenized,
            references,
        ),
        ("chrF, detokenised (sacreBLEU)", CHRF(lowercase=lowercase), translation.detokenized, references),
    ]
    if translation.tokenized:
        plain = BLEU(tokenize="none", smooth_method="none", force=True, lowercase=lowercase)
        texts = translation.tokenized, translation.tokenized_references
        comparisons.append(("BLEU, tokenised (as multi-bleu.perl)", plain, *texts))
    scores = []
    for name, metric, hypotheses, compared in comparisons:
        result = metric.corpus_score(list(hypotheses), [list(compared)], n_bootstrap=NUM_BOOTSTRAP_SAMPLES)
        scores.append(Score(name, float(result.score), float(result._ci), metric.get_signature().format(short=True)))
    return scores


@dataclass(frozen=True)
class Comparison:
    """One metric of a system and a baseline, 0 to 100. ``p`` is the probability that equal systems differ as much."""

    metric: str
    value: float
    other_value: float
    p: float


def compare(
    hypotheses: Sequence[str],
    others: Sequence[str],
    references: Sequence[str],
    *,
    metrics: Iterable[str] = SACREBLEU_METRICS,
    case: LetterCase = "kept",
    language: str = "",
) -> List[Comparison]:
    """Paired bootstrap (Koehn 2004) of detokenised text against the baseline ``others``.

    The metrics are names of :data:`CORPUS_METRICS`. For ``case`` and ``language`` see :func:`score`.
    """
    found = []
    for name in metrics:
        metric = CORPUS_METRICS[name](case=case, language=language)
        system, baseline = (bootstrap_scores(metric, [lines], references) for lines in (hypotheses, others))
        p = paired_difference(system, baseline).p
        found.append(Comparison(TITLES[name], value=float(system[0]), other_value=float(baseline[0]), p=p))
    return found


def read_headlines(
    *paths: Path, form: TextFormat, references: Sequence[Path] = (), data: Optional[Path] = None
) -> List[str]:
    """Plain text, or the best hypotheses of an output of ``fairseq-generate`` as text whose words ROUGE can count.

    In the latter tokens of Moses stay apart, without escapes. Those of other tokenizers, by the record of ``data``, are
    joined. The targets of the output must belong to one of the files of raw references. Raises UserError if the files
    hold no hypothesis, sentences are missing, or the targets belong to no reference.
    """
    if form == "text":
        return [line for path in paths for line in read_lines(path)]
    tokenizer = load_detokenizer(data, language="en")
    is_joined = not isinstance(tokenizer, (Moses, Blanks))
    hypotheses, targets = (
        [tokenizer.join(line.split()) if is_joined else without_escapes(line) for line in lines]
        for lines in read_generated(*paths)
    )
    texts = {str(reference): read_lines(reference) for reference in references}
    for reference, lines in texts.items():
        check_pairs(hypotheses, lines, name=name_of(*paths), reference_name=reference)
    if texts:
        nearest = max(texts, key=lambda name: similarity(targets, texts[name]))
        check_raw_references(targets, texts[nearest], name=name_of(*paths), reference_name=nearest)
    return hypotheses


def score_headlines(
    hypotheses: List[str],
    name: str,
    references: Sequence[Path],
    settings: RougeSettings,
) -> List[RougeScore]:
    """ROUGE of hypotheses against files of references; each hypothesis has a line in each file.

    Raises UserError on unequal numbers of lines, subword marks, no word, another script, or a sentence whose references
    are all blank, with the file and line.
    """
    texts = [read_lines(reference) for reference in references]
    for lines, reference in zip(texts, references):
        check_pairs(hypotheses, lines, name=name, reference_name=str(reference))
    check_words(hypotheses, name=name, references=["".join(lines) for lines in zip(*texts)])
    check_blank_references(["".join(lines) for lines in zip(*texts)], name=name_of(*references))
    check_tokens(list(zip(*texts)), settings)
    return score_corpus(hypotheses, list(zip(*texts)), settings)


# Whether texts can be compared line by line.

SUBWORD_MARKS = ((re.compile(r"@@( |$)"), "@@", "subword_nmt"), (re.compile("\u2581"), "\u2581", "sentencepiece"))

OWN_MARKS = 0.01
"""Share of the lines in which a model may write such marks although the references lack them."""


def check_words(lines: Sequence[str], *, name: str, references: Sequence[str]) -> None:
    """Check that subwords were joined. Raw references show in how many lines such marks belong to the text."""
    for pattern, mark, kind in SUBWORD_MARKS:
        marked = [number for number, line in enumerate(lines, start=1) if pattern.search(line)]
        num_own = sum(mark in line for line in references)
        if len(marked) > num_own + OWN_MARKS * len(lines):
            raise UserError(
                f"{name}, line {marked[0]}: subword mark {mark} left over: generate with --remove-bpe={kind}"
            )


def check_pairs(hypotheses: Sequence[str], references: Sequence[str], *, name: str, reference_name: str) -> None:
    """Check that lists can be compared line by line: they have one length, and a hypothesis holds a word."""
    if len(hypotheses) != len(references):
        raise UserError(
            f"{name} has {len(hypotheses):,} lines and {reference_name} {len(references):,}: line "
            f"{min(len(hypotheses), len(references)) + 1} has no counterpart"
        )
    if not any(line.strip() for line in hypotheses):
        raise UserError(
            f"{name}, line 1: empty, as all lines are: was generation cut short, or is the file of a shard missing?"
        )


def check_blank_references(references: Sequence[str], *, name: str) -> None:
    """Check that no reference is blank."""
    for number, line in enumerate(references, start=1):
        if not line.strip():
            raise UserError(f"{name}, line {number}: blank, nothing could be compared with it: give a reference")


# Whether raw references are the targets that were decoded. Preparation may change case, digits, marks and escapes, and
# a dictionary may lack words or parts of words. So no single line proves that they differ.

FEWEST_LETTERS = 15
"""Targets with fewer letters prove nothing."""

LOWEST_SIMILARITY = 50
"""Lowest :func:`similarity` of a text itself; 71 was measured with dictionaries that lack letters."""

LONGEST_START = 40
"""Characters of a line in a message."""


def similarity(targets: Sequence[str], references: Sequence[str]) -> float:
    """Share of the n-grams of letters of targets that their raw references have, 0 to 100. Other texts have 15 to 30.

    Unknown words do not count. References may have escapes themselves, or targets parts of them.
    """
    precision = CHRF(char_order=4, beta=0, lowercase=True)
    plain = [without_escapes(line) for line in references]
    escaped = [MosesTokenizer.escape_xml(MosesTokenizer(), line) for line in references]
    known = [without_escapes(line.replace(UNKNOWN_REFERENCE, "")) for line in targets]
    return precision.corpus_score(known, [plain, list(references), escaped]).score


def check_raw_references(targets: Sequence[str], references: Sequence[str], *, name: str, reference_name: str) -> None:
    """Check that raw references belong to the decoded text, and that the words of its targets are not joined.

    The targets are those that ``fairseq-generate`` prints beside the hypotheses, with subwords joined. The names of
    both texts are for messages.
    """
    letters = "".join(targets).replace(UNKNOWN_REFERENCE, "")
    if sum(map(str.isalpha, letters)) < FEWEST_LETTERS:
        return
    lines = range(len(targets))
    if similarity(targets, references) < LOWEST_SIMILARITY:
        worst = min(lines, key=lambda n: similarity(targets[n : n + 1], references[n : n + 1]))
        raise UserError(
            f"{reference_name} is not the reference of the text that {name} was decoded from: its line {worst + 1} is "
            f"'{_start(references[worst])}', and decoding printed the target '{_start(targets[worst])}': give the one "
            "that belongs to it"
        )
    if 2 * sum(line.count(" ") for line in targets) < sum(line.count(" ") for line in references):
        joined = max(lines, key=lambda n: references[n].count(" ") - targets[n].count(" "))
        raise UserError(
            f"{name}: the words of target {joined}, '{_start(targets[joined])}', are joined, and in {reference_name} "
            f"they are '{_start(references[joined])}': decode with the kind of subwords that the data have, by --bpe"
        )


def _start(line: str) -> str:
    return line if len(line) <= LONGEST_START else f"{line[:LONGEST_START]} ..."
