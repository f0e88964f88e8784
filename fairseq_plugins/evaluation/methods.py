"""Test-time methods: temperature, dropout samples, caches, and mixtures with other distributions.

:class:`~fairseq_plugins.evaluation.evaluator.Evaluator` puts them together. Every token is scored before any method
learns of it.

Shapes: M models, B rows, T window length, V vocabulary, D width of a model's last layer.
"""

import random
import sys
from abc import ABC, abstractmethod
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, Iterator, NamedTuple, Optional, Sequence, Tuple

import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqLanguageModel
from fairseq.modules import FairseqDropout
from torch import Tensor

from fairseq_plugins.evaluation.dynamic_evaluation import DynamicOptions
from fairseq_plugins.evaluation.scoring import (
    ScoredWindow,
    average_log_probs,
    average_nll,
    set_within_block,
)
from fairseq_plugins.models.decoder import new_stream
from fairseq_plugins.modules.layers import DropoutModule
from fairseq_plugins.ngrams.model import NGramModel
from fairseq_plugins.options import UserError
from fairseq_plugins.output_layers.base import OutputLayer


class ComponentScores(NamedTuple):
    """Probabilities of a window's targets by a component.

    Attributes:
        log_probs: in nats, (B, T) float64, -inf where a probability is zero.
        known: where the component has a distribution, (B, T) bool; an empty cache has none. Elsewhere ``log_probs`` has
            no meaning, and the component's weight is added to the model's.
    """

    log_probs: Tensor
    known: Tensor


