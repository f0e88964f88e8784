"""Dropout whose mask may be shared."""

import math
import warnings
from contextlib import contextmanager
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Generic,
    Iterable,
    Iterator,
    Optional,
    Sequence,
    Tuple,
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

MASKS = {"locked": (1,), "standard": ()}
"""Dimensions of (B, T, *) that share a mask: time for locked dropout (Gal & Ghahramani 2016; Merity et al. 2018,
section 4.2), none for the standard one."""


class DropsAtRandom:
    """What makes a module one that drops something: in training, and in evaluation where masks are sampled.

    Attributes:
        evaluation_scale: factor of the rate in evaluation mode; 0, by which nothing is dropped, unless an evaluation
            samples masks.
    """

    training: bool
    evaluation_scale: float = 0.0

    @property
    def trained_rate(self) -> float:
        """The rate in training."""
        raise NotImplementedError

    @property
    def current_rate(self) -> float:
        """That of training in training mode, and in evaluation mode the share of it that is sampled."""
        return self.trained_rate if self.training else self.evaluation_scale * self.trained_rate

    def make_generation_fast_(
        self, retain_dropout: bool = False, retain_dropout_modules: Optional[Sequence[str]] = None, **unused: Any
    ) -> None:
        """Called by fairseq before it decodes: drop there too, with ``--retain-dropout`` for all modules."""
        if retain_dropout and retain_dropout_modules is None:
            self.evaluation_scale = 1.0
        elif retain_dropout:
            warnings.warn("--retain-dropout-modules: those of fairseq_plugins drop only without it", stacklevel=2)


class BroadcastDropout(DropsAtRandom, nn.Module):
    """Dropout with one mask for all places along chosen dimensions.

    The mask is drawn anew at every call, kept values are divided by ``1 - rate``, and evaluation leaves the input
    alone, unless masks are sampled.

    Args:
        rate: probability to drop a value, 0 <= rate < 1.
        flag: the command-line flag that sets the rate, for the message about a wrong one.
        shared_dims: dimensions over which the mask is shared; see :data:`MASKS`.

    Raises:
        ValueError: if the rate is outside [0, 1).
    """

    def __init__(self, rate: float, *, flag: str, shared_dims: Sequence[int]):
        super().__init__()
        self.rate = check_dropout(rate, flag=flag)
        self.shared_dims = tuple(shared_dims)

    @property
    def trained_rate(self) -> float:
        return self.rate

    def mask(self, like: Tensor, size: Sequence[int]) -> Optional[Tensor]:
        """Factors for a tensor of ``size``, of size 1 where shared, in the type of ``like``; None where none drops."""
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


# Word embedding with dropout of whole words and noise.
#
# Shapes: B batch rows, T time steps, V words, C width of a vector.


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


# A linear layer by the fastest kernel at hand.


