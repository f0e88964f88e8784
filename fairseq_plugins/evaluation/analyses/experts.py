"""Expressiveness of output layers: use of a mixture's experts, and rank of the log-probabilities.

Shapes: J experts, n words of a sentence, B rows, T steps, N positions of a stream, V vocabulary.
"""

import math
from dataclasses import dataclass
from typing import Any, Iterable, Iterator, List, Tuple, Union

import torch
from fairseq.models import BaseFairseqModel, FairseqEncoderDecoderModel, FairseqLanguageModel
from torch import Tensor

from fairseq_plugins.evaluation.scoring import ScoredBatch, ScoredWindow, score_windows
from fairseq_plugins.models.gated_lm import GatedDecoder
from fairseq_plugins.options import UserError
from fairseq_plugins.output_layers.mixture import MixtureOutput
from fairseq_plugins.output_layers.scores import Scores


@dataclass(frozen=True)
class ExpertUse:
    """Use of each expert in a text, by its prior pi (Takase et al. 2018, section 5.3 and table 4).

    Attributes:
        layers: the layer that each expert reads, J; 0 is the embedding.
        mass: the prior of each expert, summed over the words of the text, (J,) float64.
        total_entropy: of each expert's own distribution in nats, summed over the words, (J,) float64.
        num_words: predicted words, end marks included; the sum of ``mass``.
        vocab_size: words of the distributions, whose entropy is at most its logarithm.
    """

    layers: List[int]
    mass: Tensor
    total_entropy: Tensor
    num_words: int
    vocab_size: int

    @property
    def shares(self) -> List[float]:
        """Mean prior of each expert; they sum to 1."""
        return (self.mass / self.num_words).tolist()

    @property
    def entropies(self) -> List[float]:
        """Mean entropy of each expert's distribution in nats, from 0 for one word to log V for a uniform one."""
        return (self.total_entropy / self.num_words).tolist()

    @property
    def balance(self) -> float:
        """The root of beta: the population standard deviation of ``mass`` over its mean, 0 for equal use."""
        return float(self.mass.std(correction=0) / self.mass.mean())

    @property
    def sample_balance(self) -> float:
        """The same with the sample's standard deviation, which divides by J - 1; NaN for one expert."""
        if len(self.layers) == 1:
            return float("nan")
        return float(self.mass.std(correction=1) / self.mass.mean())


@dataclass(frozen=True)
class WordExperts:
    """Priors of the experts for the n predicted words of a sentence, the end mark included.

    Rows of ``weights`` (n, J) float64 sum to 1. For ``layers`` see :class:`ExpertUse`.
    """

    words: List[str]
    weights: Tensor
    layers: List[int]


def mixture_output(model: BaseFairseqModel) -> MixtureOutput:
    """The output layer of a model with a mixture. Raises UserError if the model has no mixture."""
    decoder = getattr(model, "decoder", None)
    if isinstance(decoder, GatedDecoder):
        raise UserError("the model is a gate on trained models, which have the experts: give a base model's checkpoint")
    output = getattr(decoder, "output", None)
    if not isinstance(output, MixtureOutput):
        raise UserError("the model has no mixture of softmaxes: give one with --output-layer mos or doc")
    return output


def expert_layers(model: BaseFairseqModel) -> List[int]:
    """The layer that each expert of a model reads, J. Raises UserError if the model has no mixture."""
    experts_per_layer = mixture_output(model).experts_per_layer
    return [layer for layer, number in enumerate(experts_per_layer) for _ in range(number)]


def stream_expert_use(model: FairseqLanguageModel, windows: Iterable[ScoredWindow]) -> ExpertUse:
    """Use of the experts in a stream with carried state, which ``score_windows`` reads by this model alone.

    Raises UserError if the model has no mixture.
    """
    output = mixture_output(model)

    def batches() -> Iterator[Tuple[Scores, Tensor, Tensor]]:
        gate_state = None
        for window in windows:
            (scores,), (states,) = window.scores, window.states
            yield scores, output.expert_entropies(states, gate_state), torch.ones_like(window.target, dtype=torch.bool)
            gate_state = scores.gate_state

    return _expert_use(model, batches())


