"""Translations and headlines against raw references: BLEU and chrF by sacreBLEU, ROUGE, and whether the texts match."""

import sys
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Collection, Dict, List, Optional, Sequence, Set, Tuple

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest, Result

from fairseq_plugins.data.text import name_of, read_lines
from fairseq_plugins.evaluation.decoding import check_pairs, check_words, read_generated
from fairseq_plugins.evaluation.moses import MosesWords
from fairseq_plugins.evaluation.raw_text import SIDE_LANGUAGES
from fairseq_plugins.metrics.corpus import LetterCase, bleu_of_text
from fairseq_plugins.metrics.rouge import (
    MOSES_ESCAPES,
    UNKNOWN_REFERENCE,
    RougeScore,
    RougeSettings,
    check_tokens,
    score_corpus,
    without_escapes,
)
from fairseq_plugins.options import UserError

NUM_BOOTSTRAP_SAMPLES = 1000


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


def detokenize(lines: Sequence[str], *, language: str) -> List[str]:
    """Undo the tokenisation of Moses; ``language`` may be the side of a headline corpus."""
    moses = MosesWords(SIDE_LANGUAGES.get(language, language))
    return [moses.join(line.split()) for line in lines]


def read_translation(*paths: Path, references: Sequence[str], reference_name: str, language: str) -> Translation:
    """Read the output of ``fairseq-generate`` in the given language.

    Args:
        paths: files that are read as one; ``-`` is the standard input.
        references: raw text, a sentence each.
        reference_name: name of the references in messages.
        language: of the detokeniser, such as "de".

    Raises:
        UserError: if the output does not belong to the references, is cut short or holds subword marks, or a reference
            is blank.
    """
    generated = read_generated(*paths)
    name = name_of(*paths)
    check_pairs(generated.hypotheses, references, name=name, reference_name=reference_name)
    check_words(generated.hypotheses, name=f"{name}, hypotheses", references=references)
    check_words(generated.references, name=f"{name}, references", references=references)
    check_blank_references(references, name=reference_name)
    check_raw_references(generated.references, references, name=name, reference_name=reference_name)
    return Translation(
        tokenized=generated.hypotheses,
        tokenized_references=generated.references,
        detokenized=detokenize(generated.hypotheses, language=language),
    )


def read_plain_translation(*paths: Path, references: Sequence[str], reference_name: str) -> Translation:
    """Read a translation that was not made by fairseq-generate, a detokenised sentence a line.

    Raises:
        UserError: if it does not belong to the references or holds subword marks, or a reference is blank.
    """
    lines = [line for path in paths for line in read_lines(path)]
    name = name_of(*paths)
    check_pairs(lines, references, name=name, reference_name=reference_name)
    check_words(lines, name=name, references=references)
    check_blank_references(references, name=reference_name)
    return Translation(tokenized=[], tokenized_references=[], detokenized=lines)


