"""Flags of commands that compute ROUGE."""

import argparse
from typing import Union

from fairseq_plugins.scoring.rouge import TOKENIZERS, RougeSettings


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
        ValueError: see :class:`~fairseq_plugins.scoring.rouge.RougeSettings`.
    """
    return RougeSettings(
        stemming=args.stemming, tokenizer=args.tokenizer, max_bytes=args.max_bytes, max_words=args.max_words
    )
