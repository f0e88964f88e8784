"""ROUGE-1, -2 and -L of short texts, by the rouge-score package.

Differences from ROUGE-1.5.5:

* All words count, stop words included (``-s`` is not offered).
* Of several references the one with the highest F1 counts, separately for each metric. ``-f A`` takes the best recall
  and drops references in turn.
* ROUGE-L treats a text as one sentence (rouge-score's rougeL). Texts of several lines should not be compared with
  published summary-level ROUGE-L (rougeLsum).
* The stemmer is NLTK's Porter stemmer, which has a few exceptions of its own.
* A text has at most 5,000 words, because time and memory of ROUGE-L are the product of the lengths.

rouge-score and sacremoses are imported when needed. They take a second, and all commands of fairseq import this module.
"""

import argparse
import logging
import unicodedata
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Dict, Iterable, List, Sequence, Union

import numpy as np
import regex
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.scoring import BaseScorer, register_scorer

from fairseq_plugins.console import progress
from fairseq_plugins.metrics.bootstrap import NUM_BOOTSTRAP_SAMPLES, SEED
from fairseq_plugins.options import OnOff, UserError, choices

if TYPE_CHECKING:
    from rouge_score.scoring import Score
    from rouge_score.tokenizers import Tokenizer
    from sacremoses import MosesDetokenizer

UNKNOWN_REFERENCE = Dictionary().unk_string(escape=True)
"""fairseq's replacement for words of references that the dictionary lacks. Metrics would count parts of it as words."""

NO_HYPOTHESIS_HAS_THIS = "zqxjkvw"
"""Replacement of :data:`UNKNOWN_REFERENCE` in metrics. It has the same length, so that byte limits cut the same."""

METRICS = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
TOKENIZERS = ("rouge", "unicode")
LONGEST = 5000
"""Words of a text at most."""

_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_WORD = regex.compile(
    rf"[[{_UNSPACED}]&&\p{{L}}]\p{{M}}*|[[\p{{L}}\p{{N}}]--[{_UNSPACED}]][[\p{{L}}\p{{N}}\p{{M}}]--[{_UNSPACED}]]*",
    regex.V1,
)


@cache
def _moses() -> "MosesDetokenizer":
    from sacremoses import MosesDetokenizer

    return MosesDetokenizer()


def without_escapes(text: str) -> str:
    """The text without the escapes of the Moses tokeniser, whose letters ROUGE would count."""
    return str(_moses().unescape_xml(text))


@dataclass(frozen=True)
class RougeSettings:
    """Settings of ROUGE. Only scores with the same :meth:`signature` are comparable.

    Attributes:
        stemming: "on", as ROUGE-1.5.5 -m: words of more than three letters are stemmed (English); or "off".
        tokenizer: "rouge", as ROUGE-1.5.5: words of a-z and 0-9, separated by all else. "unicode": words of letters and
            digits of any script, for languages other than English. In scripts without spaces (Chinese, Japanese, Thai,
            Lao, Khmer, Burmese) every letter is a word.
        max_bytes: texts are cut after this many bytes of UTF-8, as ROUGE-1.5.5 -b (75 in DUC 2004); 0 is no limit.
        max_words: texts are cut after this many words, as ROUGE-1.5.5 -l; 0 is no limit.

    Raises:
        UserError: on a negative limit or two limits.
    """

    stemming: str = "on"
    tokenizer: str = "rouge"
    max_bytes: int = 0
    max_words: int = 0

    def __post_init__(self) -> None:
        for unit, limit in (("bytes", self.max_bytes), ("words", self.max_words)):
            if limit < 0:
                raise UserError(f"a limit of {limit} {unit}: give 0 for no limit, or more")
        if self.max_bytes and self.max_words:
            raise UserError(f"limits of {self.max_bytes} bytes and of {self.max_words} words: give one of them")

    def signature(self, *, num_references: int, references: str = "raw") -> str:
        """The settings, as short as sacreBLEU's; ``references`` says whether they are "raw" or of a "dictionary"."""
        limit = f"{self.max_bytes}b" if self.max_bytes else f"{self.max_words}w" if self.max_words else "none"
        return (
            f"#:{num_references}|ref:{references}|bs:{NUM_BOOTSTRAP_SAMPLES}|rs:{SEED}|tok:{self.tokenizer}|"
            f"stem:{self.stemming}|limit:{limit}|v:rouge-score-{version('rouge-score')},nltk-{version('nltk')}"
        )


