"""Log-odds that a word is the target and no noise: its logit less the offset of noise.

Shapes: N tokens, K noise words, C width of the labels.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from fairseq_plugins.ops.chosen_logits import chosen_logits
from fairseq_plugins.ops.linear import linear
from fairseq_plugins.ops.precision import accumulation_dtype
from fairseq_plugins.output_layers.noise import Noise
from fairseq_plugins.output_layers.word_projection import WordProjection


class NoiseLogOdds(NamedTuple):
    """Those of targets and noise words.

    Attributes:
        targets: (N).
        noise: (N, K).
    """

    targets: Tensor
    noise: Tensor


def noise_log_odds(projection: WordProjection, hidden: Tensor, target: Tensor, noise: Noise) -> NoiseLogOdds:
    """The log-odds of N tokens, in float32 or wider; every word that occurs is read once.

    Args:
        projection: of the logits.
        hidden: (N, C).
        target: (N).
        noise: of these tokens.
    """
    words, places = torch.unique(torch.cat([target, noise.words.flatten()]), return_inverse=True)
    labels, biases = projection.of_words(words, gradients=noise.gradients)
    dtype = accumulation_dtype(hidden)
    target_places, noise_places = places[: len(target)].unsqueeze(-1), places[len(target) :]
    with torch.autocast(hidden.device.type, enabled=False):
        hidden, labels = hidden.to(dtype), labels.to(dtype)
        biases = None if biases is None else biases.to(dtype)
        if noise.words.dim() == 1:
            target_logits = _logits(hidden, labels, biases, target_places)
            noise_biases = None if biases is None else biases[noise_places]
            noise_logits = linear(hidden, labels.index_select(0, noise_places), noise_biases)
        else:
            chosen = torch.cat([target_places, noise_places.view(len(target), -1)], dim=1)
            logits = _logits(hidden, labels, biases, chosen)
            target_logits, noise_logits = logits[:, :1], logits[:, 1:]
    offsets = noise.offsets if noise.words.dim() == 1 else noise.offsets.flatten(0, -2)
    return NoiseLogOdds(
        targets=target_logits.squeeze(-1) - noise.target_offsets.flatten().to(dtype),
        noise=noise_logits - offsets.to(dtype),
    )


def _logits(hidden: Tensor, labels: Tensor, biases: Optional[Tensor], chosen: Tensor) -> Tensor:
    logits = chosen_logits(hidden, labels, chosen)
    return logits if biases is None else logits + biases[chosen]
