"""Which softmaxes of a mixture serve a text: its prior pi, word by word and summed.

Shapes: J experts, n words of a sentence, B rows, T steps.
"""

from dataclasses import dataclass
from typing import List, Sequence

import torch
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel, FairseqEncoderDecoderModel, FairseqLanguageModel
from torch import Tensor

from fairseq_plugins.evaluation.scored_pairs import score_pairs
from fairseq_plugins.evaluation.scored_windows import score_windows
from fairseq_plugins.models.gated_decoder import GatedDecoder
from fairseq_plugins.output_layers.mixture import MixtureOutput


@dataclass(frozen=True)
class ExpertUse:
    """How much of a text each expert served (Takase et al. 2018, section 5.3 and table 4).

    Attributes:
        layers: the layer that each expert reads, J; 0 is the embedding.
        mass: the prior of each expert, summed over the words of the text, (J,) float64.
        num_words: predicted words, end marks included; the sum of ``mass``.
    """

    layers: List[int]
    mass: Tensor
    num_words: int

    @property
    def shares(self) -> List[float]:
        """Of each expert in the words; they sum to 1."""
        return (self.mass / self.num_words).tolist()

    @property
    def balance(self) -> float:
        """The root of beta: the population standard deviation of ``mass`` by its mean, 0 where all serve alike."""
        return float(self.mass.std(correction=0) / self.mass.mean())

    @property
    def sample_balance(self) -> float:
        """The same with the sample's standard deviation, divided by J - 1; NaN for one expert."""
        if len(self.layers) == 1:
            return float("nan")
        return float(self.mass.std(correction=1) / self.mass.mean())


@dataclass(frozen=True)
class WordExperts:
    """The experts of a sentence.

    Attributes:
        words: that are predicted, n, the end mark included.
        weights: the prior before each, (n, J) float64; rows sum to 1.
        layers: see :class:`ExpertUse`.
    """

    words: List[str]
    weights: Tensor
    layers: List[int]


def mixture_output(model: BaseFairseqModel) -> MixtureOutput:
    """The output layer of a model with a mixture.

    Raises:
        ValueError: if it is none.
    """
    decoder = getattr(model, "decoder", None)
    if isinstance(decoder, GatedDecoder):
        raise ValueError(
            "the model is a gate on trained models, which have the experts: give a base model's checkpoint"
        )
    output = getattr(decoder, "output", None)
    if not isinstance(output, MixtureOutput):
        raise ValueError("the model has no mixture of softmaxes: give one with --output-layer mos or doc")
    return output


def expert_layers(model: BaseFairseqModel) -> List[int]:
    """The layer that each expert of a model reads, J.

    Raises:
        ValueError: if its output layer is no mixture.
    """
    experts_per_layer = mixture_output(model).experts_per_layer
    return [layer for layer, number in enumerate(experts_per_layer) for _ in range(number)]


def stream_expert_use(
    model: FairseqLanguageModel, tokens: Tensor, *, num_rows: int = 1, device: str = "cpu", show_progress: bool = False
) -> ExpertUse:
    """Over a stream with carried state; the arguments are those of ``score_windows``.

    Raises:
        ValueError: if the model has no mixture, or as ``score_windows``.
    """
    layers = expert_layers(model)
    mass, num_words = torch.zeros(len(layers), dtype=torch.float64), 0
    for window in score_windows([model], tokens, num_rows=num_rows, device=device, show_progress=show_progress):
        (scores,) = window.scores
        assert scores.mixture_weights is not None
        mass += scores.mixture_weights.double().sum((0, 1)).cpu()
        num_words += window.target.numel()
    return ExpertUse(layers=layers, mass=mass, num_words=num_words)


def pairs_expert_use(
    model: FairseqEncoderDecoderModel,
    sources: Sequence[Tensor],
    targets: Sequence[Tensor],
    *,
    device: str = "cpu",
    show_progress: bool = False,
) -> ExpertUse:
    """Over the targets of sentence pairs; the arguments are those of ``score_pairs``.

    Raises:
        ValueError: if the model has no mixture, or as ``score_pairs``.
    """
    layers = expert_layers(model)
    mass, num_words = torch.zeros(len(layers), dtype=torch.float64), 0
    for scored in score_pairs(model, sources, targets, device=device, show_progress=show_progress):
        assert scored.scores is not None and scored.scores.mixture_weights is not None
        mass += scored.scores.mixture_weights.double()[scored.is_token].sum(0).cpu()
        num_words += int(scored.is_token.sum())
    return ExpertUse(layers=layers, mass=mass, num_words=num_words)


@torch.no_grad()
def line_experts(model: FairseqLanguageModel, sequence: Tensor, *, device: str = "cpu") -> WordExperts:
    """Of a line (n,) int64 with its end mark, from a fresh state.

    Raises:
        ValueError: if the model has no mixture.
    """
    layers = expert_layers(model)
    dictionary = model.decoder.dictionary
    inputs = sequence.roll(1)
    inputs[0] = dictionary.eos()
    scores = model.eval()(inputs[None].to(device), target=sequence[None].to(device))[1]["scores"]
    return _word_experts(scores.mixture_weights[0], sequence, layers, dictionary)


def pair_experts(
    model: FairseqEncoderDecoderModel, source: Tensor, target: Tensor, *, device: str = "cpu"
) -> WordExperts:
    """Of a target (n,) int64 with its end mark, after its source.

    Raises:
        ValueError: if the model has no mixture.
    """
    layers = expert_layers(model)
    (scored,) = score_pairs(model, [source], [target], device=device)
    assert scored.scores is not None and scored.scores.mixture_weights is not None
    return _word_experts(scored.scores.mixture_weights[0], target, layers, model.decoder.dictionary)


def _word_experts(weights: Tensor, sequence: Tensor, layers: List[int], dictionary: Dictionary) -> WordExperts:
    return WordExperts(
        words=[dictionary[int(token)] for token in sequence], weights=weights.double().cpu(), layers=layers
    )