DEFAULT_SETTINGS = RougeSettings()


class UnicodeTokenizer:
    """Lower-cased words of letters and digits of any script."""

    def __init__(self, stem: "Tokenizer"):
        self.stem = stem

    def tokenize(self, text: str) -> List[str]:
        return [self._stemmed(word) for word in _WORD.findall(unicodedata.normalize("NFC", text.lower()))]

    def _stemmed(self, word: str) -> str:
        stemmed: List[str] = self.stem.tokenize(word) if word.isascii() else []
        return stemmed[0] if len(stemmed) == 1 else word


class Rouge:
    """Scores of one text at a time, by some of :data:`METRICS`."""

    def __init__(self, settings: RougeSettings, metrics: Iterable[str] = METRICS):
        from rouge_score import rouge_scorer, tokenizers

        self.settings = settings
        tokenizer = tokenizers.DefaultTokenizer(use_stemmer=settings.stemming == "on")
        if settings.tokenizer == "unicode":
            tokenizer = UnicodeTokenizer(tokenizer)
        self.tokenizer = tokenizer
        self._scorer = rouge_scorer.RougeScorer(list(metrics), tokenizer=tokenizer)

    def score(self, hypothesis: str, references: Sequence[str]) -> "Dict[str, Score]":
        """Precision, recall and F1 (0 to 1) of each metric; an empty text scores 0.

        Raises:
            UserError: if a text has more than :data:`LONGEST` words.
        """
        hypothesis, *references = map(self.cut, (hypothesis, *references))
        for text in (hypothesis, *references):
            if len(text) > LONGEST and (num_words := len(self.tokenizer.tokenize(text))) > LONGEST:
                raise UserError(
                    f"the text that begins with '{text[:30]}' has {num_words:,} words, and ROUGE takes at most "
                    f"{LONGEST:,}: limit the words or bytes of texts"
                )
        return self._scorer.score_multi(references, hypothesis)

    def cut(self, text: str) -> str:
        """The text up to the limit."""
        if self.settings.max_bytes:
            return text.encode("utf-8")[: self.settings.max_bytes].decode("utf-8", errors="ignore")
        if self.settings.max_words:
            return " ".join(text.split()[: self.settings.max_words])
        return text


@dataclass(frozen=True)
class RougeScore:
    """Mean over the texts, times 100, with the half-width of its 95 % bootstrap interval."""

    metric: str
    precision: float
    recall: float
    f1: float
    f1_interval: float


def score_corpus(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    settings: RougeSettings,
) -> List[RougeScore]:
    """ROUGE of hypotheses with one or more references each.

    Args:
        hypotheses: a text each.
        references: of every hypothesis, one or more.
        settings: what decides the score.

    Raises:
        UserError: on no text, or a text with more than :data:`LONGEST` words.
    """
    if not hypotheses:
        raise UserError("there is no text to score")
    rouge = Rouge(settings)
    pairs = progress(list(zip(hypotheses, references)), unit=" texts", desc="ROUGE")
    scores = [rouge.score(*pair) for pair in pairs]
    return [_aggregate(title, [score[metric] for score in scores]) for metric, title in METRICS.items()]


def check_tokens(
    references: Sequence[Sequence[str]], settings: RougeSettings, *, remedy: str = "take the unicode tokeniser"
) -> None:
    """Check that the tokeniser knows the script of references: it must not empty half of them or more.

    Args:
        references: of every hypothesis. Replaced unknown words do not count.
        settings: with the tokeniser.
        remedy: end of the error message.

    Raises:
        UserError: with the first such line.
    """
    tokenizer = Rouge(settings).tokenizer
    numbered = [(number, text) for number, texts in enumerate(references, 1) for text in texts]
    known = [(number, text.replace(NO_HYPOTHESIS_HAS_THIS, "")) for number, text in numbered]
    lines = [(number, text) for number, text in known if _WORD.search(text)]
    emptied = [number for number, text in lines if not text.isascii() and not tokenizer.tokenize(text)]
    if emptied and 2 * len(emptied) >= len(lines):
        others = f" and {len(emptied) - 1} more have" if len(emptied) > 1 else " has"
        raise UserError(
            f"line {emptied[0]} of the references{others} no word in a-z and 0-9, the only characters that ROUGE-1.5.5 "
            f"reads: {remedy}"
        )


