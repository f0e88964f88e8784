"""Language models of raw text: scores of lines, as they come, perplexity, and texts that the models write."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Literal, Sequence, Union, get_args

import torch
from fairseq.models import FairseqLanguageModel
from torch import Tensor

from fairseq_plugins.evaluation.checkpoints import load_language_models
from fairseq_plugins.evaluation.generation import Continuation, GenerationOptions, TextGenerator
from fairseq_plugins.evaluation.raw_text import (
    SideText,
    TextKind,
    buffered,
    checked_line,
    checked_lines,
    load_side_text,
    number_words,
)
from fairseq_plugins.evaluation.scoring import (
    ScoredStream,
    check_vocabularies,
    exponential,
    prepare_to_score,
    score_sequences,
)
from fairseq_plugins.options import UserError, check_choice

Context = Literal["line", "paragraph", "document"]
"""State is reset at every line, after every blank line, or never."""
CONTEXTS: Sequence[Context] = get_args(Context)


@dataclass(frozen=True, kw_only=True)
class ScoredLine:
    """Log-probabilities of a line.

    Attributes:
        text: the raw line.
        tokens: n words or pieces of words, the last one an end mark.
        log_probs: natural logarithm of each token's probability, n.
        unknown: whether the vocabulary lacks each token, which the models read as the unknown word, n.
    """

    text: str
    tokens: List[str]
    log_probs: List[float]
    unknown: List[bool]

    @property
    def total(self) -> float:
        """Natural logarithm of the line's probability."""
        return sum(self.log_probs)

    @property
    def nats(self) -> List[float]:
        """Surprisal of each token in nats."""
        return [-log_prob for log_prob in self.log_probs]

    @property
    def bits(self) -> List[float]:
        """Surprisal of each token in bits."""
        return [-log_prob / math.log(2) for log_prob in self.log_probs]

    def figures(self) -> Dict[str, Any]:
        """All of it, for JSON."""
        figures = {"text": self.text, "log_prob": self.total, "tokens": self.tokens}
        return {**figures, "nats": self.nats, "bits": self.bits, "unknown": self.unknown}


