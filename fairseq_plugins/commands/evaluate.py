"""BLEU, chrF and ROUGE of decoded or given text."""

import argparse
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import List, Mapping, Optional, Sequence, get_args

from fairseq_plugins.command_line import add_input, add_output_file
from fairseq_plugins.commands.decode import DECODING_HELP, DECODING_OPTIONS, add_decoding, read_decoding
from fairseq_plugins.commands.report import report_command
from fairseq_plugins.data.pairs import num_sentences, raw_reference
from fairseq_plugins.evaluation.decoding import GENERATED_FILE, HYPOTHESES_FILE, Decoding
from fairseq_plugins.evaluation.raw_text import LANGUAGES, check_language, compared_case, is_language
from fairseq_plugins.evaluation.translation_scores import (
    Comparison,
    Score,
    TextFormat,
    check_blank_references,
    compare,
)
from fairseq_plugins.files import (
    STANDARD_INPUT,
    check_not_read,
    given_path,
    read_lines,
    regular_files,
    write_lines,
    write_text,
)
from fairseq_plugins.metrics.bootstrap import NUM_BOOTSTRAP_SAMPLES
from fairseq_plugins.metrics.corpus import LetterCase
from fairseq_plugins.metrics.rouge import add_rouge_settings, read_rouge_settings
from fairseq_plugins.options import UserError, flag_of
from fairseq_plugins.reports.comparison import BleuMetric, RougeMetric
from fairseq_plugins.reports.report import Report


@dataclass(frozen=True)
class ScoredText:
    """A text and its references.

    Attributes:
        files: with the text.
        format: of the files.
        references: files with raw text.
        decoding: the decoding that writes the files, or None if they exist.
    """

    files: Sequence[Path]
    format: TextFormat
    references: Sequence[Path]
    decoding: Optional[Decoding]

    @property
    def data(self) -> Optional[Path]:
        """Folder that says how the text was tokenised, or None for a text that exists."""
        return None if self.decoding is None else self.decoding.data

    @property
    def language(self) -> str:
        """The models' target language, or the ending of the first reference's name, or ""."""
        if self.decoding is None:
            ending = _ending(self.references[0])
            return ending if is_language(ending) else ""
        return self.decoding.languages[1]

    @property
    def case(self) -> LetterCase:
        """Case is ignored if DATA is in lower case, because its models cannot write upper case."""
        return "kept" if self.decoding is None else compared_case(self.decoding.data)

    def check_language(self, language: str) -> None:
        """Check the language of ``--target-lang``: it exists, and the models translate into it."""
        check_language(language, flag="--target-lang")
        if self.decoding is not None and self.language in LANGUAGES and language != self.language:
            raise UserError(
                f"--target-lang {language}: {self.decoding.models[0]} translates into {self.language}: leave it out"
            )

    def check_side(self) -> None:
        """Check that no reference has the name of the source side."""
        if self.decoding is None:
            return
        source, target = self.decoding.languages
        for reference in self.references:
            if _ending(reference) == source != target:
                raise UserError(
                    f"{reference} ends in {source}, and {self.decoding.models[0]} translates {source} into {target}: "
                    f"give a reference in {target}"
                )

    def decode(self, references: Mapping[str, Sequence[str]], *, result: str) -> None:
        """Decode, unless the text is in files or was decoded before. Results of an earlier scoring are removed first.

        ``references`` holds the lines of each file. Raises UserError and keeps earlier results if a sentence has only
        blank references, or a file does not have one line a sentence.
        """
        if self.decoding is None:
            return
        check_blank_references(references)
        data, split = self.decoding.data, self.decoding.split
        num_pairs = num_sentences(data, split, self.decoding.languages)
        for name, lines in references.items():
            if len(lines) != num_pairs:
                raise UserError(
                    f"{name} has {len(lines)} lines, and {split} of {data} {num_pairs} sentences: line "
                    f"{min(len(lines), num_pairs) + 1} has no counterpart"
                )
        for earlier in (result, HYPOTHESES_FILE):
            (self.decoding.out / earlier).unlink(missing_ok=True)
        self.decoding.run()

    def write(self, hypotheses: Sequence[str], scores: str, *, result: str) -> None:
        """Write hypotheses, and their scores to the file ``result``, beside a decoding; nothing without a decoding."""
        if self.decoding is not None:
            write_lines(self.decoding.out / HYPOTHESES_FILE, hypotheses)
            write_text(self.decoding.out / result, f"{scores}\n")


