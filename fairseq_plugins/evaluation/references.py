"""Whether raw references are the targets that were decoded.

Preparation may change case, digits, marks and characters that Moses escapes, and a dictionary may lack words or parts
of words, so that no single line proves that a reference is wrong. The lines are judged together: letters of a target
are looked for in its reference, and a text is another one where they are missing from many lines.
"""

import argparse
import os
import sys
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Collection, Dict, List, Optional, Sequence, Set, Tuple, Union

from fairseq.data.data_utils import post_process
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest, Result

from fairseq_plugins.command_line import add_beam, add_checkpoints, add_cpu, add_data, add_input, add_out, add_split
from fairseq_plugins.data.text import STANDARD_INPUT, name_of, read_lines
from fairseq_plugins.evaluation.checkpoints import num_sentences, raw_reference
from fairseq_plugins.evaluation.decoding import Decoding, check_pairs, check_words, read_generated
from fairseq_plugins.evaluation.moses import MosesWords
from fairseq_plugins.evaluation.raw_text import (
    LANGUAGES,
    SIDE_LANGUAGES,
    check_language,
    compared_case,
    is_language,
    subword_kind,
)
from fairseq_plugins.metrics.corpus import LetterCase, bleu_of_text
from fairseq_plugins.metrics.rouge import (
    MOSES_ESCAPES,
    TOKENIZERS,
    UNKNOWN_REFERENCE,
    RougeScore,
    RougeSettings,
    check_tokens,
    score_corpus,
    without_escapes,
)
from fairseq_plugins.options import check_at_least_one, flag_of, given_path, write_text

LONGEST_START = 40
"""Characters of a line that a message tells."""

NUM_LETTERS = 4
"""Of a part of a target that is looked for; with fewer other lines of the same language have too many of them."""

OTHER_LINES = 0.25
"""A text with a larger share of lines that lack most of the parts is another one."""

FEWEST_PARTS = 15
"""Parts that lines of another text must have together; with fewer, such as of one short line, nothing is refused."""

QUOTES = "\"'`\u00b4\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f\u00ab\u00bb\u2039\u203a"
"""Marks that preparation may have replaced by one another before it wrote them as escapes."""


def check_blank_references(references: Sequence[str], *, name: str) -> None:
    """Refuse references that leave a sentence without one.

    Raises:
        ValueError: for the first of them.
    """
    for number, line in enumerate(references, start=1):
        if not line.strip():
            raise ValueError(f"{name}, line {number}: blank, nothing could be compared with it: give a reference")