def pairs_expert_use(model: FairseqEncoderDecoderModel, pairs: Iterable[ScoredBatch]) -> ExpertUse:
    """Use of the experts in the targets of sentence pairs, which ``score_pairs`` reads by this model.

    Raises UserError if the model has no mixture.
    """
    output = mixture_output(model)

    def batches() -> Iterator[Tuple[Scores, Tensor, Tensor]]:
        for scored in pairs:
            assert scored.scores is not None and scored.states is not None
            yield scored.scores, output.expert_entropies(scored.states), scored.is_token

    return _expert_use(model, batches())


def _expert_use(model: BaseFairseqModel, batches: Iterable[Tuple[Scores, Tensor, Tensor]]) -> ExpertUse:
    """Sums over batches of scores, entropies (B, T, J), and a mask (B, T) that is False at padding."""
    layers = expert_layers(model)
    mass, entropy = torch.zeros(2, len(layers), dtype=torch.float64)
    num_words = 0
    for scores, entropies, is_token in batches:
        assert scores.mixture_weights is not None
        mass += scores.mixture_weights[is_token].double().sum(0).cpu()
        entropy += entropies[is_token].double().sum(0).cpu()
        num_words += int(is_token.sum())
    vocab_size = len(mixture_output(model).projection.weight)
    return ExpertUse(layers=layers, mass=mass, total_entropy=entropy, num_words=num_words, vocab_size=vocab_size)


def word_experts(model: Union[FairseqLanguageModel, FairseqEncoderDecoderModel], scored: ScoredBatch) -> WordExperts:
    """Priors in a line or the target of a pair, a batch that the model has scored alone.

    Raises UserError if the model has no mixture.
    """
    layers, dictionary = expert_layers(model), model.decoder.dictionary
    assert scored.scores is not None and scored.scores.mixture_weights is not None
    (target,), (weights,) = scored.target, scored.scores.mixture_weights
    return WordExperts(
        words=[dictionary[int(token)] for token in target], weights=weights.double().cpu(), layers=layers
    )


# Rank of the matrix of log-probabilities of a language model (Yang et al. 2018, section 2).

WINDOW = 500
"""Positions of a forward pass."""

NOISE = 4 * math.sqrt(torch.finfo(torch.float64).eps)
"""Relative error of singular values: eigenvalues err by a few eps of the largest one, and these are their roots."""


def singular_values(model: FairseqLanguageModel, tokens: Tensor, **options: Any) -> Tensor:
    """Singular values, (V,) float64, descending, of log P(word | position) for the positions of a stream, (N, V).

    The matrix is never in memory. Its Gram matrix (V, V) is summed in float64, window by window, and the result is the
    roots of its eigenvalues. Values below :data:`NOISE` times the largest are rounding errors and become zero. The
    stream is (N + 1,) int64; the options are those of :func:`~fairseq_plugins.evaluation.scoring.score_windows`.
    """
    gram = None
    for scored in score_windows([model], tokens, window=WINDOW, words="all", **options):
        rows = scored.scores[0].output.flatten(0, 1).double()
        gram = rows.new_zeros(rows.size(1), rows.size(1)) if gram is None else gram
        gram.addmm_(rows.t(), rows)
    values = torch.linalg.eigvalsh(gram).flip(0).clamp(min=0).sqrt().cpu()
    return values.where(values > NOISE * values[0], 0.0)


def rank(values: Tensor, *, threshold: float) -> int:
    """Number of singular values above ``threshold``."""
    return int((values > threshold).sum())


def default_threshold(values: Tensor, *, num_positions: int) -> float:
    """The usual threshold of numerical libraries for a matrix in float32: max(N, V) eps times the largest value."""
    return max(num_positions, len(values)) * torch.finfo(torch.float32).eps * float(values[0])