class Linear(nn.Linear):
    """A :class:`torch.nn.Linear` that takes oneDNN's products in float32 on a CPU, where it is differentiable once.

    Shape:
        x: (*, in_features); output: (*, out_features).
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or x.dtype != torch.float32 or autocast_dtype(x) is not None:
            return super().forward(x)
        return linear(x.reshape(-1, self.in_features), self.weight, self.bias).view(*x.shape[:-1], self.out_features)


# A layer of rectifiers between recurrent layers and the output.
#
# Shapes: B batch rows, T time steps, C input width, D width.


class FeedForward(nn.Module):
    """max(0, U x + b).

    Pachitariu & Sahani 2013 give a linear recurrent network such a layer, of a size and kind that they do not publish.

    Args:
        input_size: C.
        size: D.

    Shape:
        x: (B, T, C); output: (B, T, D).

    Raises:
        ValueError: on a size below one.
    """

    def __init__(self, input_size: int, size: int):
        super().__init__()
        self.size = int(check_positive(size, flag="--output-hidden-size"))
        self.linear = Linear(input_size, self.size)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


# A list of modules of one type.


M = TypeVar("M", bound=nn.Module)


class ModuleSequence(nn.ModuleList, Generic[M]):
    """A :class:`torch.nn.ModuleList` that tells type checkers the type of its modules."""

    if TYPE_CHECKING:

        def __init__(self, modules: Iterable[M]) -> None: ...

        def __iter__(self) -> Iterator[M]: ...

        @overload
        def __getitem__(self, idx: slice) -> "ModuleSequence[M]": ...

        @overload
        def __getitem__(self, idx: int) -> M: ...


# Settings that are kept in checkpoints, because no weight's shape shows them.


class SavesSettings(nn.Module):
    """A module that refuses checkpoints which were trained with other settings."""

    def __init__(self):
        super().__init__()
        self._settings: Dict[str, Tuple[str, Optional[str], Callable[[str], str]]] = {}

    def save_setting(self, name: str, *, flag: str, value: str, older: Optional[str] = None) -> None:
        """Keep the value of a flag as the buffer ``name``.

        ``older`` is that of checkpoints without it; by default they are loaded as if it fitted.
        """
        self.save_text(name, value, older=older, explain=partial(_explain_flag, flag, value))

    def save_text(self, name: str, value: str, *, older: Optional[str] = None, explain: Callable[[str], str]) -> None:
        """Keep a text as the buffer ``name``; ``older`` as in :meth:`save_setting`.

        ``explain`` gives the message of the error for a checkpoint that holds another text, which it is called with.
        """
        self.register_buffer(name, _as_numbers(value))
        self._settings[name] = (value, older, explain)

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any, **kwargs: Any) -> None:
        for name, (value, older, explain) in self._settings.items():
            missing = getattr(self, name) if older is None else _as_numbers(older)
            saved = state_dict.setdefault(f"{prefix}{name}", missing)
            saved_value = bytes(saved.nan_to_num().round().clamp(0, 255).int().tolist()).decode(errors="replace")
            if saved_value != value:
                raise ValueError(explain(saved_value))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _as_numbers(text: str) -> Tensor:
    """Numbers that every precision holds; floating ones, because fairseq averages all buffers."""
    return torch.tensor(list(text.encode()), dtype=torch.float32)


def _explain_flag(flag: str, value: str, saved_value: str) -> str:
    return (
        f"the checkpoint was trained with {flag} {saved_value}, this model has {flag} {value}: "
        f"give the same --arch and {flag}"
    )


# Networks that bring labels, or hidden states, into a joint space.
#
# Shapes: * V labels, or B, T batch and time of hidden states, C input width, D output width.


def identity(x: Tensor) -> Tensor:
    """x."""
    return x


ACTIVATIONS = {"sigmoid": torch.sigmoid, "relu": torch.relu, "tanh": torch.tanh, "linear": identity}
LABEL_MASKS = ("variational", "standard")
"""Masks of labels that a flag chooses between."""
SHARED_DIMS = {"variational": (0,), "row": (1,), "standard": ()}
"""Dimensions that share a mask: of labels (V, C) the labels, of hidden states (B, T, C) the time steps of a row."""
PLACES = ("input", "output")
"""What a layer drops."""
INITIALISATIONS = ("uniform", "glorot")
"""Starts of a layer's matrix."""


