"""Layers and other parts that several models use: linear layers, dropout, embedding, label networks, initialisation.

Shapes: B batch rows, T time steps, C input width, D output width, V words.
"""

import math
import warnings
from contextlib import contextmanager
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Iterable,
    Iterator,
    Optional,
    Sequence,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_plugins.ops.matmul import autocast_dtype, linear
from fairseq_plugins.ops.regularizers import dropout_mask
from fairseq_plugins.options import check_dropout, check_not_negative, check_positive, choices


class Linear(nn.Linear):
    """A :class:`torch.nn.Linear` that uses :func:`linear` in float32 on a CPU. There it has no second derivatives.

    Shape:
        x: (*, in_features); output: (*, out_features).
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or x.dtype != torch.float32 or autocast_dtype(x) is not None:
            return super().forward(x)
        return linear(x.reshape(-1, self.in_features), self.weight, self.bias).view(*x.shape[:-1], self.out_features)


class FeedForward(nn.Module):
    """max(0, U x + b), between recurrent layers and the output.

    Pachitariu & Sahani 2013 have such a layer on a linear recurrent network. They do not publish its size and kind.

    Args:
        input_size: C.
        size: D.

    Shape:
        x: (B, T, C); output: (B, T, D).

    Raises:
        UserError: on a size below one.
    """

    def __init__(self, input_size: int, size: int):
        super().__init__()
        self.size = int(check_positive(size, flag="--output-hidden-size"))
        self.linear = Linear(input_size, self.size)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


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
            warnings.warn("--retain-dropout-modules: those of fairseq_plugins drop only without it", stacklevel=2)


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
    """Embedding with dropout of word types (Gal & Ghahramani 2016; Merity et al. 2018, section 4.3) and noise.

    In training a dropped word is zero at all its positions in the window, or in the row. The other words are divided by
    ``1 - rate``. Then Gaussian noise is added to every feature of every position. Both affect only the look-up: an
    output layer that shares :attr:`weight` reads the plain matrix. The vectors start as U(-0.1, 0.1).

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
        self.rate = check_dropout(word_dropout, flag="--dropout-embedding")
        self.word_masks = word_masks
        self.noise = check_not_negative(noise, flag="--embedding-noise")

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
        if mask is not None:
            vectors = vectors * mask
        if self.training and self.noise > 0:
            vectors = vectors + self.noise * torch.randn_like(vectors)
        return vectors


# Label networks of output layers, which also encode hidden states.


def identity(x: Tensor) -> Tensor:
    """x."""
    return x


ACTIVATIONS = {"sigmoid": torch.sigmoid, "relu": torch.relu, "tanh": torch.tanh, "linear": identity}
LABEL_MASKS = ("variational", "standard")
"""Values of ``--label-mask``."""
SHARED_DIMS = {"variational": (0,), "row": (1,), "standard": ()}
"""Dimensions that share a mask: the labels of (V, C), or the time steps of hidden states (B, T, C)."""
PLACES = ("input", "output")
"""Values of ``--label-dropout-place``: what a layer drops."""
INITIALISATIONS = ("uniform", "glorot")
"""Values of ``--label-init``."""


class LabelLayer(nn.Module):
    """act(x U + b) with dropout of x (``place="input"``) or of the result (``"output"``).

    All labels of a forward pass share a variational mask. Dropped input features are therefore left out of the product.

    Args:
        in_width, out_width: C and D.
        activation: a key of :data:`ACTIVATIONS`.
        dropout: rate, 0 <= rate < 1.
        mask: "variational", (1, C), of labels; "row", (B, 1, C), of hidden states; or "standard", (*, C).
        place: "input", as in the program published with DRILL, or "output", as in its eq. 12.
        initialisation: of U: "uniform", U(-0.1, 0.1), or "glorot"; b starts as U(-1/sqrt(C), 1/sqrt(C)).

    Shape:
        x: (V, C), or (B, T, C); output: (V, D), or (B, T, D).
    """

    def __init__(
        self,
        in_width: int,
        out_width: int,
        *,
        activation: str,
        dropout: float,
        mask: str,
        place: str,
        initialisation: str,
    ):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_width, in_width))
        self.bias = nn.Parameter(torch.empty(out_width).uniform_(-1 / math.sqrt(in_width), 1 / math.sqrt(in_width)))
        if initialisation == "glorot":
            nn.init.xavier_uniform_(self.weight)
        else:
            nn.init.uniform_(self.weight, -0.1, 0.1)
        self.activation = ACTIVATIONS[activation]
        self.mask = mask
        self.place = place
        self.dropout = BroadcastDropout(dropout, flag="--label-dropout", shared_dims=SHARED_DIMS[mask])

    def forward(self, x: Tensor) -> Tensor:
        if self.place == "output":
            return self.dropout(self._layer(x))
        features = self._kept_features()
        if features is None:
            return self._layer(self.dropout(x))
        weight = self.weight.index_select(1, features) / (1 - self.dropout.current_rate)
        return self.activation(linear(x, weight, self.bias, features=features))

    def _layer(self, x: Tensor) -> Tensor:
        return self.activation(linear(x.flatten(0, -2), self.weight, self.bias)).unflatten(0, x.shape[:-1])

    def _kept_features(self) -> Optional[Tensor]:
        """Indices of the features that a new variational mask keeps, or None without such a mask.

        Also None on a GPU, where finding them waits for the device: the mask is multiplied there.
        """
        rate = self.dropout.current_rate
        if rate == 0 or self.mask != "variational" or self.bias.is_cuda:
            return None
        return self.bias.new_empty(self.weight.size(1)).bernoulli_(1 - rate).nonzero().squeeze(1)


