"""BLEU and chrF of translations: ``python -m fairseq_plugins.cli.evaluate_translation --help``."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import List

from fairseq_plugins.cli import check_parent, one_line_errors, quiet_host_logging
from fairseq_plugins.evaluation.generated_text import check_same_text, read_lines
from fairseq_plugins.evaluation.translations import (
    NUM_BOOTSTRAP_SAMPLES,
    Comparison,
    Score,
    compare,
    read_translation,
    score,
)


def get_parser() -> argparse.ArgumentParser:
    """The command's flags."""
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_plugins.cli.evaluate_translation",
        description="BLEU and chrF (0 to 100) of what fairseq-generate --remove-bpe wrote, with 95 % confidence "
        f"intervals from {NUM_BOOTSTRAP_SAMPLES:,} bootstrap samples. Detokenised text is compared with the raw "
        "reference, tokens with the tokenised reference, where words that the dictionary lacks match nothing; only the "
        "former can be compared between papers.",
    )
    parser.add_argument("generated", type=Path, help="output of fairseq-generate")
    parser.add_argument("--reference", type=Path, required=True, help="raw, untokenised reference, a sentence a line")
    parser.add_argument("--target-lang", required=True, help="language of the detokeniser, such as de")
    parser.add_argument("--against", type=Path, help="output of a baseline for the same text: paired bootstrap test")
    parser.add_argument("--hypotheses", type=Path, help="write the detokenised hypotheses to this file")
    parser.add_argument("--json", action="store_true", help="print one JSON object for machines")
    return parser


def main() -> None:
    """Run the command; a user's mistake ends with one line and exit status 2."""
    quiet_host_logging()
    parser = get_parser()
    args = parser.parse_args()
    comparisons: List[Comparison] = []
    with one_line_errors(parser):
        if args.hypotheses:
            check_parent(args.hypotheses, flag="--hypotheses")
        references = read_lines(args.reference)
        options = dict(references=references, reference_name=str(args.reference), language=args.target_lang)
        system = read_translation(args.generated, **options)
        scores = score(system, references)
        if args.against:
            baseline = read_translation(args.against, **options)
            check_same_text(
                system.tokenized_references,
                baseline.tokenized_references,
                name=str(args.generated),
                other_name=str(args.against),
            )
            comparisons = compare(system.detokenized, baseline.detokenized, references)
        if args.hypotheses:
            args.hypotheses.write_text("".join(f"{line}\n" for line in system.detokenized), encoding="utf-8")
    print(as_json(scores, comparisons) if args.json else as_text(scores, comparisons))


def as_json(scores: List[Score], comparisons: List[Comparison]) -> str:
    """All figures with full precision."""
    return json.dumps({"scores": [asdict(item) for item in scores], "against": [asdict(item) for item in comparisons]})


def as_text(scores: List[Score], comparisons: List[Comparison]) -> str:
    """A figure a line."""
    lines = [f"{item.name:<38}{item.value:6.2f} +- {item.interval:.2f}  {item.signature}" for item in scores]
    lines += [
        f"{item.metric} against the baseline: {item.value:.2f} and {item.other_value:.2f}, p = {item.p:.4f} "
        "(paired bootstrap)"
        for item in comparisons
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