class TrainedLanguageModel:
    """A language model of raw text, or an ensemble. Several threads can use it at the same time.

    Args:
        models: on one device; several are averaged as probabilities.
        text: how lines become tokens.
        max_tokens: of a batch of lines; does not change the scores beyond rounding.

    Raises:
        UserError: if the models have different vocabularies.
    """

    def __init__(self, models: Sequence[FairseqLanguageModel], text: SideText, *, max_tokens: int = 4096):
        self.models = models
        self.text = text
        self.max_tokens = max_tokens
        self.dictionary = check_vocabularies(models)

    def score(self, lines: Sequence[str], *, context: Context = "line") -> List[ScoredLine]:
        """Log-probabilities of each line, in the order of the lines.

        Args:
            lines: of text.
            context: see :meth:`score_stream`.

        Raises:
            UserError: if there is no such context, or an NLL is not finite.
        """
        return list(self.score_stream(checked_lines(lines), context=context))

    def score_stream(
        self, lines: Iterable[str], *, context: Context = "line", buffer: int = 4096, name: str = "the text"
    ) -> Iterator[ScoredLine]:
        """Score lines as they come, in their order. Lines with newlines are not refused.

        Every token of a line and its end mark are predicted, the first one after another end mark. A blank line is a
        single end mark.

        Args:
            lines: of text.
            context: "line": each line starts from fresh state. "document": state is carried through all lines, which
                are one stream after an end mark. "paragraph": the same, with fresh state after each blank line.
            buffer: lines that are read before they are scored. Lines without context are sorted by length within a
                buffer. Does not change the result beyond rounding.
            name: of the text, in the warning of :meth:`SideText.watched`.

        Raises:
            UserError: at once if there is no such context. If reading fails, after the scores of the lines before. If
                an NLL is not finite, after the scores of the buffers before.
        """
        check_choice(context, CONTEXTS, flag="context")
        return self._score_buffers(buffered(self.text.watched(lines, name=name), num_lines=buffer), context)

    def _score_buffers(self, buffers: Iterable[List[str]], context: Context) -> Iterator[ScoredLine]:
        with ScoredStream(self.models) as stream:
            for lines in buffers:
                pieces = [self.text.split(line) for line in lines]
                numbers = [number_words(one, self.dictionary) for one in pieces]
                if context == "line":
                    scored = score_sequences(self.models, numbers, max_tokens=self.max_tokens)
                else:
                    scored = _score_in_order(stream, numbers, restarts=context == "paragraph")
                for line, words, tokens, nll in zip(lines, pieces, numbers, scored):
                    yield ScoredLine(
                        text=line,
                        tokens=[*words, self.dictionary.eos_word],
                        log_probs=(-nll).tolist(),
                        unknown=tokens.eq(self.dictionary.unk()).tolist(),
                    )

    def perplexity(self, text: Union[str, Sequence[str]], *, context: Context = "document") -> float:
        """Perplexity of a text, end marks of its lines included.

        Args:
            text: a text of several lines, or its lines.
            context: whether state is carried through the text or each line is read alone; see :meth:`score`.

        Raises:
            UserError: as :meth:`score`, or if there is no line.
        """
        if isinstance(text, str):
            text = text.removesuffix("\n").split("\n") if text else []
        scored = self.score_stream(checked_lines(text), context=context)
        log_probs = [log_prob for line in scored for log_prob in line.log_probs]
        if not log_probs:
            raise UserError("a text without a line has no perplexity")
        return exponential(-math.fsum(log_probs) / len(log_probs))

    def sample(self, prefix: str = "", **options: Any) -> str:
        """One text that begins with the prefix; for the options see :meth:`continuations`."""
        return self.continuations(prefix, **options)[0].text

    def continuations(self, prefix: str = "", *, after: Sequence[str] = (), **options: Any) -> List[Continuation]:
        """Texts that begin with the prefix, sampled or found by beam search.

        Args:
            prefix: the beginning of a line, or empty.
            after: lines that the prefix follows; the models must carry state.
            options: those of :class:`~fairseq_plugins.evaluation.generation.GenerationOptions`.

        Raises:
            UserError: if a value does not fit.
        """
        earlier = list(self.text.watched(checked_lines(after)))
        (found,) = self.continue_stream([checked_line(prefix)], GenerationOptions(**options), after=earlier)
        return found

    def continue_stream(
        self,
        prefixes: Iterable[str],
        options: GenerationOptions,
        *,
        after: Sequence[str] = (),
        name: str = "the text",
    ) -> Iterator[List[Continuation]]:
        """Continue prefixes as they come, each by itself; see :meth:`continuations`.

        Lines with newlines are not refused. The warning of :meth:`SideText.watched` gives the prefixes the ``name``.
        """
        generator = TextGenerator(self.models, self.text, options)
        with generator.open_stream(after) as stream:
            for prefix in self.text.watched(prefixes, name=name):
                yield generator.continuations(prefix, after=stream)


def _score_in_order(stream: ScoredStream, lines: Sequence[Tensor], *, restarts: bool) -> List[Tensor]:
    """NLL of the tokens of each line of a stream, which restarts after each blank line or goes on."""
    found: List[Tensor] = []
    group: List[Tensor] = []
    for number, line in enumerate(lines, start=1):
        group.append(line)
        is_end = restarts and len(line) == 1  # a blank line is a single end mark
        if is_end or number == len(lines):
            found += stream.score(torch.cat(group)).split([len(one) for one in group])
            group = []
        if is_end:
            stream.restart()
    return found


def load_trained_language_model(
    paths: Sequence[Union[str, Path]],
    data: Union[str, Path],
    *,
    text: TextKind = "raw",
    device: str = "cpu",
    precision: str = "float32",
    max_tokens: int = 4096,
) -> TrainedLanguageModel:
    """Load a language model from a checkpoint, or an ensemble from several, and the folder of its corpus.

    For ``text``, ``precision`` and ``max_tokens`` see :func:`fairseq_plugins.load`. Raises UserError as
    :func:`load_language_models`, :func:`load_side_text` and :func:`prepare_to_score` do.
    """
    models = prepare_to_score(load_language_models(paths, data), device=device, precision=precision)
    return TrainedLanguageModel(models, load_side_text(Path(data), kind=text), max_tokens=max_tokens)