class LabelLayer(nn.Module):
    """act(x U + b) with dropout of x (``place="input"``) or of the result (``"output"``).

    A variational mask is shared by all labels of a forward pass, so that the features which it drops are not
    multiplied at all.

    Args:
        in_width, out_width: C and D.
        activation: a key of :data:`ACTIVATIONS`.
        dropout: rate, 0 <= rate < 1.
        mask: "variational", (1, C), of labels; "row", (B, 1, C), of hidden states; or "standard", (*, C).
        place: "input", as in the program published with DRILL, or "output", as in its eq. 12.
        initialisation: of U: "uniform", U(-0.1, 0.1), or "glorot"; b starts as U(-1/sqrt(C), 1/sqrt(C)).

    Shape:
        x: (*, C); output: (*, D).
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
        """Features that a fresh variational mask keeps, or None where there is no such mask."""
        rate = self.dropout.current_rate
        if rate == 0 or self.mask != "variational":
            return None
        return self.bias.new_empty(self.weight.size(1)).bernoulli_(1 - rate).nonzero().squeeze(1)


class LayerOptions(TypedDict):
    """What all layers of a :class:`LabelNetwork` have in common."""

    activation: str
    dropout: float
    mask: str
    place: str
    initialisation: str


class LabelNetwork(SavesSettings):
    """E^(i) = act(E^(i-1) U^(i) + b^(i)) + E [+ E^(i-1) for i >= 2], i = 1 .. depth  (Pappas & Henderson 2019, eq. 10).

    Args:
        depth: number of layers; without any the labels stay as they are.
        residual: whether E = E^(0) is added to the output of every layer, which then must be as wide.
        layer_residual: whether the layer's input is added as well, from the second layer on.
        in_width, out_width, activation, dropout, mask, place, initialisation: see :class:`LabelLayer`.

    Shape:
        x: (*, C); output: (*, D), D = C without layers.
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
        if depth > 0:
            self.save_setting("activation_name", flag="--label-activation", value=layer_options["activation"])
            self.save_setting("residual_text", flag="--label-residual", value="on" if residual else "off")
        if depth > 1:
            name = "on" if layer_residual else "off"
            self.save_setting("layer_residual_text", flag="--label-layer-residual", value=name)
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


# Start of a model's parameters.


STARTS = ("uniform", "by-layer")
"""How a model's parameters start: all from one range, or each matrix by its shape and what it is for."""

BIASES = ("uniform", "zero")
"""How biases start under ``--init-range``: like all parameters, or at zero."""


BiasStart = choices(BIASES)


class StartsByLayer:
    """Base of modules with recurrent or stacked matrices, or with biases that do not start at zero."""

    def start_by_layer(self) -> None:
        """Draw those of its own parameters; all parameters of the model have their common start by then."""
        raise NotImplementedError


@torch.no_grad()
def initialise_uniformly(model: nn.Module, init_range: float, *, biases: str) -> None:
    """Draw all parameters from U(-init_range, init_range); vectors, which are biases, as ``biases`` says."""
    assert biases in BIASES
    for parameter in model.parameters():
        if parameter.dim() == 1 and biases == "zero":
            parameter.zero_()
        else:
            parameter.uniform_(-init_range, init_range)


@torch.no_grad()
def initialise_by_layer(model: nn.Module, *, embedding_std: float) -> None:
    """Draw all parameters by what they are for.

    Recurrent matrices are orthogonal (Saxe et al. 2014), other matrices uniform with unit gain (Glorot & Bengio 2010),
    each gate for itself. Biases are zero, those of forget gates 1 (Jozefowicz et al. 2015). Embeddings, with what
    shares them, are normal. What a module starts in another way is its :meth:`StartsByLayer.start_by_layer`.

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
        if isinstance(module, StartsByLayer):
            module.start_by_layer()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.weight.normal_(0, embedding_std)


def glorot_uniform_(weight: Tensor, *, num_stacked: int = 1) -> None:
    """Draw matrices that are stacked in the rows of ``weight``, each from U(-a, a), a^2 = 6 / (rows + columns)."""
    for matrix in weight.detach().chunk(num_stacked):
        nn.init.xavier_uniform_(matrix)


def orthogonal_(weight: Tensor, *, num_stacked: int = 1) -> None:
    """Draw orthogonal matrices that are stacked in the rows of ``weight``."""
    for matrix in weight.detach().chunk(num_stacked):
        nn.init.orthogonal_(matrix)


# Parameters that do not learn.


@contextmanager
def every_parameter_learns(model: nn.Module) -> Iterator[None]:
    """Gradients for all parameters in the block, for frozen ones as well."""
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
