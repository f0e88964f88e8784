"""Perplexity of a token stream, counted as in the literature on recurrent language models.

The corpus is one stream with an end mark after every line; state is carried through it; every token but
the first of a row is predicted once. Shapes: M models, B rows, T window length.
"""

import math
from dataclasses import dataclass
from typing import Iterator, Sequence, Tuple

import torch
from fairseq.models import FairseqLanguageModel
from torch import Tensor
from tqdm import tqdm

from fairseq_plugins.data.contiguous_streams import ContiguousStreams
from fairseq_plugins.data.windows import fixed_windows


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
        try:
            return math.exp(self.nll)
        except OverflowError:
            return math.inf

    @property
    def bits_per_token(self) -> float:
        """The mean negative log-likelihood in bits."""
        return self.nll / math.log(2)


@torch.no_grad()
def score_stream(
    models: Sequence[FairseqLanguageModel],
    streams: ContiguousStreams,
    *,
    window: int = 1000,
    device: str = "cpu",
    show_progress: bool = False,
) -> Iterator[Tuple[Tensor, Tensor]]:
    """Targets and their NLL in nats, both (B, T) on the CPU, window by window, with fixed weights.

    Args:
        models: language models that carry their state, on ``device``; put into evaluation mode. Several are averaged
            as probabilities.
        streams: what to predict.
        window: tokens a forward pass; does not change the result beyond rounding.
        device: where the models are.
        show_progress: draw a bar.
    """
    for model in models:
        model.eval()
    num_predictions = streams.num_predictions_per_row * len(streams.rows)
    with tqdm(total=num_predictions, unit="token", disable=not show_progress) as progress:
        for cut in fixed_windows(streams.num_predictions_per_row, length=window):
            batch = streams[cut]
            target = batch["target"].to(device)
            inputs = batch["net_input"]["src_tokens"].to(device)
            position = {name: batch["net_input"][name] for name in ("stream", "position")}
            scored = [model(inputs, **position, target=target)[1]["scores"] for model in models]
            nll = torch.stack([scores.nll.double() for scores in scored])
            log_mean = torch.logsumexp(-nll, dim=0) - math.log(len(models))
            yield batch["target"], -log_mean.cpu()
            progress.update(target.numel())


def evaluate_perplexity(
    models: Sequence[FairseqLanguageModel],
    tokens: Tensor,
    *,
    unknown: int,
    num_rows: int = 1,
    **options,
) -> Perplexity:
    """Score a stream with fixed weights.

    Args:
        models, options: see :func:`score_stream`.
        tokens: (n,) int64.
        unknown: index of the unknown word.
        num_rows: rows the stream is cut into, B.

    Raises:
        ValueError: if the stream is too short for the rows, or rows or window are below one.
    """
    window = options.get("window", 1)
    if num_rows < 1 or window < 1:
        raise ValueError(f"{num_rows} rows and a window of {window} tokens: both must be at least 1")
    streams = ContiguousStreams(tokens, name="evaluation", num_rows=num_rows, first_row=0, num_own_rows=num_rows)
    total = torch.zeros((), dtype=torch.float64)
    num_tokens = num_unknown = 0
    for target, nll in score_stream(models, streams, **options):
        total += nll.sum()
        num_tokens += target.numel()
        num_unknown += int(target.eq(unknown).sum())
    return Perplexity(
        num_tokens=num_tokens,
        nll=float(total) / num_tokens,
        num_unknown=num_unknown,
        num_leftover_tokens=streams.num_leftover_tokens,
    )