def check_raw_references(targets: Sequence[str], references: Sequence[str], *, name: str, reference_name: str) -> None:
    """Refuse references of another text than was decoded, and warn where the comparison cannot tell.

    Args:
        targets: tokenised, as ``fairseq-generate`` prints them beside the hypotheses, with subwords joined.
        references: raw, as many.
        name: of the decoded text, in messages.
        reference_name: of the references.

    Raises:
        ValueError: if it is another text, or the words of the targets are joined.
    """
    found = compare_with_references(targets, references)
    if found.first_other is not None:
        target, reference = targets[found.first_other], references[found.first_other]
        lines = (
            f"its line {found.first_other + 1} is '{_start(reference)}', and decoding printed the target "
            f"'{_start(target)}'"
        )
        if found.is_other_text:
            raise ValueError(
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
        raise ValueError(
            f"{name}: the words of target {found.first_joined}, '{_start(target)}', are joined, and in "
            f"{reference_name} they are '{_start(reference)}': decode with the kind of subwords that the data have "
            "(--bpe, or BPE in the environment)"
        )


@dataclass(frozen=True)
class Compared:
    """Targets and references, compared line by line.

    Attributes:
        num_compared: lines of whose target the dictionary knows enough.
        num_other: those of them whose reference lacks most of these.
        num_other_parts: how many parts their targets have.
        first_other: the first such line, from 0, or None.
        first_joined: where most words of the targets are joined, the first such line, or None.
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
    """Compare targets with their references, as many."""
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
    """Tell on the standard error, however often the same texts are compared."""
    print(message, file=sys.stderr, flush=True)


def _start(line: str) -> str:
    return line if len(line) <= LONGEST_START else f"{line[:LONGEST_START]} ..."


def _words(line: str) -> List[str]:
    """The letters of each word that has any, without case and accents, at which tokenisers tear decomposed text."""
    folded = unicodedata.normalize("NFKD", line).casefold()
    return [word for word in ("".join(filter(str.isalpha, word)) for word in folded.split()) if word]


def _letters(line: str) -> str:
    return "".join(_words(line))


def _parts(target: str) -> List[str]:
    """All runs of so many letters in what stands between unknown words; all of them, if a whole line has no more."""
    known = [_letters(text) for text in target.split(UNKNOWN_REFERENCE)]
    if len(known) == 1 and len(known[0]) <= NUM_LETTERS:
        return [letters for letters in known if letters]
    return [
        letters[start : start + NUM_LETTERS] for letters in known for start in range(len(letters) - NUM_LETTERS + 1)
    ]


def _has_most(parts: List[str], readings: Collection[str]) -> bool:
    """Whether at least half of the parts stand in one of the readings or another."""
    return 2 * sum(any(part in reading for reading in readings) for part in parts) >= len(parts)


def _readings(reference: str) -> Set[str]:
    """The letters of a reference, also where they are counted that Moses' escapes have, whole or in pieces."""
    marks = {character: escape for escape, character in MOSES_ESCAPES.items()}
    quotes = [dict.fromkeys(QUOTES, escape) for escape in ("&quot;", "&apos;")]
    tables = [marks, *({**marks, **more} for more in quotes)]
    escaped = [reference.translate(str.maketrans(table)) for table in tables]
    return set(map(_letters, (reference, without_escapes(reference), *escaped)))


def _ends(words: List[str]) -> Set[int]:
    """Where words end, in letters of the line; the end of the line is none."""
    return set(accumulate(map(len, words[:-1])))


# The text that a command scores: decoded by a model from DATA, in files, or on the standard input.


TEXT_FORMATS = ("generate", "text")
"""The output of ``fairseq-generate --remove-bpe``, or plain text, a sentence a line."""

HYPOTHESES_FILE = "hypotheses.txt"
"""In the folder of a decoding: what was scored last, a sentence a line."""

DECODING_HELP = """\
BEAM, MAX_TOKENS and BPE in the environment stand for --beam, --max-tokens and --bpe. Flags of fairseq-generate follow a
--: -- --lenpen 2 --min-len 8. Run again, what is decoded stays unless the models, the data or the flags are others.
Models search in the precision that they were trained in, where the processor has such products; in translate, pictures
and Python they search in float32, unless told otherwise."""


@dataclass(frozen=True)
class ScoredText:
    """Where a text is, and what it is compared with.

    Attributes:
        files: that hold the text.
        format: a value of :data:`TEXT_FORMATS`.
        references: raw texts.
        decoding: what writes the files, or None where they are there.
    """

    files: Sequence[Path]
    format: str
    references: Sequence[Path]
    decoding: Optional[Decoding]

    @property
    def name(self) -> str:
        """How messages name the text."""
        return name_of(*self.files)

    @property
    def language(self) -> str:
        """Of the text: the models' target language, else that which the name of the first reference ends in, or ""."""
        if self.decoding is None:
            ending = _ending(self.references[0])
            return ending if is_language(ending) else ""
        return self.decoding.languages[1]

    @property
    def case(self) -> LetterCase:
        """Of the references: ignored where DATA was put into lower case, for no model writes another."""
        return "kept" if self.decoding is None else compared_case(self.decoding.data)

    def check_language(self, language: str) -> None:
        """Refuse a language of ``--target-lang`` that there is not, or that the models do not translate into.

        Raises:
            ValueError: with the remedy.
        """
        check_language(language, flag="--target-lang")
        if self.decoding is not None and self.language in LANGUAGES and language != self.language:
            raise ValueError(
                f"--target-lang {language}: {self.decoding.models[0]} translates into {self.language}: leave it out"
            )

    def check_side(self) -> None:
        """Refuse references that are named as the source side of the split is.

        Raises:
            ValueError: for the first such reference.
        """
        if self.decoding is None:
            return
        source, target = self.decoding.languages
        for reference in self.references:
            if _ending(reference) == source != target:
                raise ValueError(
                    f"{reference} ends in {source}, and {self.decoding.models[0]} translates {source} into {target}: "
                    f"give a reference in {target}"
                )

    def decode(self, *, result: str) -> None:
        """Decode, where that is asked for and was not done; what an earlier scoring left there is removed first,
        unless references do not fit.

        Raises:
            ValueError: where that is asked for, and a sentence has only blank references, or references are not as
                many as the sentences.
        """
        if self.decoding is not None:
            lines = zip(*(read_lines(reference) for reference in self.references))
            check_blank_references(["".join(texts) for texts in lines], name=name_of(*self.references))
            self._check_lengths(self.decoding)
            for earlier in (result, HYPOTHESES_FILE):
                (self.decoding.out / earlier).unlink(missing_ok=True)
            self.decoding.run()

    def _check_lengths(self, decoding: Decoding) -> None:
        num_pairs = num_sentences(decoding.data, decoding.split, decoding.languages)
        for reference in self.references:
            if (num_lines := len(read_lines(reference))) != num_pairs:
                raise ValueError(
                    f"{reference} has {num_lines} lines, and {decoding.split} of {decoding.data} {num_pairs} "
                    f"sentences: line {min(num_lines, num_pairs) + 1} has no counterpart"
                )

    def write(self, text: str, *, result: str) -> None:
        """Write a result beside a decoding, to the file ``result``; where nothing was decoded there is no place."""
        if self.decoding is not None:
            write_text(self.decoding.out / result, f"{text}\n")


def _ending(path: Path) -> str:
    """What the name of a file ends in, such as its language; a compressed one has that before its ".gz"."""
    return Path(path.name.removesuffix(".gz")).suffix[1:]


DECODING_OPTIONS = ("split", "beam", "max_tokens", "bpe", "cpu")
"""Of :func:`add_decoding`, that have defaults."""


def add_decoding(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Declare DATA, ``--path CKPT...``, ``--out DIR`` and all of :data:`DECODING_OPTIONS`."""
    add_data(parser, written_by="data-prep/<corpus>/prepare.sh", required=required)
    add_checkpoints(parser, help="checkpoints; several, also joined by colons, are an ensemble", required=required)
    add_split(parser, help="split to decode")
    add_out(parser, help="directory for generate.txt, the output of fairseq-generate", required=required)
    add_beam(parser)
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=os.environ.get("MAX_TOKENS") or "4000",
        metavar="N",
        help="tokens of a batch (default: MAX_TOKENS in the environment, or 4000)",
    )
    parser.add_argument(
        "--bpe",
        type=_subwords,
        default=os.environ.get("BPE") or None,
        metavar="KIND",
        help="subwords that are joined, subword_nmt or sentencepiece (default: BPE in the environment, or the kind of "
        "the codes or model in DATA, or subword_nmt)",
    )
    add_cpu(parser)


def _subwords(text: str) -> str:
    """A kind of subwords that fairseq can join."""
    try:
        post_process("", text)
    except NotImplementedError as error:
        raise argparse.ArgumentTypeError(f"{text}: give subword_nmt or sentencepiece") from error
    return text


NOT_FORWARDED = {
    **dict.fromkeys(("--help", "-h"), "leave it out"),
    "--path": "give it before the --",
    "--gen-subset": "give --split before the --",
    "--quiet": "leave it out, the sentences are read from the output",
    "--score-reference": "leave it out, references would be scored as if a model had written them",
    "--prefix-size": "leave it out, what is written would begin with the reference",
    "--skip-invalid-size-inputs-valid-test": "leave it out, all sentences are scored; raise --max-source-positions",
    "--tokenizer": "leave it out, the text is detokenised when it is scored",
    "--bpe": "give --bpe KIND before the --",
    "--results-path": "leave it out, --out is where the output goes",
    "--num-shards": "leave it out, a decoding is of the whole split",
    "--shard-id": "leave it out, a decoding is of the whole split",
}
"""Flags of ``fairseq-generate`` that are not for the user here, each with its remedy."""


def _check_forwarded(flags: Sequence[str]) -> None:
    for flag in flags:
        remedy = NOT_FORWARDED.get(flag.partition("=")[0])
        if remedy is not None:
            raise ValueError(f"{flag} after the --: {remedy}")


def read_decoding(args: argparse.Namespace) -> Decoding:
    """What the arguments of :func:`add_decoding` ask for.

    Raises:
        ValueError: if a number is less than 1, DATA has several models of subwords and ``--bpe`` names no kind, or a
            flag after ``--`` is one of :data:`NOT_FORWARDED`.
    """
    _check_forwarded(args.forwarded)
    return Decoding(
        data=args.data,
        models=args.path,
        split=args.split,
        out=args.out,
        beam=check_at_least_one(args.beam, flag="--beam"),
        max_tokens=check_at_least_one(args.max_tokens, flag="--max-tokens"),
        subwords=args.bpe or subword_kind(args.data),
        flags=[*args.forwarded, *(["--cpu"] if args.cpu and "--cpu" not in args.forwarded else [])],
    )


def add_scored_text(parser: argparse.ArgumentParser, *, several_references: bool) -> None:
    """Declare what decodes, ``--input FILE...``, ``--input-format`` and ``--reference``."""
    add_decoding(parser, required=False)
    parser.set_defaults(of_decoding={name: parser.get_default(name) for name in DECODING_OPTIONS})
    add_input(parser, help="score these instead, - is the standard input (default, without DATA)")
    parser.add_argument(
        "--input-format",
        choices=TEXT_FORMATS,
        help="generate: output of fairseq-generate --remove-bpe; text: plain text, a sentence a line "
        "(default: generate)",
    )
    parser.add_argument(
        "--reference",
        type=given_path,
        metavar="FILE",
        nargs="+",
        action="extend",
        help="raw, untokenised reference, a sentence a line"
        + (", or several, of which each sentence has one in each file" if several_references else "")
        + " (default, with DATA: DATA/raw/SPLIT.TARGET)",
    )


def read_scored_text(args: argparse.Namespace) -> ScoredText:
    """Check the arguments of :func:`add_scored_text`, before anything is decoded.

    Raises:
        ValueError: if they do not go together or a file is missing.
    """
    if args.data is None:
        if args.path or args.out or args.forwarded:
            raise ValueError("--path, --out and flags of fairseq-generate go with DATA, which comes first")
        for name, default in args.of_decoding.items():
            if str(getattr(args, name)) != str(default):
                raise ValueError(f"{flag_of(name)} goes with DATA, which comes first")
        if not args.reference:
            raise ValueError("give --reference FILE, the raw text to compare with")
        text_format = args.input_format or "generate"
        return ScoredText(args.input or [STANDARD_INPUT], text_format, _existing(args.reference), None)
    if args.input or args.input_format:
        raise ValueError("give DATA with --path, to decode, or --input, with its --input-format, but not both")
    if not args.path or not args.out:
        raise ValueError("DATA needs --path CKPT... and --out DIR; texts that are there are given with --input")
    decoding = read_decoding(args)
    decoding.check()
    references = _existing(args.reference or [raw_reference(args.data, args.split, decoding.languages[1])])
    return ScoredText([decoding.generated], "generate", references, decoding)


def _existing(paths: Sequence[Path]) -> List[Path]:
    for path in paths:
        if path.is_dir():
            raise ValueError(f"--reference {path} is a folder: give a text file; DATA comes first, before all flags")
        if path == STANDARD_INPUT or (path.exists() and not path.is_file()):
            raise ValueError(f"--reference {path}: it is read several times, give a regular file")
        read_lines(path)
    return list(paths)


# Translations: detokenised, and scored by sacreBLEU.


NUM_BOOTSTRAP_SAMPLES = 1000


@dataclass(frozen=True)
class Translation:
    """What a system made of a text, in the order of the text.

    Attributes:
        tokenized: its hypotheses in words; empty where the translation is a text of another origin.
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
    """Undo the tokenisation of Moses, in a language or the side of a headline corpus."""
    moses = MosesWords(SIDE_LANGUAGES.get(language, language))
    return [moses.join(line.split()) for line in lines]


def read_translation(*paths: Path, references: Sequence[str], reference_name: str, language: str) -> Translation:
    """Read the output of ``fairseq-generate`` in the given language.

    Args:
        paths: files that are read as one; ``-`` is the standard input.
        references: raw text, a sentence each.
        reference_name: of the references, in messages.
        language: of the detokeniser, such as "de".

    Raises:
        ValueError: if it does not belong to the references, is cut short or holds subword marks, or a reference is
            blank.
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
    """Read a translation of another origin, a detokenised sentence a line; see :func:`read_translation`.

    Raises:
        ValueError: if it does not belong to the references or holds subword marks, or a reference is blank.
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
    """BLEU and chrF of detokenised text against raw references, and BLEU of the tokens, where there are any.

    The last is what papers report. ``case`` is that of the raw references; what is ignored stands in the signatures,
    as does the tokeniser, which is that of the ``language``.

    Raises:
        ValueError: if that is not installed.
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
        p: chance of such a difference between equal systems.
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
    """Paired bootstrap (Koehn 2004) of BLEU and chrF of detokenised text; ``others`` is the baseline.

    ``case`` and ``language`` are those of :func:`score`.
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


# Headlines and summaries: read, and scored by ROUGE.


def read_headlines(*paths: Path, references: Sequence[Path] = ()) -> List[str]:
    """The best hypotheses that ``fairseq-generate`` wrote, without the escapes of the Moses tokeniser.

    Args:
        paths: files that are read as one; ``-`` is the standard input.
        references: files of raw text, one of which has the targets that were written beside the hypotheses.

    Raises:
        ValueError: if the files hold no hypothesis, sentences are missing, or the targets are those of no reference.
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
        name: of the hypotheses, in messages.
        references: several for each hypothesis, where several files are given.
        settings: of the score.
        num_processes: that score; None takes one for each 500 texts, and never more than there are cores to use.
        show_progress: draw a bar.

    Raises:
        ValueError: on unequal numbers of lines, subword marks, no word, another script, or a sentence whose references
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


# Flags of commands that compute ROUGE.


def add_rouge_settings(parser: Union[argparse.ArgumentParser, argparse._ArgumentGroup]) -> None:
    """Declare ``--stemming``, ``--tokenizer``, ``--max-bytes`` and ``--max-words``, for :func:`read_rouge_settings`."""
    parser.add_argument(
        "--stemming", choices=["on", "off"], default="on", help="stem English words, as ROUGE-1.5.5 -m (default: on)"
    )
    parser.add_argument(
        "--tokenizer",
        choices=TOKENIZERS,
        default="rouge",
        help="words that ROUGE counts: rouge: of a-z and 0-9; unicode: of any script (default: rouge)",
    )
    parser.add_argument(
        "--max-bytes",
        type=int,
        default=0,
        help="cut texts after so many bytes, 75 in DUC, spaces between tokens included (default: 0, no limit)",
    )
    parser.add_argument("--max-words", type=int, default=0, help="cut texts after so many words (default: 0, no limit)")


def read_rouge_settings(args: argparse.Namespace) -> RougeSettings:
    """What the flags of :func:`add_rouge_settings` ask for.

    Raises:
        ValueError: see :class:`~fairseq_plugins.metrics.rouge.RougeSettings`.
    """
    return RougeSettings(
        stemming=args.stemming, tokenizer=args.tokenizer, max_bytes=args.max_bytes, max_words=args.max_words
    )
