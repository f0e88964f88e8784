"""Layers that several models use: linear layers, dropout, embedding. Initial values of all parameters.

Shapes: B batch rows, T time steps, C input width, D output width, V words.
"""

import warnings
from typing import TYPE_CHECKING, Any, Generic, Iterable, Iterator, Optional, Sequence, TypeVar, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_plugins.ops.matmul import autocast_dtype, linear
from fairseq_plugins.options import check_dropout, choices


class Linear(nn.Linear):
    """A :class:`torch.nn.Linear` that uses :func:`linear` in float32 on a CPU. There it has no second derivatives.

    Shape:
        x: (*, in_features); output: (*, out_features).
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or x.dtype != torch.float32 or autocast_dtype(x) is not None:
            return super().forward(x)
        return linear(x, self.weight, self.bias)


M = TypeVar("M", bound=nn.Module)


class ModuleSequence(nn.ModuleList, Generic[M]):
    """A :class:`torch.nn.ModuleList` that declares the type of its modules."""

    if TYPE_CHECKING:

        def __init__(self, modules: Iterable[M]) -> None: ...

        def __iter__(self) -> Iterator[M]: ...

        @overload
        def __getitem__(self, idx: slice) -> "ModuleSequence[M]": ...

        @overload
        def __getitem__(self, idx: int) -> M: ...


MASKS = {"locked": (1,), "standard": ()}
"""Dimensions of (B, T, *) that share a dropout mask: time in locked dropout (Gal & Ghahramani 2016; Merity et al. 2018,
section 4.2), none in standard dropout."""


def dropout_mask(like: Tensor, size: Sequence[int], *, rate: float) -> Tensor:
    """Factors of ``size``, in the type and on the device of ``like``: 0 with probability ``rate``,
    otherwise 1 / (1 - rate).

    On a CPU uniform numbers are compared with the rate. Torch's own ``bernoulli_`` takes three times as long there.

    Args:
        like: any tensor.
        size: of the result.
        rate: probability of a zero, 0 <= rate < 1.
    """
    keep = 1 - rate
    if like.device.type != "cpu":
        return like.new_empty(size).bernoulli_(keep).div_(keep)
    return torch.rand(size, dtype=torch.float32, device=like.device).lt_(keep).to(like.dtype).div_(keep)


class DropoutModule:
    """Base of modules with dropout. An evaluation may sample dropout masks, too.

    Attributes:
        rate: in training.
        evaluation_scale: factor of the rate in evaluation mode. 0, no dropout, unless an evaluation samples masks.
    """

    training: bool
    rate: float
    evaluation_scale: float = 0.0

    @property
    def current_rate(self) -> float:
        """The rate in the present mode."""
        return self.rate if self.training else self.evaluation_scale * self.rate

    def make_generation_fast_(
        self, retain_dropout: bool = False, retain_dropout_modules: Optional[Sequence[str]] = None, **unused: Any
    ) -> None:
        """Called by fairseq before it decodes: keep dropout if ``--retain-dropout`` asks for it in all modules."""
        if retain_dropout and retain_dropout_modules is None:
            self.evaluation_scale = 1.0
        elif retain_dropout:
            warnings.warn(
                "--retain-dropout-modules does not reach modules of fairseq_plugins: leave it out to keep all dropout",
                stacklevel=2,
            )


class BroadcastDropout(DropoutModule, nn.Module):
    """Dropout whose mask is shared along chosen dimensions.

    Every call draws a new mask. Kept values are divided by ``1 - rate``. Evaluation drops nothing, unless it samples
    masks.

    Args:
        rate: probability to drop a value, 0 <= rate < 1.
        flag: the command-line flag that sets the rate, for error messages.
        shared_dims: dimensions over which the mask is shared; see :data:`MASKS`.

    Raises:
        UserError: if the rate is outside [0, 1).
    """

    def __init__(self, rate: float, *, flag: str, shared_dims: Sequence[int]):
        super().__init__()
        self.rate = check_dropout(rate, flag=flag)
        self.shared_dims = tuple(shared_dims)

    def mask(self, like: Tensor, size: Sequence[int]) -> Optional[Tensor]:
        """Factors for a tensor of ``size``, of size 1 where shared, in the dtype of ``like``. None without dropout."""
        rate = self.current_rate
        if rate == 0.0:
            return None
        shape = [1 if dim in self.shared_dims else length for dim, length in enumerate(size)]
        return dropout_mask(like, shape, rate=rate)

    def forward(self, x: Tensor) -> Tensor:
        mask = self.mask(x, x.shape)
        return x if mask is None else x * mask

    def extra_repr(self) -> str:
        return f"rate={self.rate}, shared_dims={self.shared_dims}"


WORD_MASKS = ("window", "row")
"""Scope of the choice of dropped words: all rows of a window, or one row."""


class WordDropoutEmbedding(DropoutModule, nn.Embedding):
    """Embedding with dropout of word types (Gal & Ghahramani 2016; Merity et al. 2018, section 4.3).

    In training a dropped word is zero at all its positions in the window, or in the row. The other words are divided by
    ``1 - rate``. This affects only the look-up: an output layer that shares :attr:`weight` reads the plain matrix. The
    vectors start as U(-0.1, 0.1).

    Args:
        num_embeddings: V.
        embedding_dim: C.
        word_dropout: probability to drop a word type, 0 <= rate < 1.
        word_masks: a value of :data:`WORD_MASKS`: "window" as in AWD-LSTM, "row" as in variational LSTMs.

    Shape:
        tokens: (B, T) int64; output: (B, T, C).
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, *, word_dropout: float = 0.0, word_masks: str = "window"
    ):
        super().__init__(num_embeddings, embedding_dim)
        assert word_masks in WORD_MASKS
        self.rate = check_dropout(word_dropout, flag="--dropout-embedding")
        self.word_masks = word_masks

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight, -0.1, 0.1)

    def mask(self, tokens: Tensor) -> Optional[Tensor]:
        """New factors (B, T, 1) of the tokens (B, T), or None without dropout."""
        rate = self.current_rate
        if rate == 0.0:
            return None
        if self.word_masks == "window":
            return F.embedding(tokens, dropout_mask(self.weight, (self.num_embeddings, 1), rate=rate))
        drawn = dropout_mask(self.weight, tokens.shape, rate=rate)
        # all positions of a word in a row take the factor of its first position
        first_place = tokens.unsqueeze(2).eq(tokens.unsqueeze(1)).int().argmax(dim=2)
        return drawn.gather(1, first_place).unsqueeze(-1)

    def forward(self, tokens: Tensor) -> Tensor:
        vectors = super().forward(tokens)
        mask = self.mask(tokens)
        return vectors if mask is None else vectors * mask


# Initial values

BIASES = ("uniform", "zero")
"""Initial biases under ``--init-range``: like all parameters, or zero."""

InitBiases = choices(BIASES)


@torch.no_grad()
def initialise_uniformly(model: nn.Module, init_range: float, *, biases: str) -> None:
    """Draw all parameters from U(-init_range, init_range). ``biases``, "uniform" or "zero", concerns all vectors."""
    assert biases in BIASES
    for parameter in model.parameters():
        if parameter.dim() == 1 and biases == "zero":
            parameter.zero_()
        else:
            parameter.uniform_(-init_range, init_range)
