"""Scores of lines of plain text by language models, line by line as they come."""

import math
from dataclasses import dataclass
from typing import Iterable, Iterator, List, Literal, Sequence, get_args

import torch
from fairseq.models import FairseqLanguageModel
from torch import Tensor

from fairseq_plugins.evaluation.raw_text import EncodedLine, SideText, encode_line
from fairseq_plugins.evaluation.scoring import ScoredStream, check_vocabularies, score_sequences
from fairseq_plugins.options import check_choice

Context = Literal["line", "paragraph", "document"]
"""State is reset at every line, after every blank line, or never."""
CONTEXTS: Sequence[Context] = get_args(Context)

BUFFERED_CHARACTERS = 1 << 22
"""Characters at which a buffer is full, even with few lines."""


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


class TextScorer:
    """Scores lines of text; several threads can do so at the same time.

    Args:
        models: language models on one device; several are averaged as probabilities.
        text: how lines become tokens.
        max_tokens: of a batch; does not change the result beyond rounding.

    Raises:
        UserError: if the models have different vocabularies.
    """

    def __init__(self, models: Sequence[FairseqLanguageModel], text: SideText, *, max_tokens: int = 4096):
        self.models = models
        self.text = text
        self.max_tokens = max_tokens
        self.dictionary = check_vocabularies(models)

    def score(self, lines: Sequence[str], *, context: Context = "line") -> List[ScoredLine]:
        """Score lines; the results are in their order. See :meth:`score_stream`."""
        return list(self.score_stream(lines, context=context))

    def score_stream(
        self, lines: Iterable[str], *, context: Context = "line", buffer: int = 4096, name: str = "the text"
    ) -> Iterator[ScoredLine]:
        """Score lines as they come, in their order.

        Every token of a line is predicted, the first one after an end mark, and its end mark as well. A blank line is a
        single end mark.

        Args:
            lines: of text.
            context: "line": each line starts from fresh state. "document": state is carried through all lines, which
                are one stream after an end mark. "paragraph": the same, with fresh state after each blank line.
            buffer: lines that are read before they are scored. Lines without context are sorted by length within a
                buffer. Does not change the result beyond rounding.
            name: name of the text in messages.

        Raises:
            UserError: at once if there is no such context. Later if reading fails, after the scores of the lines
                before, or if an NLL is not finite, after those of the buffers before.
        """
        check_choice(context, CONTEXTS, flag="context")
        buffers = buffered(self.text.watched(lines, name=name), num_lines=buffer)
        encoded = ([encode_line(line, self.text, self.dictionary) for line in one] for one in buffers)
        if context == "line":
            return self._score_lines(encoded)
        return self._score_stream(encoded, restarts=context == "paragraph")

    def _score_lines(self, buffers: Iterable[List[EncodedLine]]) -> Iterator[ScoredLine]:
        """Score each line from fresh state."""
        for lines in buffers:
            sequences = [torch.tensor(line.numbers) for line in lines]
            for line, nll in zip(lines, score_sequences(self.models, sequences, max_tokens=self.max_tokens)):
                yield self._scored(line, nll)

    def _score_stream(self, buffers: Iterable[List[EncodedLine]], *, restarts: bool) -> Iterator[ScoredLine]:
        """Score all lines as one stream, which restarts after each blank line or goes on."""
        with ScoredStream(self.models) as stream:
            for lines in buffers:
                for group in _paragraphs(lines) if restarts else [lines]:
                    nll = stream.score(torch.tensor([number for line in group for number in line.numbers]))
                    for line, part in zip(group, nll.split([len(line.numbers) for line in group])):
                        yield self._scored(line, part)
                    if restarts and len(group[-1].numbers) == 1:
                        stream.restart()

    def _scored(self, line: EncodedLine, nll: Tensor) -> ScoredLine:
        unknown = [number == self.dictionary.unk() for number in line.numbers]
        return ScoredLine(text=line.text, tokens=line.tokens, log_probs=(-nll).tolist(), unknown=unknown)


def buffered(lines: Iterable[str], *, num_lines: int) -> Iterator[List[str]]:
    """Lines in lists of ``num_lines`` lines or :data:`BUFFERED_CHARACTERS` characters.

    If reading fails, the lines before are yielded first.
    """
    buffer: List[str] = []
    num_characters = 0
    try:
        for line in lines:
            buffer.append(line)
            num_characters += len(line)
            if len(buffer) == num_lines or num_characters >= BUFFERED_CHARACTERS:
                yield buffer
                buffer = []
                num_characters = 0
    except ValueError:
        if buffer:
            yield buffer
        raise
    if buffer:
        yield buffer


def _paragraphs(lines: Sequence[EncodedLine]) -> Iterator[List[EncodedLine]]:
    """Paragraphs, each with the blank line that ends it."""
    group: List[EncodedLine] = []
    for line in lines:
        group.append(line)
        if len(line.numbers) == 1:
            yield group
            group = []
    if group:
        yield group
