"""Headlines that need no model: ``python -m fairseq_plugins.cli.headline_baselines --help``."""

import argparse
import random

from fairseq_plugins.command_line import Command, add_out
from fairseq_plugins.data.text import read_lines
from fairseq_plugins.options import check_at_least_one, given_path, write_text


class HeadlineBaselines(Command):
    """Writes headlines without a model."""

    name = "headline_baselines"
    summary = "Headlines that need no model: the article's first words, and a random headline of the training set."
    description = "Writes first_words.txt and random_title.txt."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--articles",
            type=given_path,
            required=True,
            metavar="FILE",
            help="articles, one a line, such as DATA/raw/test.article",
        )
        parser.add_argument(
            "--titles",
            type=given_path,
            required=True,
            metavar="FILE",
            help="training headlines, such as WORK/article-title/text/train.title",
        )
        add_out(parser, help="directory for the two texts, a headline a line")
        parser.add_argument("--words", type=int, default=8, help="words of the article (default: %(default)s)")
        parser.add_argument("--seed", type=int, default=1, help="seed of the random choice (default: %(default)s)")

    def run(self, args: argparse.Namespace) -> None:
        check_at_least_one(args.words, flag="--words")
        articles, titles = read_lines(args.articles), read_lines(args.titles)
        draw = random.Random(args.seed).choice
        headlines = {
            "first_words": [" ".join(line.split()[: args.words]) for line in articles],
            "random_title": [draw(titles) for _ in articles],
        }
        args.out.mkdir(parents=True, exist_ok=True)
        for name, lines in headlines.items():
            write_text(args.out / f"{name}.txt", "".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    HeadlineBaselines().main()
