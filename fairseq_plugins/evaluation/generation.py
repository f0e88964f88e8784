"""Text that language models write after a prefix, by sampling or beam search.

Shapes: R rows, t tokens read so far, V vocabulary.
"""

import math
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Literal, Optional, Sequence, Tuple, get_args

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqLanguageModel
from torch import Tensor

from fairseq_plugins.evaluation.raw_text import SideText, number_words
from fairseq_plugins.evaluation.scoring import NonFiniteLoss, ScoredStream, average_log_probs, device_of
from fairseq_plugins.modules.cell import select_rows
from fairseq_plugins.options import UserError, check_at_least_one, check_choice, check_positive, check_whole


class NextWords:
    """R rows of text that grow word by word, with the distribution of the next word of each row.

    All rows continue one stream. Its models are averaged as probabilities.
    """

    def __init__(self, stream: ScoredStream, *, num_rows: int):
        self.models = stream.models
        self.device = device_of(self.models[0])
        rows = torch.zeros(num_rows, dtype=torch.long, device=self.device)
        self._tokens = (rows + stream.last).unsqueeze(1)
        self._stores: List[Dict[str, Dict[str, Any]]] = [{} for _ in self.models]
        for model, store, state in zip(self.models, self._stores, stream.states()):
            if state is not None:
                model.decoder.cache(store, select_rows(state, rows))

    def append(self, words: Tensor) -> None:
        """Add a word (R,) to each row. The next :meth:`log_probs` reads it."""
        self._tokens = torch.cat([self._tokens, words.to(self.device).unsqueeze(1)], dim=1)

    def select(self, rows: Tensor) -> None:
        """Keep the given rows, (R',) int64, in their order."""
        rows = rows.to(self.device)
        self._tokens = self._tokens.index_select(0, rows)
        for model, store in zip(self.models, self._stores):
            model.decoder.reorder_incremental_state_scripting(store, rows)

    @torch.no_grad()
    def log_probs(self) -> Tensor:
        """Log-probabilities of the word after each row, (R, V) float64 on the CPU.

        Raises NonFiniteLoss if one is NaN.
        """
        found = []
        for model, store in zip(self.models, self._stores):
            found.append(model.eval().decoder(self._tokens, incremental_state=store)[0][:, -1])
        log_probs = average_log_probs(found).cpu()
        if log_probs.isnan().any():
            raise NonFiniteLoss(
                "the models give words no finite probability: their training diverged; take other checkpoints"
            )
        return log_probs


SEED = 1
"""Default seed of sampling."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Draws words from P(w)^(1 / temperature), normalised, restricted to the most probable words.

    Attributes:
        temperature: above 0; lower is closer to the most probable word.
        top_k: number of words to draw from, or None for all.
        top_p: draw from the fewest words whose probabilities, after the temperature, sum to this value (Holtzman et
            al. 2020), 0 < top_p <= 1, or None for all. Both limits apply together.
        seed: 0 or more; default :data:`SEED`.

    Raises:
        UserError: if a value does not fit.
    """

    temperature: float = 1.0
    top_k: Optional[int] = None
    top_p: Optional[float] = None
    seed: Optional[int] = None

    def __post_init__(self) -> None:
        check_positive(self.temperature, flag="temperature")
        if self.top_k is not None:
            check_at_least_one(self.top_k, flag="top-k")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top-p {self.top_p}: give a share above 0, at most 1")
        if self.seed is not None:
            check_whole(self.seed, flag="--seed")

    @property
    def is_default(self) -> bool:
        """Whether no option of sampling was given."""
        return (self.temperature, self.top_k, self.top_p, self.seed) == (1.0, None, None, None)

    def generator(self, *key: int) -> np.random.Generator:
        """The generator of the draws of one text. Equal seeds and keys draw equal texts."""
        return np.random.default_rng((SEED if self.seed is None else self.seed, *key))

    def choose(self, log_probs: Tensor, draws: Tensor) -> Tensor:
        """A word for each row, (R,) int64.

        Args:
            log_probs: (R, V) float64, -inf for words that are left out; they need not be normalised.
            draws: (R,) float64 within [0, 1). Equal draws give equal words.
        """
        highest = log_probs.max(dim=1, keepdim=True).values  # shifted to 0, so that no temperature overflows
        scaled = torch.log_softmax((log_probs - highest) / self.temperature, dim=1)
        if self.top_k is None and self.top_p is None:
            return _drawn_columns(scaled.exp(), draws)
        sorted_log_probs, words = scaled.sort(dim=1, descending=True, stable=True)
        probs = sorted_log_probs.exp()
        before = probs.cumsum(dim=1) - probs
        if self.top_k is not None:
            probs[:, self.top_k :] = 0
        if self.top_p is not None:
            probs[before >= self.top_p] = 0
        return words.gather(1, _drawn_columns(probs, draws).unsqueeze(1)).squeeze(1)


