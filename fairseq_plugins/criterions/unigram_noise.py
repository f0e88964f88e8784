"""Noise words, drawn as often as words occur in the training text.

Shapes: V vocabulary.
"""

import math
from typing import Sequence

import torch
from torch import Tensor

from fairseq_plugins.ops.alias_table import AliasTable


class UnigramNoise:
    """The unigram distribution q(w) of a text, with a word that does not occur counted once.

    Words that do not occur, such as ``<s>`` and ``<pad>``, are so drawn now and then, and learn to be improbable, as
    they do by maximum likelihood. Otherwise a model that is normalised would leave them what they start with.

    Args:
        counts: of the words in the text, (V), int64.
        num_samples: k, noise words of a target.
    """

    def __init__(self, counts: Tensor, *, num_samples: int):
        smoothed = counts.clamp_min(1).double()
        self.num_samples = num_samples
        self._table = AliasTable(smoothed)
        self._log_expected = torch.log(smoothed / smoothed.sum()) + math.log(num_samples)

    def draw(self, shape: Sequence[int], *, device: torch.device) -> Tensor:
        """Words of this shape, int64, by the device's default generator."""
        return self._table.draw(shape, device=device)

    def log_expected(self, words: Tensor) -> Tensor:
        """log(k q(w)), the expected number of draws for a target, of words of any shape; float64."""
        self._log_expected = self._log_expected.to(words.device)
        return self._log_expected[words]
