"""Perplexity of a token stream, counted as in the literature on recurrent language models.

The corpus is one stream with an end mark after every line; state is carried through it; every token but
the first of a row is predicted once.
"""

import math
from dataclasses import dataclass
from typing import Any, Iterable, Sequence, Tuple

import torch
from fairseq.models import FairseqLanguageModel
from torch import Tensor

from fairseq_plugins.evaluation.ensemble import NonFiniteLoss
from fairseq_plugins.evaluation.scored_windows import score_windows


@dataclass(frozen=True)
class Perplexity:
    """Result of an evaluation.

    Attributes:
        num_tokens: number of predictions.
        nll: mean negative log-likelihood of a prediction, in nats.
        num_unknown: predictions whose target is the unknown word.
        num_leftover_tokens: tokens at the end that did not fill a row and were not scored.
    """

    num_tokens: int
    nll: float
    num_unknown: int
    num_leftover_tokens: int

    @property
    def perplexity(self) -> float:
        """exp(nll), infinite where that overflows."""
        return exponential(self.nll)

    @property
    def bits_per_token(self) -> float:
        """The mean negative log-likelihood in bits."""
        return self.nll / math.log(2)


def exponential(nll: float) -> float:
    """The perplexity of a mean negative log-likelihood in nats, infinite where it overflows."""
    try:
        return math.exp(nll)
    except OverflowError:
        return math.inf


def evaluate_perplexity(
    models: Sequence[FairseqLanguageModel], tokens: Tensor, *, unknown: int, num_rows: int = 1, **options: Any
) -> Perplexity:
    """Score a stream with fixed weights.

    Args:
        models, tokens, num_rows, options: see :func:`~fairseq_plugins.evaluation.scored_windows.score_windows`.
        unknown: index of the unknown word.

    Raises:
        ValueError: if the stream is too short for the rows, rows or window are below one, or the result is not finite.
    """
    windows = score_windows(models, tokens, num_rows=num_rows, **options)
    return perplexity_of(
        ((window.nll, window.target) for window in windows), tokens=tokens, unknown=unknown, num_rows=num_rows
    )


def perplexity_of(
    windows: Iterable[Tuple[Tensor, Tensor]], *, tokens: Tensor, unknown: int, num_rows: int
) -> Perplexity:
    """Sum up what was scored.

    Args:
        windows: NLL in nats, float64, and target of each token, of one shape.
        tokens: the stream, (n,).
        unknown: index of the unknown word.
        num_rows: that the stream was cut into.

    Raises:
        NonFiniteLoss: if the mean is not finite.
    """
    total = torch.zeros((), dtype=torch.float64)
    num_tokens = num_unknown = 0
    for nll, target in windows:
        total += nll.sum().cpu()
        num_tokens += target.numel()
        num_unknown += int(target.eq(unknown).sum())
    if not total.isfinite():
        raise NonFiniteLoss(f"the loss of the text is {float(total)}: what is mixed gives a word no finite probability")
    return Perplexity(
        num_tokens=num_tokens,
        nll=float(total) / num_tokens,
        num_unknown=num_unknown,
        num_leftover_tokens=tokens.numel() % num_rows,
    )