class EvaluatedText:
    """A stream (n,) int64 to evaluate on, cut into rows."""

    def __init__(self, tokens: Tensor, *, dictionary: Dictionary, num_rows: int):
        self.tokens = tokens
        self.dictionary = dictionary
        self.num_rows = num_rows
        self._ngram_log_probs: Dict[Path, Tensor] = {}

    @property
    def row_length(self) -> int:
        """Tokens of a row, at least 1."""
        return max(1, self.tokens.numel() // self.num_rows)

    def ngram_log_probs(self, path: Path) -> Tensor:
        """Log-probability of each token by an n-gram model, (n,) float64, in nats. The file is read once.

        Raises UserError if the file holds no such model.
        """
        if path not in self._ngram_log_probs:
            self._ngram_log_probs[path] = NGramModel.read_arpa(path, self.dictionary).log_probs(self.tokens)
        return self._ngram_log_probs[path]


Reader = Callable[[ScoredWindow], ComponentScores]
"""The probability of each target of a window, given the tokens before it."""


class Component(ABC):
    """A distribution that is mixed with a model's. Components are hashable, so a grid search scores each only once."""

    @abstractmethod
    def reader(self, text: EvaluatedText) -> Reader:
        """A function that scores the windows of a text, which come in order, from the first."""


def interpolate(log_probs: Tensor, components: Sequence[ComponentScores], weights: Sequence[float]) -> Tensor:
    """log((1 - sum_i w_i) p + sum_i w_i p_i), (B, T) float64; the sums are over the components that are known.

    Args:
        log_probs: log p of the model, (B, T) float64; returned as it is if no component has a weight.
        components: log p_i.
        weights: w_i, at least 0, with a sum below 1.
    """
    assert min(weights, default=0.0) >= 0 and sum(weights) < 1
    weighted = [(one, weight) for one, weight in zip(components, weights) if weight > 0]
    if not weighted:
        return log_probs
    known_weights = [one.known.double() * weight for one, weight in weighted]  # 0 where a component is unknown
    rest = 1 - torch.stack(known_weights).sum(dim=0)
    parts = [log_probs + rest.log()]
    for (one, _), weight in zip(weighted, known_weights):
        # log_probs of an unknown component may be NaN, and NaN plus a log-weight of -inf is NaN
        parts.append(torch.where(one.known, one.log_probs + weight.log(), -torch.inf))
    return torch.logsumexp(torch.stack(parts), dim=0)


@contextmanager
def softmax_temperature(models: Sequence[FairseqLanguageModel], *, temperature: float) -> Iterator[None]:
    """Divide the logits of all softmaxes, also of every expert, by the temperature within the block.

    Raises UserError if the temperature is not 1 and a model's output layer has no logits.
    """
    layers = [part for model in models for part in model.modules() if isinstance(part, OutputLayer)]
    others = [layer.name for layer in layers if not hasattr(layer, "temperature")]
    if temperature != 1 and others:
        raise UserError(
            f"--temperature {temperature:g}: --output-layer {others[0]} has no logits to divide; leave it out"
        )
    layers = [layer for layer in layers if hasattr(layer, "temperature")]
    with set_within_block(layers, "temperature", [temperature] * len(layers)):
        yield


# The mean of a model's probabilities over dropout masks (Gal & Ghahramani 2016; Melis et al. 2020).


@dataclass(frozen=True)
class DropoutOptions:
    """The number of masks for every window, a factor of the trained rates, at least 0, and the seed of the masks."""

    num_samples: int
    scale: float
    seed: int


@contextmanager
def sampled_masks(models: Sequence[FairseqLanguageModel], *, scale: float) -> Iterator[None]:
    """Every dropout of models in evaluation mode is active within the block, at its trained rate times ``scale``.

    Other things that belong to training mode, such as margins, stay off. Raises UserError if a rate would be 1 or more.
    """
    modules = [part for model in models for part in model.modules()]
    parts = [part for part in modules if isinstance(part, DropoutModule)]
    of_fairseq = [part for part in modules if isinstance(part, FairseqDropout)]
    highest = max([*(part.rate for part in parts), *(part.p for part in of_fairseq)], default=0.0)
    if highest * scale >= 1:
        raise UserError(f"--dropout-scale {scale:g}: the model has a dropout rate of {highest:g}; give a lower scale")
    with ExitStack() as stack:
        stack.enter_context(set_within_block(parts, "evaluation_scale", [scale] * len(parts)))
        stack.enter_context(set_within_block(of_fairseq, "p", [scale * part.p for part in of_fairseq]))
        stack.enter_context(set_within_block(of_fairseq, "apply_during_inference", [True] * len(of_fairseq)))
        yield


class DropoutSamples:
    """Several passes over a stream, each with its own masks and its own carried state, averaged as probabilities.

    A mask lasts a window or a token, as in training. It depends only on the seed, the pass, the model's number and the
    position in the stream, so other methods and earlier draws do not change it.
    """

    def __init__(self, models: Sequence[FairseqLanguageModel], options: DropoutOptions):
        self.models = models
        self.options = options
        self._name = new_stream("dropout samples")

    @torch.no_grad()
    def nll(self, window: ScoredWindow) -> Tensor:
        """NLL of a window's targets by the mean of the probabilities, (B, T) float64. Windows come in order.

        Raises UserError if it is not finite, or a rate would be 1 or more.
        """
        devices = [window.target.device] if window.target.is_cuda else []
        with sampled_masks(self.models, scale=self.options.scale), torch.random.fork_rng(devices):
            samples = [-self._sample(window, sample) for sample in range(self.options.num_samples)]
        return -average_log_probs(samples)

    def forget(self) -> None:
        """Drop the carried states of the passes."""
        for model in self.models:
            for sample in range(self.options.num_samples):
                model.decoder.carried_state.forget(self._stream(sample))

    def _sample(self, window: ScoredWindow, sample: int) -> Tensor:
        nll = []
        for number, model in enumerate(self.models):
            seed = f"{self.options.seed} {sample} {number} {window.position}"
            torch.manual_seed(random.Random(seed).getrandbits(63))
            _, extra = model.eval()(
                window.inputs, stream=self._stream(sample), position=window.position, target=window.target
            )
            nll.append(extra["scores"].nll)
        return average_nll(nll)

    def _stream(self, sample: int) -> str:
        return f"{self._name}, pass {sample}"


# Caches: the last W tokens before each position of each row.
#
# Shapes: W window of the cache, n <= W tokens kept before a window, C tokens of a chunk, K tokens that they see.


CHUNK_TOKENS = 128
CHUNK_ELEMENTS = 2**20
"""Bound of the elements (B, C, K) of a chunk."""


class RecentValues:
    """Values of the last ``length`` tokens, W, of each row."""

    def __init__(self, length: int):
        self.length = length
        self._kept: Optional[Tensor] = None

    def extend(self, values: Tensor) -> Tensor:
        """Add the values of a window, (B, T, *); returns those kept before and the new ones, (B, n + T, *)."""
        together = values if self._kept is None else torch.cat([self._kept, values], dim=1)
        self._kept = together[:, -self.length :]
        return together


def iter_bands(target: Tensor, *, num_kept: int, length: int) -> Iterator[Tuple[slice, slice, Tensor]]:
    """All tokens of a window in chunks of C, in order, each with the K tokens that they see.

    A token sees the W = ``length`` tokens before it, or as many as there are. Without chunks a cache would hold all
    pairs (B, T, n + T), of which only a band of width W counts. ``target`` is the window's, (B, T), and ``num_kept``
    is n.

    Yields:
        positions of the C tokens among the window's T, positions of the K tokens among the n + T that were kept before
        or are in the window, and the band: which of the K tokens each of the C tokens sees, (C, K) bool.
    """
    num_rows, num_tokens = target.shape
    size = max(1, min(CHUNK_TOKENS, CHUNK_ELEMENTS // (num_rows * (length + CHUNK_TOKENS))))
    for first in range(0, num_tokens, size):
        last = min(first + size, num_tokens)
        # the chunk's first token sees the earliest, its last token the latest
        seen = slice(max(0, num_kept + first - length), num_kept + last - 1)
        before = num_kept + first - seen.start
        band = torch.ones(last - first, seen.stop - seen.start, dtype=torch.bool, device=target.device)
        yield slice(first, last), seen, band.tril_(before - 1).triu_(before - length)


CACHE_STARTS = ("full", "first")
"""When a cache has a distribution: after more than W tokens, as in AWD-LSTM, or after the first."""


@dataclass(frozen=True)
class ContinuousCache(Component):
    """Continuous cache: words that followed hidden states like the current one (Grave, Joulin & Usunier 2017).

    p(w) is proportional to sum_i [x_{i+1} = w] exp(theta h_i . h_t) over the last W pairs (h_i, x_{i+1}). h is the
    last layer's output without dropout. Each row and each model has its own cache. The models' cache probabilities are
    averaged.

    Attributes:
        window: W, which is cut to a row of the text.
        theta: sharpness, at least 0; 0 weighs all pairs alike.
        start: a value of :data:`CACHE_STARTS`.
    """

    window: int
    theta: float
    start: str

    def reader(self, text: EvaluatedText) -> Reader:
        # a cache is full with window + 1 pairs, and the last prediction of a row has row_length - 2 before it
        if self.start == "full" and self.window >= text.row_length - 2:
            print(
                f"--cache {self.window}: a row has {text.row_length:,} tokens, so that the cache is never full and "
                "changes nothing: take a smaller window, --cache-start first, or fewer --rows",
                file=sys.stderr,
            )
        length = min(self.window, text.row_length)
        num_needed = length + 1 if self.start == "full" else 1
        recent_words, recent_states = RecentValues(length), defaultdict(lambda: RecentValues(length))

        def read(window: ScoredWindow) -> ComponentScores:
            target = window.target
            states = [recent_states[model].extend(one.top.detach()) for model, one in enumerate(window.states)]
            words = recent_words.extend(target)
            num_kept = words.size(1) - target.size(1)
            log_probs = target.new_empty(target.shape, dtype=torch.float64)
            for tokens, seen, band in iter_bands(target, num_kept=num_kept, length=length):
                # words[i] is the target at states[i], so that a pair (h_i, x_{i+1}) has one index
                others = words[:, None, seen] != target[:, tokens, None]
                current = slice(num_kept + tokens.start, num_kept + tokens.stop)
                probs = [self._pair_probs(one[:, current], one[:, seen], band) for one in states]
                at_target = [one.masked_fill_(others, 0).sum(dim=-1).double() for one in probs]
                log_probs[:, tokens] = torch.stack(at_target).mean(dim=0).log()
            num_pairs = window.position + torch.arange(target.size(1), device=target.device)
            return ComponentScores(log_probs, (num_pairs >= num_needed).expand_as(target))

        return read

    def _pair_probs(self, states: Tensor, seen: Tensor, band: Tensor) -> Tensor:
        """Softmax of theta h_i . h_t over the pairs that each token sees, (B, C, K); NaN if it sees none."""
        masks = states.new_zeros(band.shape).masked_fill_(~band, -torch.inf).expand(len(states), -1, -1)
        return torch.softmax(torch.baddbmm(masks, states, seen.transpose(1, 2), alpha=self.theta), dim=-1)


@dataclass(frozen=True)
class UnigramCache(Component):
    """Unigram cache (Kuhn & De Mori 1990): p(w) is the relative frequency of w among the last W words of the row.

    A row's first word counts, although it is never predicted. ``window`` is W, which is cut to a row of the text.
    """

    window: int

    def reader(self, text: EvaluatedText) -> Reader:
        length = min(self.window, text.row_length)
        recent = RecentValues(length)

        def read(window: ScoredWindow) -> ComponentScores:
            target = window.target
            if window.position == 0:
                recent.extend(window.inputs[:, :1])
            words = recent.extend(target)
            num_kept = words.size(1) - target.size(1)
            counts = torch.empty_like(target)
            for tokens, seen, band in iter_bands(target, num_kept=num_kept, length=length):
                counts[:, tokens] = (words[:, None, seen].eq(target[:, tokens, None]) & band).sum(dim=-1)
            num_words = window.position + 1 + torch.arange(target.size(1), device=target.device)
            log_probs = (counts.double() / num_words.clamp(max=length)).log()
            return ComponentScores(log_probs, torch.ones_like(target, dtype=torch.bool))

        return read


@dataclass(frozen=True)
class NGrams(Component):
    """An n-gram model in a file of ARPA's format."""

    path: Path

    def reader(self, text: EvaluatedText) -> Reader:
        log_probs = text.ngram_log_probs(self.path)[: len(text.tokens) // text.num_rows * text.num_rows]
        rows = log_probs.view(text.num_rows, -1)[:, 1:]  # models do not predict the first token of a row

        def read(window: ScoredWindow) -> ComponentScores:
            target = window.target
            found = rows[:, window.position : window.position + target.size(1)].to(target.device)
            return ComponentScores(found, torch.ones_like(target, dtype=torch.bool))

        return read


@dataclass(frozen=True)
class Passes:
    """Methods that change how models read a text. With other values the models must read it again.

    ``temperature`` divides the logits of all softmaxes and is above 0.
    """

    temperature: float = 1.0
    dropout: Optional[DropoutOptions] = None
    dynamic: Optional[DynamicOptions] = None


class Methods(NamedTuple):
    """Methods of an evaluation: how models read a text, and what is mixed with them, by weights with a sum below 1."""

    passes: Passes
    mixed: Dict[Component, float]
