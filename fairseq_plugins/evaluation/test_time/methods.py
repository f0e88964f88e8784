"""Which test-time methods are used, and with which values."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Optional, Tuple, Union

from fairseq.data import Dictionary
from torch import Tensor

from fairseq_plugins.evaluation.test_time.component import Component
from fairseq_plugins.evaluation.test_time.continuous_cache import ContinuousCache
from fairseq_plugins.evaluation.test_time.dropout_samples import DropoutOptions
from fairseq_plugins.evaluation.test_time.dynamic_evaluation import DynamicOptions
from fairseq_plugins.evaluation.test_time.known_log_probs import KnownLogProbs
from fairseq_plugins.evaluation.test_time.unigram_cache import UnigramCache
from fairseq_plugins.ngrams.ngram_model import NGramModel


class EvaluatedText:
    """A text that methods are used on.

    Args:
        tokens: the stream, (n,) int64.
        dictionary: of its words.
        num_rows: rows that it is cut into.
    """

    def __init__(self, tokens: Tensor, *, dictionary: Dictionary, num_rows: int):
        self.tokens = tokens
        self.dictionary = dictionary
        self.num_rows = num_rows
        self._ngram_log_probs: Dict[Path, Tensor] = {}

    @property
    def row_length(self) -> int:
        """Tokens of a row, 1 where there is not one for each."""
        return max(1, self.tokens.numel() // self.num_rows)

    def ngram_log_probs(self, path: Path) -> Tensor:
        """Log-probability of each token by an n-gram model, (n,) float64, in nats; it is read once.

        Raises:
            ValueError: if the file holds no such model.
        """
        if path not in self._ngram_log_probs:
            self._ngram_log_probs[path] = NGramModel.read_arpa(path, self.dictionary).log_probs(self.tokens)
        return self._ngram_log_probs[path]


@dataclass(frozen=True)
class CacheOptions:
    """Of a :class:`~fairseq_plugins.evaluation.test_time.continuous_cache.ContinuousCache`."""

    window: int
    theta: float
    start: str

    def build(self, text: EvaluatedText) -> Component:
        """The cache, empty; its window is no longer than a row of the text, for which it makes room."""
        # a cache is full with window + 1 pairs, and the last prediction of a row has row_length - 2 before it
        if self.start == "full" and self.window >= text.row_length - 2:
            print(
                f"--cache {self.window}: a row has {text.row_length:,} tokens, so that the cache is never full and "
                "changes nothing: take a smaller window, --cache-start first, or fewer --rows",
                file=sys.stderr,
            )
        return ContinuousCache(window=min(self.window, text.row_length), theta=self.theta, start=self.start)


@dataclass(frozen=True)
class UnigramCacheOptions:
    """Of a :class:`~fairseq_plugins.evaluation.test_time.unigram_cache.UnigramCache`."""

    window: int

    def build(self, text: EvaluatedText) -> Component:
        """The cache, empty; its window is no longer than a row of the text, for which it makes room."""
        return UnigramCache(window=min(self.window, text.row_length))


@dataclass(frozen=True)
class NGramOptions:
    """Which n-gram model: the path of a file in ARPA's format."""

    path: Path

    def build(self, text: EvaluatedText) -> Component:
        """The model's log-probabilities of the text."""
        return KnownLogProbs(text.ngram_log_probs(self.path), num_rows=text.num_rows)


ComponentOptions = Union[CacheOptions, UnigramCacheOptions, NGramOptions]


@dataclass(frozen=True)
class Passes:
    """How models read a text; with other values they must read it again.

    Attributes:
        temperature: of all softmaxes, above 0.
        dropout: masks whose probabilities are averaged, or None.
        dynamic: how the weights follow the text, or None.
    """

    temperature: float = 1.0
    dropout: Optional[DropoutOptions] = None
    dynamic: Optional[DynamicOptions] = None


@dataclass(frozen=True)
class Methods:
    """All methods of an evaluation; by default there are none.

    Attributes:
        passes: how the models read the text.
        mixed: what their probabilities are mixed with, each with its weight; the weights are below 1 together.
    """

    passes: Passes = Passes()
    mixed: Tuple[Tuple[ComponentOptions, float], ...] = ()

    @property
    def components(self) -> Tuple[ComponentOptions, ...]:
        """What has a weight, or would have one."""
        return tuple(options for options, _ in self.mixed)

    @property
    def weights(self) -> Tuple[float, ...]:
        """Of each component."""
        return tuple(weight for _, weight in self.mixed)