def _drawn_columns(probs: Tensor, draws: Tensor) -> Tensor:
    """A column for each row, (R,), drawn by inversion from probabilities (R, V), which need not be normalised."""
    sums = probs.cumsum(dim=1)
    # draw * total may round up to the total, beyond the last column
    drawn = torch.minimum(draws.unsqueeze(1) * sums[:, -1:], sums[:, -1:] * (1 - math.ulp(1.0)))
    return torch.searchsorted(sums, drawn, right=True).squeeze(1)


Stop = Literal["end", "length"]
"""A text stops at an end mark, or only at its maximum length, where end marks are ordinary words."""
STOPS: Sequence[Stop] = get_args(Stop)

UnknownWords = Literal["allowed", "excluded"]
"""Whether the unknown word may be generated."""
UNKNOWN_WORDS: Sequence[UnknownWords] = get_args(UnknownWords)


@dataclass(frozen=True, kw_only=True)
class GenerationOptions(Sampling):
    """How prefixes are continued. The attributes are named like the flags of ``lm generate``.

    Attributes:
        num: number of texts.
        beam: number of hypotheses of a beam search, at least ``num``, or None for sampling.
        max_length: largest number of tokens to generate.
        stop: at an end mark, or only at ``max_length``.
        unknown: whether the unknown word may be generated.

    Raises:
        UserError: if a value does not fit, or a beam search has options of sampling.
    """

    num: int = 1
    beam: Optional[int] = None
    max_length: int = 100
    stop: Stop = "end"
    unknown: UnknownWords = "allowed"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least_one(self.num, flag="--num")
        check_at_least_one(self.max_length, flag="--max-length")
        check_choice(self.stop, STOPS, flag="--stop")
        check_choice(self.unknown, UNKNOWN_WORDS, flag="--unknown")
        if self.beam is not None:
            if check_at_least_one(self.beam, flag="--beam") < self.num:
                raise UserError(f"--num {self.num} of a beam of {self.beam}: give a --beam of at least {self.num}")
            if not self.is_default:
                raise UserError("--top-k, --top-p, --temperature and --seed are for sampling: leave them or --beam out")


ROWS_AT_A_TIME = 256
"""Texts that are drawn together; bounds memory."""


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """A prefix and its continuation as detokenised text, in which each end mark is a line break.

    ``prefix`` is the raw line. ``tokens`` has the tokens of the continuation, with the end mark if it ended there, and
    ``log_probs`` the natural logarithms of their probabilities.
    """

    prefix: str
    text: str
    tokens: List[str]
    log_probs: List[float]

    @property
    def total(self) -> float:
        """Natural logarithm of the probability of the continuation."""
        return sum(self.log_probs)

    def figures(self) -> Dict[str, Any]:
        """All of it, for JSON."""
        figures = {"prefix": self.prefix, "text": self.text, "log_prob": self.total}
        return {**figures, "tokens": self.tokens, "log_probs": self.log_probs}


@dataclass
class _Row:
    numbers: List[int] = field(default_factory=list)
    log_probs: List[float] = field(default_factory=list)

    def extended(self, number: int, log_prob: float) -> "_Row":
        return _Row([*self.numbers, number], [*self.log_probs, log_prob])

    @property
    def mean(self) -> float:
        return sum(self.log_probs) / len(self.log_probs)


