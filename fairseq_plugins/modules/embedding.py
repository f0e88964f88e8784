"""Word embedding with dropout of whole rows."""

from typing import Optional

import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_plugins.flags.values import check_dropout


class RowDropoutEmbedding(nn.Embedding):
    """Embedding that drops whole word types (Gal & Ghahramani 2016; Merity et al. 2018, section 4.3).

    A dropped type is zero at every position of the window; the other rows are divided by
    ``1 - row_dropout``. Only the look-up is masked: an output layer that shares :attr:`weight` reads
    the full matrix. Rows start as U(-0.1, 0.1).

    Args:
        num_embeddings: vocabulary size V.
        embedding_dim: width of a row, C.
        row_dropout: probability to drop a word type, 0 <= rate < 1.

    Shape:
        tokens: (B, T) int64; output: (B, T, C).
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, *, row_dropout: float = 0.0):
        super().__init__(num_embeddings, embedding_dim)
        self.row_dropout = check_dropout(row_dropout, flag="--dropout-embedding")

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight, -0.1, 0.1)

    def row_mask(self) -> Optional[Tensor]:
        """A fresh mask of shape (V, 1), or None where nothing is dropped."""
        if not self.training or self.row_dropout == 0.0:
            return None
        mask = self.weight.new_empty(self.num_embeddings, 1)
        return mask.bernoulli_(1 - self.row_dropout).div_(1 - self.row_dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        vectors = super().forward(tokens)
        mask = self.row_mask()
        return vectors if mask is None else vectors * F.embedding(tokens, mask)
