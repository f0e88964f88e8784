"""BLEU and chrF of translations: ``python -m fairseq_plugins.cli.evaluate_translation --help``."""

import argparse
import re
from dataclasses import asdict
from pathlib import Path
from typing import List, Sequence

from fairseq_plugins.command_line import Command, add_json, add_output_file
from fairseq_plugins.data.text import STANDARD_INPUT, read_lines
from fairseq_plugins.evaluation.decoding import GENERATED_FILE
from fairseq_plugins.evaluation.scored_text import (
    DECODING_HELP,
    HYPOTHESES_FILE,
    ScoredText,
    add_scored_text,
    read_scored_text,
)
from fairseq_plugins.evaluation.translation_scores import (
    NUM_BOOTSTRAP_SAMPLES,
    Comparison,
    Score,
    Translation,
    compare,
    read_plain_translation,
    read_translation,
    score,
)
from fairseq_plugins.metrics.corpus import LetterCase, bleu_of_text
from fairseq_plugins.options import UserError, check_not_read, given_path, write_text
from fairseq_plugins.reports.tables import json_text
from fairseq_plugins.reports.training_log import with_origin

HYPOTHESIS = re.compile(r"H-[0-9]+\t")
"""Beginning of a line of ``fairseq-generate``."""


class EvaluateTranslation(Command):
    """Scores translations by BLEU and chrF."""

    name = "evaluate_translation"
    summary = "BLEU and chrF of a model's translation of a split, or of translations that are there."
    description = f"""\
With DATA, --path and --out the split is decoded, and OUT holds generate.txt, hypotheses.txt and scores.txt.

Figures are from 0 to 100, with 95 % confidence intervals from {NUM_BOOTSTRAP_SAMPLES:,} bootstrap samples. Detokenised
text is compared with the raw reference, tokens with the tokenised reference, where words that the dictionary lacks
match nothing; only the former can be compared between papers. Plain text has no tokens.

{DECODING_HELP}"""
    forwards_to = "fairseq-generate"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
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
            help="ignore case, as sacrebleu -lc; signatures say so (default: with DATA whose text was put into lower "
            "case; elsewhere case counts)",
        )
        parser.add_argument(
            "--against",
            type=given_path,
            metavar="OUT",
            help="what a baseline made of the same text, --out of its decoding or a file: sacreBLEU's paired bootstrap "
            "test, whose p looks at the size of differences alone (compare_runs --baseline looks at their sign, too, "
            "and has a larger one)",
        )
        add_output_file(parser, "--write-hypotheses", help="write the detokenised hypotheses to this file")
        add_json(parser)

    def run(self, args: argparse.Namespace) -> None:
        text = read_scored_text(args)
        if len(text.references) > 1:
            raise UserError(
                f"--reference {' '.join(map(str, text.references))}: BLEU is of one file of references here: give one"
            )
        text.check_side()
        against = None if args.against is None else _baseline_file(args.against)
        if args.write_hypotheses is not None:
            files = [path for path in text.files if path != STANDARD_INPUT]
            read = [*files, *text.references, *([against] if against else [])]
            check_not_read(args.write_hypotheses, read, flag="--write-hypotheses")
        if args.target_lang is not None:
            text.check_language(args.target_lang)
        language = args.target_lang or text.language
        if not language and text.format == "generate":
            raise UserError(
                f"{text.references[0]} does not end in a language: name that of the detokeniser with --target-lang"
            )
        references = read_lines(text.references[0])
        baseline = None if against is None else self._read_baseline(against, text, language)
        bleu_of_text(language=language)  # before any work is lost
        text.decode(result="scores.txt")
        system = self._read(text.files, text.format, text, language)
        case: LetterCase = "ignored" if args.lowercase else text.case
        scores = score(system, references, case=case, language=language)
        comparisons: List[Comparison] = []
        if baseline is not None:
            comparisons = compare(system.detokenized, baseline.detokenized, references, case=case, language=language)
        beside = None if text.decoding is None else text.decoding.out / HYPOTHESES_FILE
        for path in filter(None, (args.write_hypotheses, beside)):
            write_text(path, "".join(f"{line}\n" for line in system.detokenized))
        text.write(as_text(scores, comparisons), result="scores.txt")
        if args.json:
            print(as_json(scores, comparisons, command=args.command_line))
        else:
            print(as_text(scores, comparisons))

    def _read_baseline(self, file: Path, text: ScoredText, language: str) -> Translation:
        """Read the output of ``fairseq-generate``, or plain text."""
        is_generated = any(HYPOTHESIS.match(line) for line in read_lines(file))
        return self._read([file], "generate" if is_generated else "text", text, language)

    def _read(self, files: Sequence[Path], text_format: str, text: ScoredText, language: str) -> Translation:
        """Read files as translations of the reference of ``text``."""
        reference = text.references[0]
        references, name = read_lines(reference), str(reference)
        if text_format == "text":
            return read_plain_translation(*files, references=references, reference_name=name)
        return read_translation(*files, references=references, reference_name=name, language=language)


def _baseline_file(path: Path) -> Path:
    """Path of the text of a baseline, which is given as a file or as the folder of its decoded text."""
    if path.is_file():
        return path
    generated = path / GENERATED_FILE
    if not generated.is_file():
        raise UserError(f"{path} has no {GENERATED_FILE}: evaluate the baseline first")
    return generated


def as_json(scores: List[Score], comparisons: List[Comparison], *, command: str) -> str:
    """All figures in JSON."""
    figures = {"scores": [asdict(item) for item in scores], "against": [asdict(item) for item in comparisons]}
    return json_text(with_origin(figures, command=command))


def as_text(scores: List[Score], comparisons: List[Comparison]) -> str:
    """Lines of the figures."""
    lines = [f"{item.name:<38}{item.value:6.2f} +- {item.interval:.2f}  {item.signature}" for item in scores]
    lines += [
        f"{item.metric} against the baseline: {item.value:.2f} and {item.other_value:.2f}, p = {item.p:.4f} "
        "(sacreBLEU's paired bootstrap)"
        for item in comparisons
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    EvaluateTranslation().main()
