#!/usr/bin/env python3
"""Headlines that need no model: the first words of the article, and a random headline of the training set."""

import argparse
import random
from pathlib import Path

import fairseq_plugins  # noqa: F401
from fairseq_plugins.cli import one_line_errors
from fairseq_plugins.evaluation.generated_text import read_lines


def main() -> None:
    """Write ``first_words.txt`` and ``random_title.txt``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("articles", type=Path, help="articles to write headlines for, such as DATA/raw/test.article")
    parser.add_argument("titles", type=Path, help="training headlines, such as WORK/article-title/text/train.title")
    parser.add_argument("--out", type=Path, required=True, help="directory for the two texts, a headline a line")
    parser.add_argument("--words", type=int, default=8, help="words of the article")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random choice")
    args = parser.parse_args()
    if args.words < 1:
        parser.error(f"--words {args.words}: give at least 1")
    with one_line_errors(parser):
        articles, titles = read_lines(args.articles), read_lines(args.titles)
    draw = random.Random(args.seed).choice
    args.out.mkdir(parents=True, exist_ok=True)
    headlines = {
        "first_words": [" ".join(line.split()[: args.words]) for line in articles],
        "random_title": [draw(titles) for _ in articles],
    }
    for name, lines in headlines.items():
        (args.out / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