def _ending(path: Path) -> str:
    """The ending of a file name without ".gz", such as its language."""
    return Path(path.name.removesuffix(".gz")).suffix[1:]


def add_scored_text(parser: argparse.ArgumentParser, *, several_references: bool) -> None:
    """Declare the options of :func:`add_decoding`, ``--input FILE...``, ``--input-format`` and ``--reference``."""
    add_decoding(parser, required=False)
    parser.set_defaults(decoding_defaults={name: parser.get_default(name) for name in DECODING_OPTIONS})
    add_input(parser, help="score these instead, - is the standard input (default, without DATA)")
    parser.add_argument(
        "--input-format",
        choices=get_args(TextFormat),
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
        + (", or several files, each with a reference for each sentence" if several_references else "")
        + " (default, with DATA: DATA/raw/SPLIT.TARGET)",
    )


def read_scored_text(args: argparse.Namespace) -> ScoredText:
    """The text of the arguments of :func:`add_scored_text`, checked before anything is decoded.

    Raises UserError if the arguments contradict each other or a file is missing.
    """
    if args.data is None:
        if args.path or args.out or args.forwarded:
            raise UserError("--path, --out and flags of fairseq-generate go with DATA, which comes first")
        for name, default in args.decoding_defaults.items():
            if getattr(args, name) != default:
                raise UserError(f"{flag_of(name)} goes with DATA, which comes first")
        if not args.reference:
            raise UserError("give --reference FILE, the raw text to compare with")
        text_format = args.input_format or "generate"
        return ScoredText(args.input or [STANDARD_INPUT], text_format, regular_files(args.reference), None)
    if args.input or args.input_format:
        raise UserError("give DATA with --path, to decode, or --input, with its --input-format, but not both")
    if not args.path or not args.out:
        raise UserError("DATA needs --path CKPT... and --out DIR; give existing texts with --input")
    decoding = read_decoding(args)
    references = regular_files(args.reference or [raw_reference(args.data, args.split, decoding.languages[1])])
    return ScoredText([decoding.generated], "generate", references, decoding)


def _add_bleu_arguments(parser: argparse.ArgumentParser) -> None:
    add_scored_text(parser, several_references=False)
    parser.add_argument(
        "--target-lang",
        metavar="LANGUAGE",
        help="language of the text, which decides how it is detokenised and what words BLEU counts (default: the "
        "target language of DATA; without DATA what the reference's name ends in, such as de)",
    )
    parser.add_argument(
        "--lowercase",
        action="store_true",
        help="ignore case, as sacrebleu -lc; signatures say so (default: if DATA is in lower case)",
    )
    parser.add_argument(
        "--against",
        type=given_path,
        metavar="OUT",
        help="test against a baseline's translation of the same text, the --out of its decoding or a file, by a "
        "two-sided paired bootstrap",
    )
    add_output_file(parser, "--write-hypotheses", help="write the detokenised hypotheses to this file")


HYPOTHESIS = re.compile(r"H-[0-9]+\t")
"""Beginning of a line of ``fairseq-generate``."""


