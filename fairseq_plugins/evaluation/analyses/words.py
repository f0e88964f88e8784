"""Analyses of words: losses by frequency in the training text, and words that a gate raises.

Shapes: V vocabulary, n input words.
"""

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence

import torch
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel, FairseqLanguageModel
from torch import Tensor

from fairseq_plugins.evaluation.scoring import score_windows
from fairseq_plugins.options import UserError
from fairseq_plugins.output_layers.gates import OUTPUT_GATES, InputToOutputGate, NoGate, OutputGate

LOWER_BOUNDS = (1, 50, 100, 250, 500, 1000, 2500, 5000)
"""Inclusive lower bounds of the frequency bands of Pappas & Henderson 2019, fig. 3."""


@dataclass(frozen=True)
class FrequencyBand:
    """Words of one band of training frequency, and the gain of the second model over the first.

    Attributes:
        lowest: occurrences in the training text, inclusive.
        below: occurrences, exclusive, or None without an upper bound.
        num_types: number of words of the band in the scored text.
        num_tokens: number of occurrences of these words in the scored text.
        mean_of_types: mean over the types of 100 (B - O) / O, the statistic of the paper's figure, with the losses B of
            the first model and O of the second summed over the occurrences of a type. A few rare words with a small O
            dominate it.
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
    """Summed NLL in nats of each word as a target, (V,) float64, over the windows of ``score_windows``."""
    losses = torch.zeros(vocab_size, dtype=torch.float64)
    for window in score_windows(models, tokens, **options):
        losses.index_add_(0, window.target.flatten().cpu(), window.nll.flatten().cpu())
    return losses


def compare_bands(
    baseline: Tensor, other: Tensor, *, train_counts: Tensor, counts: Tensor, excluded: Sequence[int]
) -> List[FrequencyBand]:
    """Compare the summed losses of two models by band. Bands without a word are left out.

    Args:
        baseline: losses B of the first model, (V,).
        other: losses O of the second model, (V,).
        train_counts: occurrences in the training text, (V,).
        counts: occurrences as a target in the scored text, (V,).
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


@dataclass(frozen=True)
class RaisedWord:
    """A word with a large gate after an input word (Takase, Suzuki & Nagata 2017, table 5).

    The gate is the factor of its logit, between 0 and 1. ``count`` is how often it occurs in the training text.
    """

    word: str
    gate: float
    count: int


def word_gate(model: BaseFairseqModel) -> InputToOutputGate:
    """The gate of a model, which must read only the input word.

    Raises UserError if the model has no gate, or its gate reads more than the word.
    """
    gates = [module for module in model.modules() if isinstance(module, OutputGate) and module.name != NoGate.name]
    if not gates:
        raise UserError(f"the model has no gate: give a model with {OUTPUT_GATES.flag} {InputToOutputGate.name}")
    (gate,) = gates
    if type(gate) is not InputToOutputGate:
        raise UserError(
            f"the model's {OUTPUT_GATES.flag} {gate.name} depends on more than the input word: give a model with "
            f"{OUTPUT_GATES.flag} {InputToOutputGate.name}"
        )
    return gate


def word_indices(words: Sequence[str], dictionary: Dictionary) -> Tensor:
    """Numbers of the words, (n,) int64. Raises UserError if one is not in the dictionary."""
    indices = [dictionary.index(word) for word in words]
    unknown = [word for word, index in zip(words, indices) if index == dictionary.unk() and word != dictionary.unk_word]
    if unknown:
        raise UserError(f"{', '.join(unknown)}: not in the dictionary of the data; give words as the text has them")
    return torch.tensor(indices)


@torch.no_grad()
def raised_words(
    gate: InputToOutputGate,
    words: Sequence[str],
    *,
    dictionary: Dictionary,
    counts: Tensor,
    min_count: int,
    num_words: int,
) -> Dict[str, List[RaisedWord]]:
    """The ``num_words`` output words with the largest gates after each input word, the largest first.

    ``counts`` are occurrences in the training text, (V,) int64. Output words with fewer than ``min_count`` are left
    out. Raises UserError if an input word is not in the dictionary, or no output word is frequent enough.
    """
    device = gate.linear.weight.device
    values = torch.sigmoid(gate.linear(gate.embedding(word_indices(words, dictionary).to(device)))).cpu()
    frequent = (counts >= min_count).nonzero().squeeze(-1)
    if not len(frequent):
        raise UserError(f"--min-count {min_count}: no word of train occurs so often; give a lower number")
    best = values[:, frequent].sort(dim=-1, descending=True, stable=True)
    return {
        word: [
            RaisedWord(dictionary[index], float(value), int(counts[index]))
            for value, index in zip(ranked, frequent[order[:num_words]].tolist())
        ]
        for word, ranked, order in zip(words, best.values, best.indices)
    }
