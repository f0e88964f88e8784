"""Corpora of two sides, tokenised and split into subwords, or of one of these sides for a language model."""

import argparse
import importlib.metadata
import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from . import subwords
from .corpus import Corpus, Step, natural, next_command, positive, ratio
from .moses import MosesWords
from .subwords import make_subwords
from .tokens import RAW, make_tokens, moses

PAIR_OPTIONS = ("bpe", "merges", "min_length", "max_length", "max_ratio", "joined_dictionary")

LOWERCASE = {"lowercase tokens": "lower tokens", "lowercase": "lower lines"}  # in the recipe -> in text.json


class ParallelCorpus(Corpus):
    """A corpus of two sides, which fairseq calls languages: ``de`` and ``en``, or ``article`` and ``title``.

    One side by itself is text for a language model, in tokens without subwords.
    """

    pairs: list[str]  # SOURCE-TARGET. A single pair is the default of the argument.
    num_merges: int
    max_ratio: float
    max_length: int = 100
    lowercase: bool = False
    lowercase_recipe: str = "lowercase tokens"  # in the recipe of a result in lower case
    symbols: tuple[str, ...] = ()  # tokens that are never split into subwords
    # recipes whose system doc trains on the result
    recipe_of_two_dictionaries: str = "multi30k"
    recipe_of_one_dictionary: str = "multi30k_joined"
    extra_options: ClassVar[dict[str, dict[str, Any]]] = {}  # flag -> arguments of add_argument

    @property
    def result_pattern(self) -> str:
        """The name, with the pair unless there is only one."""
        return self.name if len(self.pairs) == 1 else f"{self.name}.PAIR"

    @property
    def languages(self) -> list[str]:
        """All sides."""
        return list(dict.fromkeys(side for pair in self.pairs for side in pair.split("-")))

    def subject_type(self, text: str) -> str:
        """Check the argument PAIR: one of the pairs or sides."""
        if text not in (*self.pairs, *self.languages):
            raise argparse.ArgumentTypeError(f"'{text}' is none of {', '.join([*self.pairs, *self.languages])}")
        return text

    def subject_help(self) -> str:
        """Help of the argument PAIR."""
        return f"{', '.join(self.pairs)} (source-target), or one side for a language model: {', '.join(self.languages)}"

    def pair_with(self, language: str, options: Namespace) -> str:
        """The pair to read when only one side is prepared."""
        return next(pair for pair in self.pairs if language in pair.split("-"))

    def add_options(self, parser: ArgumentParser) -> None:
        """Options of tokens, subwords and dictionaries, and the corpus' own ``extra_options``."""
        add = parser.add_argument
        add("pair", nargs="?", type=self.subject_type, metavar="PAIR", help=self.subject_help())
        add("--pair", dest="pair_option", type=self.subject_type, metavar="PAIR", help="the same as an option")
        defaults = self._pair_defaults()

        def add_for_pairs(name: str, text: str, **kwargs: Any) -> None:
            add(f"--{name.replace('_', '-')}", help=f"{text} (default: {defaults[name]})", **kwargs)

        add_for_pairs("bpe", "who splits words", choices=list(subwords.KINDS))
        add_for_pairs("merges", "joint merges", type=positive, metavar="N")
        add_for_pairs("min_length", "tokens, train only", type=positive, metavar="N")
        add_for_pairs("max_length", "tokens, train only", type=positive, metavar="N")
        text = "longer side / shorter side, train only; 0: no limit"
        add_for_pairs("max_ratio", text, type=ratio, metavar="R")
        add("--joined-dictionary", action="store_true", default=None, help="one dictionary for both sides")
        text = f"lowercase the tokens; the raw references keep their case (default: {self.lowercase})"
        add("--lowercase", action=argparse.BooleanOptionalAction, default=self.lowercase, help=text)
        text = "words seen less than N times in train become <unk>; for one side only (default: 0, none)"
        add("--threshold", type=natural, metavar="N", help=text)
        for flag, arguments in self.extra_options.items():
            add(flag, **arguments)

    def _pair_defaults(self) -> dict[str, Any]:
        values = ("subword-nmt", self.num_merges, 1, self.max_length, self.max_ratio, False)
        return dict(zip(PAIR_OPTIONS, values))

    def settle(self, options: Namespace, error: Callable[[str], None]) -> None:
        """Which sides are prepared, and the defaults of options that only pairs have."""
        if options.pair and options.pair_option and options.pair != options.pair_option:
            error(f"two pairs: {options.pair} and {options.pair_option}")
        only = self.pairs[0] if len(self.pairs) == 1 else None
        options.subject = options.pair or options.pair_option or only
        if not options.subject:
            error(f"name the pair: {self.subject_help()}")
        alone = "-" not in options.subject
        options.pair = self.pair_with(options.subject, options) if alone else options.subject
        options.sides = tuple(options.pair.split("-"))
        options.kept_sides = (options.subject,) if alone else options.sides
        options.result = self.name if options.subject == only else f"{self.name}.{options.subject}"
        for name, default in self._pair_defaults().items():
            if alone and getattr(options, name) is not None:
                error(f"--{name.replace('_', '-')} is for a pair, not for {options.subject} by itself")
            if getattr(options, name) is None:
                setattr(options, name, default)
        if not alone and options.threshold is not None:
            error("--threshold is for one language, not for a pair, which has subwords")
        options.threshold = options.threshold or 0
        if alone:
            options.max_length, options.max_ratio = sys.maxsize, 0.0
        if options.min_length > options.max_length:
            error("--min-length is larger than --max-length")

    def recipe(self, options: Namespace) -> str:
        """The pair and all options that change the result."""
        if len(options.kept_sides) == 1:
            how = [f"words seen {options.threshold} times and more" if options.threshold > 1 else ""]
        else:
            how = [
                f"{options.merges} merges of {options.bpe}",
                f"length {options.min_length} to {options.max_length}",
                f"ratio to {options.max_ratio:g}" if options.max_ratio else "any ratio",
            ]
        parts = [
            f"{self.name} {options.subject}",
            self.variant(options),
            *how,
            self.lowercase_recipe if options.lowercase else "",
            "joined dictionary" if options.joined_dictionary else "",
        ]
        return ", ".join(filter(None, parts))

    def variant(self, options: Namespace) -> str:
        """The corpus' own options, on which the raw text depends."""
        return ""

    def tokenizer_of(self, options: Namespace) -> Callable[..., Callable[[str], str]]:
        """A function of (side, lowercase) that returns a tokeniser, see :meth:`tokenizer`."""
        return self.tokenizer

    def tokenizer(self, side: str, lowercase: bool) -> Callable[[str], str]:
        """A function from a raw line of a side to its tokens, joined by spaces."""
        return moses(side, lowercase)

    def joiner(self, side: str) -> Callable[[str], str]:
        """A function that detokenises a line of a side."""
        words = MosesWords(side)
        return lambda tokens: words.join(tokens.split())

    def words_of_text(self, options: Namespace) -> dict[str, str]:
        """The words of :meth:`tokenizer`."""
        case = LOWERCASE[self.lowercase_recipe] if options.lowercase else "kept"
        return {"tokenizer": "moses", "language": options.subject, "case": case}

    def reference_of(self, options: Namespace) -> Callable[[str], Callable[[str], str]]:
        """A function of a side that returns a function from a raw line to its reference."""
        return lambda side: str

    def validation_interval(self, options: Namespace) -> int:
        """Every n-th training pair that passes the filter goes to valid. 0 if valid has its own files."""
        return 0

    def steps(self, options: Namespace) -> list[Step]:
        """Tokens and, for a pair, subwords."""
        limits = [options.min_length, options.max_length, options.max_ratio, options.lowercase]
        settings = {"sacremoses": importlib.metadata.version("sacremoses"), "filter": limits}
        steps = [Step("tokens", settings, partial(make_tokens, self, options))]
        if len(options.kept_sides) > 1:
            version = importlib.metadata.version(subwords.KINDS[options.bpe].package)
            settings = {"kind": options.bpe, "version": version, "merges": options.merges}
            steps.append(Step("subwords", settings, partial(make_subwords, self.symbols, options)))
        return steps

    def add_files(self, folders: dict[str, Path], result: Path, options: Namespace) -> None:
        """For a pair, the subword model and raw references."""
        if len(options.kept_sides) > 1:
            model = subwords.KINDS[options.bpe].file
            shutil.copyfile(folders["subwords"] / model, result / model)
            shutil.copytree(folders["tokens"] / RAW, result / "raw")

    def report(self, options: Namespace) -> str:
        """Where the result is, and the command that trains on it."""
        if len(options.kept_sides) == 1:
            return next_command(options.dest, recipe="reduced")
        model = subwords.KINDS[options.bpe].file
        is_joined = options.joined_dictionary
        recipe = self.recipe_of_one_dictionary if is_joined else self.recipe_of_two_dictionaries
        return next_command(options.dest, recipe=recipe, beside=f", with {model} and the references in raw")
