"""Two language models compared by how often the predicted word occurs in the training text.

Shapes: V vocabulary.
"""

from dataclasses import dataclass
from typing import Any, List, Optional, Sequence

import torch
from fairseq.models import FairseqLanguageModel
from torch import Tensor

from fairseq_plugins.evaluation.scored_windows import score_windows

LOWER_BOUNDS = (1, 50, 100, 250, 500, 1000, 2500, 5000)
"""Of the bands of Pappas & Henderson 2019, fig. 3: inclusive; the next one is excluded."""


@dataclass(frozen=True)
class FrequencyBand:
    """Words of one band of training frequency, and how much better the second model predicts them.

    Attributes:
        lowest: occurrences in the training text, inclusive.
        below: occurrences, exclusive, or None without an upper bound.
        num_types: words of the band that occur in the scored text.
        num_tokens: their occurrences there.
        mean_of_types: mean over the types of 100 (B - O) / O, the statistic of the paper's figure, with the loss B of
            the first model and O of the second summed over a type's occurrences; few rare words with a small O
            decide it.
        of_the_loss: 100 (B - O) / B with the losses of the whole band.
    """

    lowest: int
    below: Optional[int]
    num_types: int
    num_tokens: int
    mean_of_types: float
    of_the_loss: float


def losses_by_type(
    models: Sequence[FairseqLanguageModel], tokens: Tensor, *, vocab_size: int, **options: Any
) -> Tensor:
    """Summed NLL in nats of every word as a target, (V,) float64.

    Args:
        models, tokens, options: see :func:`~fairseq_plugins.evaluation.scored_windows.score_windows`.
        vocab_size: V.
    """
    losses = torch.zeros(vocab_size, dtype=torch.float64)
    for window in score_windows(models, tokens, **options):
        losses.index_add_(0, window.target.flatten().cpu(), window.nll.flatten().cpu())
    return losses


def compare_bands(
    baseline: Tensor,
    other: Tensor,
    *,
    train_counts: Tensor,
    counts: Tensor,
    excluded: Sequence[int],
) -> List[FrequencyBand]:
    """Compare summed losses by type, all (V,); bands without a word are left out.

    Args:
        baseline: of the first model, B.
        other: of the second model, O.
        train_counts: occurrences of each word in the training text.
        counts: occurrences as a target in the scored text.
        excluded: words that do not count, such as the end mark.
    """
    scored = counts > 0
    scored[list(excluded)] = False
    bands = []
    for lowest, below in zip(LOWER_BOUNDS, [*LOWER_BOUNDS[1:], None]):
        chosen = scored & (train_counts >= lowest)
        if below is not None:
            chosen &= train_counts < below
        if chosen.any():
            b, o = baseline[chosen], other[chosen]
            bands.append(
                FrequencyBand(
                    lowest=lowest,
                    below=below,
                    num_types=int(chosen.sum()),
                    num_tokens=int(counts[chosen].sum()),
                    mean_of_types=float(100 * ((b - o) / o).mean()),
                    of_the_loss=float(100 * (b.sum() - o.sum()) / b.sum()),
                )
            )
    return bands
