"""Expressiveness of output layers: use of a mixture's experts, and rank of the log-probabilities.

Shapes: J experts, n words of a sentence, B rows, T steps, N positions of a stream, V vocabulary.
"""

import math
from dataclasses import dataclass
from typing import Iterable, List, Optional, Union

import torch
from fairseq.models import BaseFairseqModel, FairseqEncoderDecoderModel, FairseqLanguageModel
from torch import Tensor

from fairseq_plugins.evaluation.scoring import ScoredBatch, ScoredWindow, score_windows
from fairseq_plugins.models.gated_lm import GatedDecoder
from fairseq_plugins.modules.cell import State
from fairseq_plugins.options import UserError
from fairseq_plugins.output_layers.mixture import MixtureOutput


@dataclass(frozen=True)
class ExpertUse:
    """Use of each expert in a text, by its prior pi (Takase et al. 2018, section 5.3 and table 4).

    Attributes:
        layers: the layer that each expert reads, J; 0 is the embedding.
        mass: the prior of each expert, summed over the words of the text, (J,) float64.
        total_entropy: entropy of each expert's own distribution in nats, summed over the words, (J,) float64.
        num_words: predicted words, end marks included; the sum of ``mass``.
        vocab_size: V; an expert's entropy is at most log V.
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
        """:attr:`balance` with the standard deviation that divides by J - 1; NaN for one expert."""
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
        raise UserError("a gated model has no experts itself: give the checkpoint of its base model")
    output = getattr(decoder, "output", None)
    if not isinstance(output, MixtureOutput):
        raise UserError("the model has no mixture of softmaxes: give one with --output-layer mos or doc")
    return output


def expert_layers(model: BaseFairseqModel) -> List[int]:
    """The layer that each expert of a model reads, J. Raises UserError if the model has no mixture."""
    experts_per_layer = mixture_output(model).experts_per_layer
    return [layer for layer, number in enumerate(experts_per_layer) for _ in range(number)]


def expert_use(model: BaseFairseqModel, scored: Iterable[Union[ScoredWindow, ScoredBatch]]) -> ExpertUse:
    """How the experts of a model were used, in windows or pairs that this model alone has scored.

    Raises UserError if the model has no mixture.
    """
    output, layers = mixture_output(model), expert_layers(model)
    mass, entropy = torch.zeros(2, len(layers), dtype=torch.float64)
    num_words = 0
    gate_state: Optional[State] = None
    for one in scored:
        if isinstance(one, ScoredWindow):
            (scores,), (states,), is_token = one.scores, one.states, torch.ones_like(one.target, dtype=torch.bool)
        else:
            scores, states, is_token = one.scores, one.states, one.is_token
        assert scores is not None and states is not None and scores.mixture_weights is not None
        mass += scores.mixture_weights[is_token].double().sum(0).cpu()
        entropy += output.expert_entropies(states, gate_state)[is_token].double().sum(0).cpu()
        num_words += int(is_token.sum())
        gate_state = scores.gate_state if isinstance(one, ScoredWindow) else None  # windows are one stream
    vocab_size = len(output.projection.weight)
    return ExpertUse(layers=layers, mass=mass, total_entropy=entropy, num_words=num_words, vocab_size=vocab_size)


def word_experts(model: Union[FairseqLanguageModel, FairseqEncoderDecoderModel], scored: ScoredBatch) -> WordExperts:
    """Priors in a batch of one line, or of the target of one pair, that this model alone has scored.

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
"""Relative error of singular values: the root of the error of eigenvalues, a few eps of the largest one."""


def singular_values(model: FairseqLanguageModel, tokens: Tensor) -> Tensor:
    """Singular values, (V,) float64, descending, of log P(word | position) for the positions of a stream, (N, V).

    The matrix is never in memory. Its Gram matrix (V, V) is summed in float64, window by window, and the result is the
    roots of its eigenvalues. Values below :data:`NOISE` times the largest are rounding errors and become zero. The
    stream is (N + 1,) int64. Raises UserError if the Gram matrix does not fit into memory.
    """
    gram = None
    for scored in score_windows([model], tokens, window=WINDOW, words="all"):
        rows = scored.scores[0].output.flatten(0, 1).double()
        gram = _square_matrix(rows) if gram is None else gram
        gram.addmm_(rows.t(), rows)
    values = torch.linalg.eigvalsh(gram).flip(0).clamp(min=0).sqrt().cpu()
    return values.where(values > NOISE * values[0], 0.0)


def _square_matrix(rows: Tensor) -> Tensor:
    """Zeros (V, V) like ``rows`` (N, V). Raises UserError if they do not fit into memory."""
    num_words = rows.size(1)
    try:
        return rows.new_zeros(num_words, num_words)
    except RuntimeError as error:
        raise UserError(
            f"{num_words:,} words: a number for each pair of them takes {8 * num_words**2 / 1e9:,.0f} GB, which is "
            "more than there is: give a model with a smaller vocabulary"
        ) from error


def rank(values: Tensor, *, threshold: float) -> int:
    """Number of singular values above ``threshold``."""
    return int((values > threshold).sum())


def default_threshold(values: Tensor, *, num_positions: int) -> float:
    """The usual threshold of numerical libraries for a matrix in float32: max(N, V) eps times the largest value."""
    return max(num_positions, len(values)) * torch.finfo(torch.float32).eps * float(values[0])
