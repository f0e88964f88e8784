"""One softmax over the vocabulary."""

from functools import partial
from typing import Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_plugins.ops.precision import accumulation_dtype
from fairseq_plugins.output_layers.base import (
    DecoderStates,
    Extra,
    OutputLayer,
    WordProjection,
    register_output_layer,
)


class SoftmaxOutput(OutputLayer):
    """P = softmax(W h^N + b)."""

    projection: WordProjection

    def log_probs(self, states: DecoderStates) -> Tuple[Tensor, Extra]:
        logits = self.projection(states.layers[-1])
        return torch.log_softmax(logits, dim=-1, dtype=accumulation_dtype(logits)), {}

    def target_loss(
        self, states: DecoderStates, target: Tensor, *, label_smoothing: float = 0.0
    ) -> Tuple[Tensor, Extra]:
        logits = self.projection(states.layers[-1]).flatten(0, 1)
        score = partial(F.cross_entropy, logits.to(accumulation_dtype(logits)), target.flatten(), reduction="none")
        loss = score(label_smoothing=label_smoothing)
        nll = loss if label_smoothing == 0.0 else score()
        return loss.view_as(target), {"nll": nll.detach().view_as(target)}


@register_output_layer("full")
class FullSoftmax(SoftmaxOutput):
    """Softmax with a matrix W (V, D_N) of its own."""

    def __init__(self, *, vocab_size, layer_widths, shared_weight, options):
        super().__init__()
        self.projection = WordProjection(layer_widths[-1], vocab_size, shared_weight=None)


@register_output_layer("tied")
class TiedSoftmax(SoftmaxOutput):
    """Softmax whose matrix W is the input embedding (Inan et al. 2017; Press & Wolf 2017).

    Raises:
        ValueError: if the last layer is not as wide as the embedding.
    """

    def __init__(self, *, vocab_size, layer_widths, shared_weight, options):
        super().__init__()
        if shared_weight is None:
            raise ValueError("--output-layer tied needs a model that shares its embedding; take --output-layer full")
        self.projection = WordProjection(layer_widths[-1], vocab_size, shared_weight=shared_weight)