class TextGenerator:
    """Continues prefixes. Several threads can use it at the same time.

    Each prefix is continued alone, so its result does not depend on other prefixes.

    Args:
        models: language models of one vocabulary on one device; several are averaged as probabilities.
        text: how lines become tokens, and tokens lines.
        options: how prefixes are continued.
    """

    def __init__(self, models: Sequence[FairseqLanguageModel], text: SideText, options: GenerationOptions):
        self.models = models
        self.text = text
        self.options = options
        self.dictionary: Dictionary = models[0].decoder.dictionary
        self._never = [self.dictionary.bos(), self.dictionary.pad()]
        if options.unknown == "excluded":
            self._never.append(self.dictionary.unk())

    @contextmanager
    def open_stream(self, text: Sequence[str]) -> Iterator[ScoredStream]:
        """Yield a stream that has read the lines of a text, for prefixes to continue."""
        numbers = [number_words(self.text.split(line), self.dictionary) for line in text]
        with ScoredStream(self.models) as stream:
            stream.score(torch.cat([torch.empty(0, dtype=torch.long), *numbers]))
            yield stream

    def continuations(self, prefix: str, *, after: ScoredStream) -> List[Continuation]:
        """Texts that begin with a prefix, which may be empty. It follows the stream ``after``, which does not change.

        A sample depends only on the prefix, the seed and its own index: it has its own random generator. A beam search
        returns the best texts by their mean log-probability of a token, the best first. A text ends at an end mark
        among the ``beam`` best candidates, or at the maximum length. The search stops when ``beam`` texts have ended,
        and may find fewer texts than were asked for.
        """
        pieces = self.text.split(prefix)
        numbers = number_words(pieces, self.dictionary)[:-1]
        with after.fork() as stream:
            stream.score(numbers)
            rows: List[_Row] = []
            if self.options.beam is not None:
                rows = self._search(NextWords(stream, num_rows=1), beam=self.options.beam)
            else:
                chances = [self.options.generator(k, *numbers.tolist()) for k in range(self.options.num)]
                for first in range(0, len(chances), ROWS_AT_A_TIME):
                    group = chances[first : first + ROWS_AT_A_TIME]
                    rows += self._sample(NextWords(stream, num_rows=len(group)), group)
        return [self._continuation(prefix, pieces, row) for row in rows]

    def _sample(self, words: NextWords, chances: Sequence[np.random.Generator]) -> List[_Row]:
        """Draw a text for each generator."""
        rows, alive = [_Row() for _ in chances], list(range(len(chances)))
        for step in range(self.options.max_length):
            log_probs = words.log_probs()
            draws = torch.tensor([chances[i].random() for i in alive], dtype=torch.float64)
            chosen = self.options.choose(self._allowed(log_probs), draws)
            chosen_log_probs = log_probs.gather(1, chosen.unsqueeze(1)).squeeze(1)
            for row, number, log_prob in zip(alive, chosen.tolist(), chosen_log_probs.tolist()):
                rows[row] = rows[row].extended(number, log_prob)
            goes_on = [i for i, number in enumerate(chosen.tolist()) if not self._stops(number)]
            if not goes_on or step + 1 == self.options.max_length:
                break
            if len(goes_on) < len(alive):
                words.select(torch.tensor(goes_on))
                alive = [alive[i] for i in goes_on]
            words.append(chosen[goes_on])
        return rows

    def _search(self, words: NextWords, *, beam: int) -> List[_Row]:
        """The best texts of a beam search, the best first."""
        alive = [_Row()]
        ended: List[_Row] = []
        for step in range(self.options.max_length):
            # a row has one candidate that ends it, so at least beam of 2 * beam candidates continue
            candidates = self._candidates(alive, words.log_probs(), num=2 * beam)
            best = [(row, source) for row, source in candidates[:beam] if self._stops(row.numbers[-1])]
            ended += [row for row, _ in best]
            kept = [(row, source) for row, source in candidates if not self._stops(row.numbers[-1])][:beam]
            alive = [row for row, _ in kept]
            if len(ended) >= beam or not alive or step + 1 == self.options.max_length:
                break
            words.select(torch.tensor([source for _, source in kept]))
            words.append(torch.tensor([row.numbers[-1] for row in alive]))
        found = ended if len(ended) >= beam else [*ended, *alive]
        return sorted(found, key=lambda row: row.mean, reverse=True)[: self.options.num]

    def _allowed(self, log_probs: Tensor) -> Tensor:
        """The log-probabilities with -inf for words that are never generated."""
        return log_probs.index_fill(1, torch.tensor(self._never), -torch.inf)

    def _candidates(self, alive: Sequence[_Row], log_probs: Tensor, *, num: int) -> List[Tuple[_Row, int]]:
        """The best rows with one more word, the best first, each with the index of the row that it extends."""
        totals = torch.tensor([sum(row.log_probs) for row in alive], dtype=torch.float64)
        scores = (totals.unsqueeze(1) + self._allowed(log_probs)).flatten()
        best = scores.topk(min(num, int(scores.isfinite().sum()))).indices
        sources, numbers = best // log_probs.size(1), best % log_probs.size(1)
        return [
            (alive[source].extended(number, float(log_probs[source, number])), source)
            for source, number in zip(sources.tolist(), numbers.tolist())
        ]

    def _stops(self, number: int) -> bool:
        return self.options.stop == "end" and number == self.dictionary.eos()

    def _continuation(self, prefix: str, pieces: Sequence[str], row: _Row) -> Continuation:
        tokens: List[str] = [self.dictionary[number] for number in row.numbers]
        end = self.dictionary.eos_word
        lines: List[List[str]] = [list(pieces)]
        for piece in tokens[:-1] if row.numbers and self._stops(row.numbers[-1]) else tokens:
            if piece == end:
                lines.append([])
            else:
                lines[-1].append(piece)
        text = "\n".join(self.text.join(line) for line in lines)
        return Continuation(prefix=prefix, text=text, tokens=tokens, log_probs=row.log_probs)