def score(
    translation: Translation, references: Sequence[str], *, case: LetterCase = "kept", language: str = ""
) -> List[Score]:
    """BLEU and chrF of detokenised text against raw references, and BLEU of the tokens, if there are any.

    Many papers report the last one. The signatures show ``case`` and the tokeniser of the ``language``.

    Raises:
        UserError: if the tokeniser is not installed.
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
    """One metric of two systems on the same references.

    Attributes:
        metric: its name.
        value: of the system, 0 to 100.
        other_value: of the baseline.
        p: probability of such a difference between equal systems.
    """

    metric: str
    value: float
    other_value: float
    p: float


def compare(
    hypotheses: Sequence[str],
    others: Sequence[str],
    references: Sequence[str],
    *,
    case: LetterCase = "kept",
    language: str = "",
) -> List[Comparison]:
    """Paired bootstrap (Koehn 2004) of BLEU and chrF of detokenised text against the baseline ``others``.

    For ``case`` and ``language`` see :func:`score`.
    """
    metrics: Dict[str, Metric] = {
        "BLEU": bleu_of_text(case=case, language=language),
        "chrF": CHRF(lowercase=case == "ignored"),
    }
    if list(hypotheses) == list(others):
        same = [metric.corpus_score(list(others), [list(references)]) for metric in metrics.values()]
        return [Comparison(result.name, value=result.score, other_value=result.score, p=1.0) for result in same]
    systems: List[Tuple[str, Sequence[str]]] = [("baseline", list(others)), ("system", list(hypotheses))]
    _, results = PairedTest(
        systems, metrics, references=[list(references)], test_type="bs", n_samples=NUM_BOOTSTRAP_SAMPLES
    )()
    found = []
    for name, (baseline, system) in results.items():
        if isinstance(baseline, Result) and isinstance(system, Result):  # not the row of the systems' names
            assert system.p_value is not None
            found.append(Comparison(name, value=system.score, other_value=baseline.score, p=system.p_value))
    return found


def read_headlines(*paths: Path, references: Sequence[Path] = ()) -> List[str]:
    """The best hypotheses of an output of ``fairseq-generate``, without the escapes of the Moses tokeniser.

    Args:
        paths: files that are read as one; ``-`` is the standard input.
        references: files of raw text. The targets of the output must belong to one of them.

    Raises:
        UserError: if the files hold no hypothesis, sentences are missing, or the targets belong to no reference.
    """
    generated = read_generated(*paths)
    texts = {str(reference): read_lines(reference) for reference in references}
    for reference, lines in texts.items():
        check_pairs(generated.hypotheses, lines, name=name_of(*paths), reference_name=reference)
    if texts:
        nearest = min(texts, key=lambda name: compare_with_references(generated.references, texts[name]).num_other)
        check_raw_references(generated.references, texts[nearest], name=name_of(*paths), reference_name=nearest)
    return [without_escapes(line) for line in generated.hypotheses]


def score_headlines(
    hypotheses: List[str],
    name: str,
    references: Sequence[Path],
    settings: RougeSettings,
    *,
    num_processes: Optional[int] = None,
    show_progress: bool = False,
) -> List[RougeScore]:
    """ROUGE of hypotheses against files of references, a reference a line.

    Args:
        hypotheses: in the order of the references.
        name: name of the hypotheses in messages.
        references: files; each hypothesis has one reference in each file.
        settings: of the score.
        num_processes: see :func:`~fairseq_plugins.metrics.rouge.score_corpus`.
        show_progress: draw a bar.

    Raises:
        UserError: on unequal numbers of lines, subword marks, no word, another script, or a sentence whose references
            are all blank, with the file and line.
    """
    texts = [read_lines(reference) for reference in references]
    for lines, reference in zip(texts, references):
        check_pairs(hypotheses, lines, name=name, reference_name=str(reference))
    check_words(hypotheses, name=name, references=["".join(lines) for lines in zip(*texts)])
    check_blank_references(["".join(lines) for lines in zip(*texts)], name=name_of(*references))
    check_tokens(list(zip(*texts)), settings)
    return score_corpus(
        hypotheses,
        list(zip(*texts)),
        settings,
        num_processes=num_processes,
        show_progress=show_progress,
    )


# Whether raw references are the targets that were decoded.
#
# Preparation may change case, digits, marks and the characters that Moses escapes. A dictionary may lack words or parts
# of words. So no single line proves that a reference is wrong. All lines count together: the letters of a target are
# looked for in its reference, and a text is another one if they are missing from many lines.

LONGEST_START = 40
"""Characters of a line in a message."""

NUM_LETTERS = 4
"""Length of the parts of a target that are looked for. Shorter parts occur in too many other lines of the language."""

OTHER_LINES = 0.25
"""Share of lines without most of their parts above which a text is another one."""

FEWEST_PARTS = 15
"""Fewest parts in all such lines together; fewer, such as those of one short line, prove nothing."""

QUOTES = "\"'`\u00b4\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f\u00ab\u00bb\u2039\u203a"
"""Marks that preparation may have replaced by one another before it wrote them as escapes."""


def check_blank_references(references: Sequence[str], *, name: str) -> None:
    """Check that no reference is blank.

    Raises:
        UserError: for the first that is.
    """
    for number, line in enumerate(references, start=1):
        if not line.strip():
            raise UserError(f"{name}, line {number}: blank, nothing could be compared with it: give a reference")


def check_raw_references(targets: Sequence[str], references: Sequence[str], *, name: str, reference_name: str) -> None:
    """Check that references belong to the decoded text, and warn if the comparison is inconclusive.

    Args:
        targets: tokenised, as ``fairseq-generate`` prints them beside the hypotheses, with subwords joined.
        references: raw, as many.
        name: of the decoded text, in messages.
        reference_name: of the references.

    Raises:
        UserError: if they are of another text, or the words of the targets are joined.
    """
    found = compare_with_references(targets, references)
    if found.first_other is not None:
        target, reference = targets[found.first_other], references[found.first_other]
        lines = (
            f"its line {found.first_other + 1} is '{_start(reference)}', and decoding printed the target "
            f"'{_start(target)}'"
        )
        if found.is_other_text:
            raise UserError(
                f"{reference_name} is not the reference of the text that {name} was decoded from: {lines}: give the "
                "one that belongs to it"
            )
        warn_once(
            f"warning: {found.num_other:,} of {len(targets):,} lines of {reference_name} have little in common with "
            f"what {name} was decoded from: {lines}"
        )
    elif 2 * found.num_compared < len(targets):
        num_unknown = len(targets) - found.num_compared
        warn_once(
            f"warning: whether {reference_name} is the reference of the text that {name} was decoded from cannot be "
            f"seen: the dictionary knows too little of {num_unknown:,} of {len(targets):,} targets"
        )
    if found.first_joined is not None:
        target, reference = targets[found.first_joined], references[found.first_joined]
        raise UserError(
            f"{name}: the words of target {found.first_joined}, '{_start(target)}', are joined, and in "
            f"{reference_name} they are '{_start(reference)}': decode with the kind of subwords that the data have "
            "(--bpe, or BPE in the environment)"
        )


@dataclass(frozen=True)
class Compared:
    """Result of comparing targets with references line by line.

    Attributes:
        num_compared: number of lines with enough known letters in the target.
        num_other: number of those lines whose reference lacks most parts of the target.
        num_other_parts: number of parts of the targets of these lines.
        first_other: the first of these lines, from 0, or None.
        first_joined: if most words of the targets are joined, the first such line, or None.
    """

    num_compared: int
    num_other: int
    num_other_parts: int
    first_other: Optional[int]
    first_joined: Optional[int]

    @property
    def is_other_text(self) -> bool:
        """Whether the references are those of another text."""
        return self.num_other > OTHER_LINES * self.num_compared and self.num_other_parts >= FEWEST_PARTS


def compare_with_references(targets: Sequence[str], references: Sequence[str]) -> Compared:
    """Compare targets with as many references."""
    others: List[int] = []
    joined: List[int] = []
    num_compared = num_other_parts = num_ends = num_same_ends = 0
    for number, (target, reference) in enumerate(zip(targets, references)):
        parts = _parts(target)
        if not parts:
            continue
        num_compared += 1
        if not (_has_most(parts, [_letters(reference)]) or _has_most(parts, _readings(reference))):
            others.append(number)
            num_other_parts += len(parts)
            continue
        words, raw_words = _words(without_escapes(target)), _words(without_escapes(reference))
        if "".join(words) == "".join(raw_words):
            ends, raw_ends = _ends(words), _ends(raw_words)
            num_ends, num_same_ends = num_ends + len(raw_ends), num_same_ends + len(ends & raw_ends)
            if not raw_ends <= ends:
                joined.append(number)
    return Compared(
        num_compared=num_compared,
        num_other=len(others),
        num_other_parts=num_other_parts,
        first_other=others[0] if others else None,
        first_joined=joined[0] if joined and 2 * num_same_ends < num_ends else None,
    )


@lru_cache(maxsize=None)
def warn_once(message: str) -> None:
    """Print a warning, only the first time that the same texts are compared."""
    print(message, file=sys.stderr, flush=True)


def _start(line: str) -> str:
    return line if len(line) <= LONGEST_START else f"{line[:LONGEST_START]} ..."


def _words(line: str) -> List[str]:
    """The letters of each word that has any, without case and accents; tokenisers split decomposed text at accents."""
    folded = unicodedata.normalize("NFKD", line).casefold()
    return [word for word in ("".join(filter(str.isalpha, word)) for word in folded.split()) if word]


def _letters(line: str) -> str:
    return "".join(_words(line))


def _parts(target: str) -> List[str]:
    """All runs of :data:`NUM_LETTERS` letters between unknown words; all letters of a line without more."""
    known = [_letters(text) for text in target.split(UNKNOWN_REFERENCE)]
    if len(known) == 1 and len(known[0]) <= NUM_LETTERS:
        return [letters for letters in known if letters]
    return [
        letters[start : start + NUM_LETTERS] for letters in known for start in range(len(letters) - NUM_LETTERS + 1)
    ]


def _has_most(parts: List[str], readings: Collection[str]) -> bool:
    """Whether at least half of the parts occur in any of the readings."""
    return 2 * sum(any(part in reading for reading in readings) for part in parts) >= len(parts)


def _readings(reference: str) -> Set[str]:
    """The letters of a reference, without Moses' escapes and with the letters of the escapes."""
    marks = {character: escape for escape, character in MOSES_ESCAPES.items()}
    quotes = [dict.fromkeys(QUOTES, escape) for escape in ("&quot;", "&apos;")]
    tables = [marks, *({**marks, **more} for more in quotes)]
    escaped = [reference.translate(str.maketrans(table)) for table in tables]
    return set(map(_letters, (reference, without_escapes(reference), *escaped)))


def _ends(words: List[str]) -> Set[int]:
    """Positions of word ends in the letters of a line, without the end of the line."""
    return set(accumulate(map(len, words[:-1])))
