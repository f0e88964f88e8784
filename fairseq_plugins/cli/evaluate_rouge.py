"""ROUGE of headlines and summaries: ``python -m fairseq_plugins.cli.evaluate_rouge --help``."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import List

from fairseq_plugins.cli import one_line_errors, quiet_host_logging
from fairseq_plugins.evaluation.generated_text import read_lines
from fairseq_plugins.evaluation.headlines import read_headlines, score_headlines
from fairseq_plugins.scoring.rouge import (
    NUM_BOOTSTRAP_SAMPLES,
    TOKENIZERS,
    RougeScore,
    RougeSettings,
)


def get_parser() -> argparse.ArgumentParser:
    """The command's flags."""
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_plugins.cli.evaluate_rouge",
        description="ROUGE-1, -2 and -L (0 to 100): F1 with a 95 % confidence interval from "
        f"{NUM_BOOTSTRAP_SAMPLES:,} bootstrap samples, recall and precision. Two scores can be compared if the last "
        "line, their signature, is the same.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--generated", type=Path, help="output of fairseq-generate --remove-bpe")
    source.add_argument("--hypotheses", type=Path, help="text, a hypothesis a line")
    parser.add_argument(
        "--reference", type=Path, required=True, action="append", help="raw text, a reference a line; may be repeated"
    )
    parser.add_argument(
        "--stemming", choices=["on", "off"], default="on", help="stem English words, as ROUGE-1.5.5 -m (default: on)"
    )
    parser.add_argument(
        "--tokenizer",
        choices=TOKENIZERS,
        default="rouge",
        help="rouge: words of a-z and 0-9; unicode: of any script (default: rouge)",
    )
    parser.add_argument(
        "--max-bytes",
        type=int,
        default=0,
        help="cut texts after so many bytes, 75 in DUC, spaces between tokens included (default: 0, no limit)",
    )
    parser.add_argument("--max-words", type=int, default=0, help="cut texts after so many words (default: 0, no limit)")
    parser.add_argument(
        "--processes", type=int, help="processes that score (default: all cores, one for fewer than 1,000 texts)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object for machines")
    return parser


def main() -> None:
    """Run the command; a user's mistake ends with one line and exit status 2."""
    quiet_host_logging()
    parser = get_parser()
    args = parser.parse_args()
    path = args.generated or args.hypotheses
    with one_line_errors(parser):
        settings = RougeSettings(
            stemming=args.stemming, tokenizer=args.tokenizer, max_bytes=args.max_bytes, max_words=args.max_words
        )
        if args.processes is not None and args.processes < 1:
            raise ValueError(f"--processes {args.processes}: give at least 1")
        hypotheses = read_headlines(path) if args.generated else read_lines(path)
        scores = score_headlines(
            hypotheses,
            path,
            args.reference,
            settings,
            num_processes=args.processes,
            show_progress="on" if sys.stderr.isatty() else "off",
        )
    signature = settings.signature(num_references=len(args.reference))
    if args.json:
        print(json.dumps({"scores": [asdict(item) for item in scores], "signature": signature}))
    else:
        print(as_text(scores, signature))


def as_text(scores: List[RougeScore], signature: str) -> str:
    """A metric a line, then the signature."""
    lines = [
        f"{item.metric}  F1 {item.f1:6.2f} +- {item.f1_interval:.2f}  recall {item.recall:6.2f}  "
        f"precision {item.precision:6.2f}"
        for item in scores
    ]
    return "\n".join([*lines, signature])


if __name__ == "__main__":
    main()
