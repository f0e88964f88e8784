"""What a mixture reads from each layer and what it teaches each, at a point of its training.

Shapes: B rows, T steps, D_n width of layer n, N index of the last layer, J experts.
"""

from dataclasses import dataclass, replace
from typing import Iterator, List, Sequence, Tuple

import torch
from fairseq.models import BaseFairseqModel, FairseqEncoderDecoderModel, FairseqLanguageModel
from torch import Tensor

from fairseq_plugins.evaluation.analyses.expert_use import expert_layers, mixture_output
from fairseq_plugins.evaluation.scored_pairs import score_pairs
from fairseq_plugins.evaluation.scored_stream import shifted
from fairseq_plugins.output_layers.decoder_states import DecoderStates


@dataclass(frozen=True)
class LayerLearning:
    """Means over the words of a text, by layer 0 .. N; layer 0 is the embedding.

    Attributes:
        shares: prior of the experts that read the layer; they sum to 1.
        gradients: norm of d(-log P(w)) / d h^n, in nats, as the output layer gives it to h^n; what passes on from
            a layer to those below is not in it.
        num_words: predicted words, end marks included.
    """

    shares: List[float]
    gradients: List[float]
    num_words: int


def lines_learning(model: FairseqLanguageModel, lines: Sequence[Tensor], *, device: str = "cpu") -> LayerLearning:
    """Of lines (n,) int64 with their end marks, each from a fresh state; without dropout.

    Raises:
        ValueError: if the model has no mixture, or there is no line.
    """
    return _learning(model, _read_lines(model.eval(), lines, device=device))


def pairs_learning(
    model: FairseqEncoderDecoderModel, sources: Sequence[Tensor], targets: Sequence[Tensor], *, device: str = "cpu"
) -> LayerLearning:
    """Of sentence pairs; the arguments are those of ``score_pairs``. Without dropout.

    Raises:
        ValueError: if the model has no mixture, there is no pair, or as ``score_pairs``.
    """
    expert_layers(model)
    batches = (
        (scored.states, scored.target, scored.is_token)
        for scored in score_pairs(model, sources, targets, device=device)
        if scored.states is not None
    )
    return _learning(model, batches)


def _read_lines(
    model: FairseqLanguageModel, lines: Sequence[Tensor], *, device: str
) -> Iterator[Tuple[DecoderStates, Tensor, Tensor]]:
    end = model.decoder.dictionary.eos()
    for line in lines:
        target = line[None].to(device)
        inputs = shifted(target, first=end)
        with torch.no_grad():
            states = model(inputs, target=target)[1]["states"]
        yield states, target, torch.ones_like(target, dtype=torch.bool)


def _learning(model: BaseFairseqModel, batches: Iterator[Tuple[DecoderStates, Tensor, Tensor]]) -> LayerLearning:
    """From what the output layer reads, the targets (B, T) and where they have a word (B, T)."""
    output, read_layers = mixture_output(model), torch.tensor(expert_layers(model))
    mass = torch.zeros(len(read_layers), dtype=torch.float64)
    norms: List[float] = []
    num_words = 0
    for states, target, is_token in batches:
        layers = [layer.detach().requires_grad_() for layer in states.layers]
        with torch.enable_grad():
            scores = output(replace(states, layers=layers), target, token_weights=is_token)
        assert scores.loss is not None and scores.mixture_weights is not None
        gradients = torch.autograd.grad(scores.loss, layers, allow_unused=True)
        norms = norms or [0.0] * len(layers)
        for n, gradient in enumerate(gradients):
            norms[n] += 0.0 if gradient is None else float(gradient.double().norm(dim=-1).sum())
        mass += scores.mixture_weights.detach().double()[is_token].sum(0).cpu()
        num_words += int(is_token.sum())
    if num_words == 0:
        raise ValueError("there is no sentence that has a word")
    shares = [float(mass[read_layers == n].sum()) / num_words for n in range(len(norms))]
    return LayerLearning(shares=shares, gradients=[norm / num_words for norm in norms], num_words=num_words)