class LayerOptions(TypedDict):
    """Arguments of every :class:`LabelLayer` of a :class:`LabelNetwork`."""

    activation: str
    dropout: float
    mask: str
    place: str
    initialisation: str


class LabelNetwork(nn.Module):
    """E^(i) = act(E^(i-1) U^(i) + b^(i)) + E [+ E^(i-1) for i >= 2], i = 1 .. depth  (Pappas & Henderson 2019, eq. 10).

    Args:
        depth: number of layers. With 0 the network is the identity.
        residual: whether E = E^(0) is added to the output of every layer. Then D = C.
        layer_residual: whether a layer's input is added as well, from the second layer on.
        in_width, out_width, activation, dropout, mask, place, initialisation: see :class:`LabelLayer`.

    Shape:
        x: (V, C), or (B, T, C) for hidden states; output: (V, D), or (B, T, D). D = C without layers.
    """

    def __init__(
        self,
        in_width: int,
        out_width: int,
        *,
        depth: int,
        residual: bool,
        layer_residual: bool,
        **layer_options: Unpack[LayerOptions],
    ):
        super().__init__()
        assert not (residual or layer_residual) or in_width == out_width
        self.residual = residual
        self.layer_residual = layer_residual
        self.layers: ModuleSequence[LabelLayer] = ModuleSequence(
            LabelLayer(in_width if i == 0 else out_width, out_width, **layer_options) for i in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        output = x
        for i, layer in enumerate(self.layers):
            layer_input, output = output, layer(output)
            if self.residual:
                output = output + x
            if self.layer_residual and i > 0:
                output = output + layer_input
        return output


# Initialisation of a model's parameters.

STARTS = ("uniform", "by-layer")
"""Values of ``--init``: all parameters from one range, or each matrix by its shape and purpose."""

BIASES = ("uniform", "zero")
"""Initial biases under ``--init-range``: like all parameters, or zero."""

BiasStart = choices(BIASES)


class ResetsByLayer:
    """Base of modules with recurrent or stacked matrices, or with biases that do not start at zero."""

    def reset_by_layer(self) -> None:
        """Draw such parameters anew, for :func:`initialise_by_layer`.

        This is not torch's ``reset_parameters``, which :class:`torch.nn.LSTM` calls when it is built: there it would
        change the initial weights and the random numbers of ``--init uniform``.
        """
        raise NotImplementedError


@torch.no_grad()
def initialise_uniformly(model: nn.Module, init_range: float, *, biases: str) -> None:
    """Draw all parameters from U(-init_range, init_range). ``biases``, "uniform" or "zero", concerns all vectors."""
    assert biases in BIASES
    for parameter in model.parameters():
        if parameter.dim() == 1 and biases == "zero":
            parameter.zero_()
        else:
            parameter.uniform_(-init_range, init_range)


@torch.no_grad()
def initialise_by_layer(model: nn.Module, *, embedding_std: float) -> None:
    """Draw every parameter by its purpose.

    Recurrent matrices are orthogonal (Saxe et al. 2014). Other matrices are uniform with unit gain (Glorot & Bengio
    2010). The matrices of the gates of a layer are drawn separately. Biases are zero, those of forget gates 1
    (Jozefowicz et al. 2015). Embeddings and the matrices tied to them are normal. Modules with exceptions implement
    :class:`ResetsByLayer`.

    Args:
        model: any.
        embedding_std: standard deviation of the embeddings.
    """
    for parameter in model.parameters():
        if parameter.dim() < 2:
            parameter.zero_()
        else:
            glorot_uniform_(parameter)
    for module in model.modules():
        if isinstance(module, ResetsByLayer):
            module.reset_by_layer()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.weight.normal_(0, embedding_std)


def glorot_uniform_(weight: Tensor, *, num_stacked: int = 1) -> None:
    """Draw each matrix stacked in the rows of ``weight`` from U(-a, a), a^2 = 6 / (rows + columns)."""
    for matrix in weight.detach().chunk(num_stacked):
        nn.init.xavier_uniform_(matrix)


def orthogonal_(weight: Tensor, *, num_stacked: int = 1) -> None:
    """Draw each matrix stacked in the rows of ``weight`` as an orthogonal one."""
    for matrix in weight.detach().chunk(num_stacked):
        nn.init.orthogonal_(matrix)


@contextmanager
def every_parameter_learns(model: nn.Module) -> Iterator[None]:
    """Enable gradients of all parameters in the block, including frozen ones."""
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
