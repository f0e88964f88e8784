"""Word embedding with dropout of whole words and noise.

Shapes: B batch rows, T time steps, V words, C width of a vector.
"""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_plugins.flags.values import check_dropout, check_not_negative
from fairseq_plugins.modules.dropout import DropsAtRandom
from fairseq_plugins.ops.dropout_mask import dropout_mask

WORD_MASKS = ("window", "row")
"""What shares the choice of dropped words: all rows of a window, or the time steps of one row."""


class WordDropoutEmbedding(DropsAtRandom, nn.Embedding):
    """Embedding that drops word types (Gal & Ghahramani 2016; Merity et al. 2018, section 4.3), and adds noise.

    In training a dropped word is zero at every position of the window, or of the row; the others are divided by ``1 -
    rate``. Gaussian noise is then added to every feature of every position. Both concern the look-up alone: an output
    layer that shares :attr:`weight` reads the matrix itself. Vectors start as U(-0.1, 0.1).

    Args:
        num_embeddings: V.
        embedding_dim: C.
        word_dropout: probability to drop a word type, 0 <= rate < 1.
        word_masks: a value of :data:`WORD_MASKS`: "window" as in AWD-LSTM, "row" as in variational LSTMs.
        noise: standard deviation of the noise.

    Shape:
        tokens: (B, T) int64; output: (B, T, C).
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        word_dropout: float = 0.0,
        word_masks: str = "window",
        noise: float = 0.0,
    ):
        super().__init__(num_embeddings, embedding_dim)
        assert word_masks in WORD_MASKS
        self.word_dropout = check_dropout(word_dropout, flag="--dropout-embedding")
        self.word_masks = word_masks
        self.noise = check_not_negative(noise, flag="--embedding-noise")

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight, -0.1, 0.1)

    @property
    def trained_rate(self) -> float:
        return self.word_dropout

    def mask(self, tokens: Tensor) -> Optional[Tensor]:
        """Fresh factors of the tokens (B, T), (B, T, 1), or None where nothing is dropped."""
        rate = self.current_rate
        if rate == 0.0:
            return None
        if self.word_masks == "window":
            return F.embedding(tokens, dropout_mask(self.weight, (self.num_embeddings, 1), rate=rate))
        drawn = dropout_mask(self.weight, tokens.shape, rate=rate)
        first_place = tokens.unsqueeze(2).eq(tokens.unsqueeze(1)).int().argmax(dim=2)
        return drawn.gather(1, first_place).unsqueeze(-1)

    def forward(self, tokens: Tensor) -> Tensor:
        vectors = super().forward(tokens)
        mask = self.mask(tokens)
        if mask is not None:
            vectors = vectors * mask
        if self.training and self.noise > 0:
            vectors = vectors + self.noise * torch.randn_like(vectors)
        return vectors
