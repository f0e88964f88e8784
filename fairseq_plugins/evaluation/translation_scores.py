"""Translations and headlines beside raw references: whether the texts match, and BLEU and chrF by sacreBLEU."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterable, List, Literal, Mapping, Optional, Sequence, Tuple

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric
from sacremoses import MosesTokenizer

from fairseq_plugins.evaluation.nbest import read_generated
from fairseq_plugins.evaluation.raw_text import load_detokenizer
from fairseq_plugins.evaluation.tokenizers import Blanks, Moses
from fairseq_plugins.files import name_of, read_lines
from fairseq_plugins.metrics.bootstrap import NUM_BOOTSTRAP_SAMPLES, paired_difference
from fairseq_plugins.metrics.corpus import (
    CORPUS_METRICS,
    SACREBLEU_METRICS,
    TITLES,
    LetterCase,
    bleu_of_text,
    bootstrap_scores,
)
from fairseq_plugins.metrics.rouge import UNKNOWN_REFERENCE, without_escapes
from fairseq_plugins.options import UserError

TextFormat = Literal["generate", "text"]
"""The output of ``fairseq-generate --remove-bpe``, or plain text, a sentence a line."""


@dataclass(frozen=True)
class Translation:
    """Output of a system, in the order of the text.

    Attributes:
        tokenized: hypotheses in words; empty for a translation that was not made by fairseq-generate.
        tokenized_references: references that fairseq-generate wrote beside them.
        detokenized: the hypotheses as text that metrics compare with raw references.
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


def headline_words(lines: Sequence[str], *, data: Optional[Path] = None) -> List[str]:
    """Text whose words ROUGE can count.

    Tokens of Moses stay apart, without escapes. Tokens of other tokenizers, by the record of ``data``, are joined.
    """
    if isinstance(load_detokenizer(data, language="en"), (Moses, Blanks)):
        return list(map(without_escapes, lines))
    return detokenize(lines, language="en", data=data)


def read_translation(
    *paths: Path,
    form: TextFormat,
    references: Mapping[str, Sequence[str]],
    readable: Callable[[Sequence[str]], List[str]],
) -> Translation:
    """Read a translation or headlines. Files are read as one; ``-`` is the standard input.

    Args:
        form: of the files; only the output of ``fairseq-generate`` is made readable.
        references: lines of the files of raw text by name. A hypothesis has a line in each.
        readable: makes text of lines of tokens, such as :func:`detokenize`.

    Raises:
        UserError: if the translation does not belong to the references, is cut short or holds subword marks, or a
            sentence has only blank references.
    """
    name = name_of(*paths)
    tokenized, targets = read_generated(*paths) if form == "generate" else ([], [])
    detokenized, readable_targets = readable(tokenized), readable(targets)
    if form == "text":
        detokenized = [line for path in paths for line in read_lines(path)]
    for reference, lines in references.items():
        check_pairs(detokenized, lines, name=name, reference_name=reference)
    check_blank_references(references)
    joined = ["".join(lines) for lines in zip(*references.values())]
    check_words(detokenized, name=f"{name}, hypotheses" if form == "generate" else name, references=joined)
    check_words(readable_targets, name=f"{name}, references", references=joined)
    check_raw_references(readable_targets, references, name=name)
    return Translation(tokenized=tokenized, tokenized_references=targets, detokenized=detokenized)


def score(
    translation: Translation, references: Sequence[str], *, case: LetterCase = "kept", language: str = ""
) -> List[Score]:
    """BLEU and chrF of detokenised text against raw references, and BLEU of the tokens, if there are any.

    Many papers report the tokenised BLEU. The signatures show ``case`` and the tokeniser of the ``language``. Raises
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


def check_blank_references(references: Mapping[str, Sequence[str]]) -> None:
    """Check that each sentence has a reference that is not blank. References are lines of files by name."""
    for number, lines in enumerate(zip(*references.values()), start=1):
        if not "".join(lines).strip():
            raise UserError(
                f"{' and '.join(references)}, line {number}: blank, nothing could be compared with it: give a reference"
            )


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
    escape = MosesTokenizer().escape_xml
    escaped = list(map(escape, references))
    known = [without_escapes(line.replace(UNKNOWN_REFERENCE, "")) for line in targets]
    return precision.corpus_score(known, [plain, list(references), escaped]).score


def check_raw_references(targets: Sequence[str], references: Mapping[str, Sequence[str]], *, name: str) -> None:
    """Check that raw references belong to the decoded text, and that the words of its targets are not joined.

    ``fairseq-generate`` prints the targets beside the hypotheses, with subwords joined. The ``name`` of the text and
    the names of the references are for messages. Of several references one must belong to the text.
    """
    letters = "".join(targets).replace(UNKNOWN_REFERENCE, "")
    if sum(map(str.isalpha, letters)) < FEWEST_LETTERS:
        return
    similarities = {reference: similarity(targets, lines) for reference, lines in references.items()}
    nearest = max(similarities, key=similarities.__getitem__)
    lines, numbers = references[nearest], range(len(targets))
    if similarities[nearest] < LOWEST_SIMILARITY:
        worst = min(numbers, key=lambda n: similarity(targets[n : n + 1], lines[n : n + 1]))
        raise UserError(
            f"{nearest} is not the reference of the text that {name} was decoded from: its line {worst + 1} is "
            f"'{_start(lines[worst])}', and decoding printed the target '{_start(targets[worst])}': give the one that "
            "belongs to it"
        )
    if 2 * sum(line.count(" ") for line in targets) < sum(line.count(" ") for line in lines):
        joined = max(numbers, key=lambda n: lines[n].count(" ") - targets[n].count(" "))
        raise UserError(
            f"{name}: the words of target {joined}, '{_start(targets[joined])}', are joined, and in {nearest} "
            f"they are '{_start(lines[joined])}': decode with the kind of subwords that the data have, by --bpe"
        )


def _start(line: str) -> str:
    return line if len(line) <= LONGEST_START else f"{line[:LONGEST_START]} ..."