def _evaluate_bleu(args: argparse.Namespace) -> Report:
    text = read_scored_text(args)
    if len(text.references) > 1:
        raise UserError(
            f"--reference {' '.join(map(str, text.references))}: BLEU takes one file of references here: give one"
        )
    text.check_side()
    against = None if args.against is None else _baseline_file(args.against)
    is_generated = against is not None and any(HYPOTHESIS.match(line) for line in read_lines(against))
    if args.write_hypotheses is not None:
        read = [*text.files, *text.references, *([against] if against else [])]
        check_not_read(args.write_hypotheses, read, flag="--write-hypotheses")
    if args.target_lang is not None:
        text.check_language(args.target_lang)
    language = args.target_lang or text.language
    if not language and text.format == "generate":
        raise UserError(
            f"{text.references[0]} does not end in a language: give the detokeniser's language with --target-lang"
        )
    case: LetterCase = "ignored" if args.lowercase else text.case
    metric = BleuMetric(text.references[0], language=language, case=case, data=text.data)
    baseline = None if against is None else metric.translation(against, form="generate" if is_generated else "text")
    text.decode(metric.references, result="scores.txt")
    system = metric.translation(*text.files, form=text.format)
    comparisons: List[Comparison] = []
    if baseline is not None:
        texts = system.detokenized, baseline.detokenized, metric.reference
        comparisons = compare(*texts, case=case, language=language)
    if args.write_hypotheses is not None:
        write_lines(args.write_hypotheses, system.detokenized)
    report = translation_report(metric.scores(system), comparisons)
    text.write(system.detokenized, report.text, result="scores.txt")
    return report


BLEU = report_command(
    _evaluate_bleu,
    _add_bleu_arguments,
    description=f"""\
With DATA, --path and --out the split is decoded, and OUT gets generate.txt, hypotheses.txt and scores.txt.

Figures are from 0 to 100, with 95 % confidence intervals from {NUM_BOOTSTRAP_SAMPLES:,} bootstrap samples. Detokenised
text is compared with the raw reference, both in Unicode's composed form (NFC). Compare only these figures between
papers. Tokens are compared with the tokenised reference, in which words that the dictionary lacks match nothing. Plain
text has no tokens.

{DECODING_HELP}""",
    example="data-bin/tatoeba.de-en --path checkpoints/tatoeba --out decoded",
    forwards_to="fairseq-generate",
)


def _baseline_file(path: Path) -> Path:
    """Path of the text of a baseline, which is given as a file or as the folder of its decoded text."""
    if path.is_file():
        return path
    generated = path / GENERATED_FILE
    if not generated.is_file():
        raise UserError(f"{path} has no {GENERATED_FILE}: evaluate the baseline first")
    return generated


def translation_report(scores: List[Score], comparisons: List[Comparison]) -> Report:
    """Scores and comparisons, as figures and as lines of text."""
    lines = [f"{item.name:<38}{item.value:6.2f} +- {item.interval:.2f}  {item.signature}" for item in scores]
    lines += [
        f"{item.metric} against the baseline: {item.value:.2f} and {item.other_value:.2f}, p = {item.p:.4f} "
        "(two-sided paired bootstrap)"
        for item in comparisons
    ]
    figures = {"scores": [asdict(item) for item in scores], "against": [asdict(item) for item in comparisons]}
    return Report(figures, "\n".join(lines))


def _add_rouge_arguments(parser: argparse.ArgumentParser) -> None:
    add_scored_text(parser, several_references=True)
    add_rouge_settings(parser)


def _evaluate_rouge(args: argparse.Namespace) -> Report:
    settings = read_rouge_settings(args)
    text = read_scored_text(args)
    metric = RougeMetric(*text.references, settings=settings, data=text.data)
    text.decode(metric.references, result="rouge.txt")
    headlines = metric.translation(*text.files, form=text.format).detokenized
    scores = metric.scores(headlines)
    lines = [
        f"{item.metric}  F1 {item.f1:6.2f} +- {item.f1_interval:.2f}  recall {item.recall:6.2f}  "
        f"precision {item.precision:6.2f}"
        for item in scores
    ]
    figures = {"scores": [asdict(item) for item in scores], "signature": metric.signature}
    report = Report(figures, "\n".join([*lines, metric.signature]))
    text.write(headlines, report.text, result="rouge.txt")
    return report


ROUGE = report_command(
    _evaluate_rouge,
    _add_rouge_arguments,
    description=f"""\
With DATA, --path and --out the split is decoded, and OUT gets generate.txt, hypotheses.txt and rouge.txt.

Figures are from 0 to 100: F1 with a 95 % confidence interval from {NUM_BOOTSTRAP_SAMPLES:,} bootstrap samples, recall
and precision. The last line is the signature. Scores can be compared if their signatures are the same.

{DECODING_HELP}""",
    example="data-bin/agnews --path checkpoints/agnews --out decoded",
    forwards_to="fairseq-generate",
)
