"""BLEU, chrF and ROUGE of decoded or given text."""

import argparse
import re
from dataclasses import asdict
from pathlib import Path
from typing import List, Sequence

from fairseq_plugins.command_line import add_output_file
from fairseq_plugins.commands.results import Results, results_command
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
    TextFormat,
    Translation,
    compare,
    read_headlines,
    read_translation,
    score,
    score_headlines,
)
from fairseq_plugins.files import check_not_read, given_path, read_lines, write_lines
from fairseq_plugins.metrics.corpus import LetterCase, bleu_of_text
from fairseq_plugins.metrics.rouge import add_rouge_settings, check_tokens, read_rouge_settings
from fairseq_plugins.options import UserError

HYPOTHESIS = re.compile(r"H-[0-9]+\t")
"""Beginning of a line of ``fairseq-generate``."""


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
        help="ignore case, as sacrebleu -lc; signatures say so (default: with DATA whose text was put into lower "
        "case; elsewhere case counts)",
    )
    parser.add_argument(
        "--against",
        type=given_path,
        metavar="OUT",
        help="test against a baseline's translation of the same text, the --out of its decoding or a file, by a "
        "two-sided paired bootstrap",
    )
    add_output_file(parser, "--write-hypotheses", help="write the detokenised hypotheses to this file")


def _evaluate_bleu(args: argparse.Namespace) -> Results:
    text = read_scored_text(args)
    if len(text.references) > 1:
        raise UserError(
            f"--reference {' '.join(map(str, text.references))}: BLEU is of one file of references here: give one"
        )
    text.check_side()
    against = None if args.against is None else _baseline_file(args.against)
    if args.write_hypotheses is not None:
        read = [*text.files, *text.references, *([against] if against else [])]
        check_not_read(args.write_hypotheses, read, flag="--write-hypotheses")
    if args.target_lang is not None:
        text.check_language(args.target_lang)
    language = args.target_lang or text.language
    if not language and text.format == "generate":
        raise UserError(
            f"{text.references[0]} does not end in a language: name that of the detokeniser with --target-lang"
        )
    references = read_lines(text.references[0])
    baseline = None if against is None else _read_baseline(against, text, language)
    bleu_of_text(language=language)  # before any work is lost
    text.decode(result="scores.txt")
    system = _read_hypotheses(text.files, text.format, text, language)
    case: LetterCase = "ignored" if args.lowercase else text.case
    scores = score(system, references, case=case, language=language)
    comparisons: List[Comparison] = []
    if baseline is not None:
        comparisons = compare(system.detokenized, baseline.detokenized, references, case=case, language=language)
    beside = None if text.decoding is None else text.decoding.out / HYPOTHESES_FILE
    for path in filter(None, (args.write_hypotheses, beside)):
        write_lines(path, system.detokenized)
    found = translation_results(scores, comparisons)
    text.write(found.text, result="scores.txt")
    return found


BLEU = results_command(
    _evaluate_bleu,
    _add_bleu_arguments,
    description=f"""\
With DATA, --path and --out the split is decoded, and OUT gets generate.txt, hypotheses.txt and scores.txt.

Figures are from 0 to 100, with 95 % confidence intervals from {NUM_BOOTSTRAP_SAMPLES:,} bootstrap samples. Detokenised
text is compared with the raw reference. Compare only these figures between papers. Tokens are compared with the
tokenised reference, in which words that the dictionary lacks match nothing. Plain text has no tokens.

{DECODING_HELP}""",
    example="data-bin/tatoeba.de-en --path checkpoints/tatoeba --out decoded",
    forwards_to="fairseq-generate",
)


def _read_baseline(file: Path, text: ScoredText, language: str) -> Translation:
    """Read the output of ``fairseq-generate``, or plain text."""
    is_generated = any(HYPOTHESIS.match(line) for line in read_lines(file))
    return _read_hypotheses([file], "generate" if is_generated else "text", text, language)


def _read_hypotheses(files: Sequence[Path], form: TextFormat, text: ScoredText, language: str) -> Translation:
    """Read files as translations of the reference of ``text``."""
    reference = text.references[0]
    return read_translation(
        *files,
        form=form,
        references=read_lines(reference),
        reference_name=str(reference),
        language=language,
        data=text.data,
    )


def _baseline_file(path: Path) -> Path:
    """Path of the text of a baseline, which is given as a file or as the folder of its decoded text."""
    if path.is_file():
        return path
    generated = path / GENERATED_FILE
    if not generated.is_file():
        raise UserError(f"{path} has no {GENERATED_FILE}: evaluate the baseline first")
    return generated


def translation_results(scores: List[Score], comparisons: List[Comparison]) -> Results:
    """All figures, and lines of them."""
    lines = [f"{item.name:<38}{item.value:6.2f} +- {item.interval:.2f}  {item.signature}" for item in scores]
    lines += [
        f"{item.metric} against the baseline: {item.value:.2f} and {item.other_value:.2f}, p = {item.p:.4f} "
        "(two-sided paired bootstrap)"
        for item in comparisons
    ]
    figures = {"scores": [asdict(item) for item in scores], "against": [asdict(item) for item in comparisons]}
    return Results(figures, "\n".join(lines))


def _add_rouge_arguments(parser: argparse.ArgumentParser) -> None:
    add_scored_text(parser, several_references=True)
    add_rouge_settings(parser)


def _evaluate_rouge(args: argparse.Namespace) -> Results:
    settings = read_rouge_settings(args)
    text = read_scored_text(args)
    check_tokens(list(zip(*map(read_lines, text.references))), settings)  # before any work is lost
    text.decode(result="rouge.txt")
    hypotheses = read_headlines(*text.files, form=text.format, references=text.references, data=text.data)
    scores = score_headlines(hypotheses, text.name, text.references, settings)
    if text.decoding is not None:
        write_lines(text.decoding.out / HYPOTHESES_FILE, hypotheses)
    signature = settings.signature(num_references=len(text.references))
    lines = [
        f"{item.metric}  F1 {item.f1:6.2f} +- {item.f1_interval:.2f}  recall {item.recall:6.2f}  "
        f"precision {item.precision:6.2f}"
        for item in scores
    ]
    found = Results(
        {"scores": [asdict(item) for item in scores], "signature": signature}, "\n".join([*lines, signature])
    )
    text.write(found.text, result="rouge.txt")
    return found


ROUGE = results_command(
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