def _aggregate(title: str, scores: "List[Score]") -> RougeScore:
    matrix = 100 * np.array(scores)
    generator = np.random.default_rng(SEED)
    means = [matrix[generator.integers(len(matrix), size=len(matrix)), 2].mean() for _ in range(NUM_BOOTSTRAP_SAMPLES)]
    low, high = np.percentile(means, [2.5, 97.5])
    precision, recall, f1 = map(float, matrix.mean(axis=0))
    return RougeScore(title, precision, recall, f1, float(high - low) / 2)


# The scorer of fairseq-generate --scoring rouge, and the same flags of commands.

logger = logging.getLogger(__name__)

_PREFIX = "rouge_"
RougeTokenizer = choices(TOKENIZERS)


@dataclass
class RougeScorerConfig(FairseqDataclass):
    """Flags of ``--scoring rouge``. Flags of commands have no prefix."""

    rouge_stemming: OnOff = field(
        default="on", metadata={"help": "whether English words are stemmed, as ROUGE-1.5.5 -m does"}
    )
    rouge_tokenizer: RougeTokenizer = field(
        default="rouge",
        metadata={"help": "rouge: words of a-z and 0-9, as ROUGE-1.5.5; unicode: words of any script"},
    )
    rouge_max_bytes: int = field(
        default=0, metadata={"help": "cut texts after this many bytes, as ROUGE-1.5.5 -b (75 in DUC 2004; 0: no limit)"}
    )
    rouge_max_words: int = field(
        default=0, metadata={"help": "cut texts after this many words, as ROUGE-1.5.5 -l (0: no limit)"}
    )


def add_rouge_settings(parser: Union[argparse.ArgumentParser, argparse._ArgumentGroup]) -> None:
    """Declare ``--stemming``, ``--tokenizer``, ``--max-bytes`` and ``--max-words``, for :func:`read_rouge_settings`."""
    for one in fields(RougeScorerConfig):
        if one.name.startswith(_PREFIX):
            flag = f"--{one.name.removeprefix(_PREFIX).replace('_', '-')}"
            values = list(map(str, one.type)) if isinstance(one.type, type(OnOff)) else None
            help = f"{one.metadata['help']} (default: %(default)s)"
            parser.add_argument(flag, type=type(one.default), choices=values, default=one.default, help=help)


def read_rouge_settings(args: argparse.Namespace) -> RougeSettings:
    """The settings of the flags of :func:`add_rouge_settings`. Raises UserError as :class:`RougeSettings` does."""
    return RougeSettings(args.stemming, args.tokenizer, args.max_bytes, args.max_words)


@register_scorer("rouge", dataclass=RougeScorerConfig)
class RougeScorer(BaseScorer):
    """ROUGE-1, -2 and -L of the hypotheses that fairseq passes.

    fairseq's references lack words that are not in the dictionary. These count as words that no hypothesis has. To
    compare with other work, score against the raw references with ``fairseq-plugins evaluate rouge``.
    """

    def __init__(self, cfg: RougeScorerConfig):
        super().__init__(cfg)
        words = str(cfg.rouge_stemming), str(cfg.rouge_tokenizer)
        self.settings = RougeSettings(*words, cfg.rouge_max_bytes, cfg.rouge_max_words)

    def add_string(self, ref: str, pred: str) -> None:
        ref = ref.replace(UNKNOWN_REFERENCE, NO_HYPOTHESIS_HAS_THIS)
        super().add_string(without_escapes(ref), without_escapes(pred))

    def scores(self) -> List[RougeScore]:
        """Scores of all pairs so far. References of another script only give a warning, so that no decoding is lost."""
        try:
            check_tokens(
                [[reference] for reference in self.ref], self.settings, remedy="take --rouge-tokenizer unicode"
            )
        except UserError as error:
            logger.warning(str(error))
        return score_corpus(self.pred, [[reference] for reference in self.ref], self.settings)

    def score(self) -> float:
        """ROUGE-L F1, 0 to 100."""
        return self.scores()[-1].f1

    def result_string(self) -> str:
        parts = [
            f"{item.metric} F1 {item.f1:.2f} (P {item.precision:.2f}, R {item.recall:.2f})" for item in self.scores()
        ]
        return f"{', '.join(parts)} {self.settings.signature(num_references=1, references='dictionary')}"
