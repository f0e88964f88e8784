"""Recurrent layers without gates (Pachitariu & Sahani 2013).

Shapes: B batch rows, T time steps, C input width, of which C' columns are precomputed, D width, V words.
"""

import math
from argparse import Namespace
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_plugins.modules.cell import RECURRENT_CELLS, CellContext, LayerState, RecurrentCell, Step
from fairseq_plugins.ops.matmul import accumulation_dtype, linear
from fairseq_plugins.ops.recurrence import StepProducts, linear_scan
from fairseq_plugins.options import OnOff, UserError, check_positive, choices


@dataclass
class SimpleRecurrentOptions(FairseqDataclass):
    """Flags of the cells without gates."""

    input_matrix: OnOff = field(
        default="on",
        metadata={
            "help": "whether a layer multiplies its input by a matrix; off: it adds the input as it is, which must "
            "be as wide as the hidden state (default: on)"
        },
    )
    word_skip: Optional[str] = field(
        default=None,
        metadata={
            "help": "for character-level text: the symbol of dict.txt between words. A second recurrent matrix "
            "connects the first letters of successive words (default: no such matrix)"
        },
    )
    recurrent_scale: float = field(
        default=1.0,
        metadata={
            "help": "factor c of recurrent matrices that are not diagonal: the matrix is c times its parameter. "
            "With Adagrad and Adam, c below 1 makes them learn more slowly. They also start nearer to zero "
            "(default: 1.0)"
        },
    )


class SimpleRecurrentLayer(RecurrentCell):
    """x_t = f(W y_t + R x_{t-1}), without biases.

    With ``--word-skip`` (a skipping network) R' x_{t'} is added at the first letter of each word, where t' is the first
    letter of the word before. The output is x. The state is x, (B, D), and with the skip also x at the last first
    letter, (B, D), and whether the token before was inside a word, 1 or 0, (B, 1). A text begins with a first letter.

    A subclass defines f by :meth:`activation`, and R by :attr:`recurrent` or :meth:`self_connections`. With
    ``--recurrent-scale`` c, R and R' are c times the parameters :attr:`recurrent` and :attr:`skip`.

    Args:
        input_size: C.
        hidden_size: D.
        options: flags.

    Raises:
        UserError: if the input without a matrix is not as wide as the layer, or the scale is not above zero.
    """

    recurrent: Optional[nn.Linear]
    """R / c, (D, D), or None if R is diagonal."""
    is_boundary: Tensor

    def __init__(self, input_size: int, hidden_size: int, *, options: SimpleRecurrentOptions):
        super().__init__()
        if options.input_matrix == "off" and input_size != hidden_size:
            raise UserError(
                f"--input-matrix off: the layer is {hidden_size} wide and its input {input_size}: give --hidden-sizes "
                "the value of --embed-dim, and a decoder --input-feeding off, or leave it on"
            )
        self.input_size, self.hidden_size = input_size, hidden_size
        self.input = nn.Linear(input_size, hidden_size, bias=False) if options.input_matrix == "on" else None
        self.recurrent_scale = check_positive(options.recurrent_scale, flag="--recurrent-scale")
        self.word_skip = options.word_skip
        self.skip = None if options.word_skip is None else nn.Linear(hidden_size, hidden_size, bias=False)
        self.register_buffer("is_boundary", torch.zeros(0, dtype=torch.bool), persistent=False)

    def recurrent_matrices(self) -> List[Tensor]:
        """R and R', (D, D) each, as far as the layer has them."""
        weights = [matrix.weight for matrix in (self.recurrent, self.skip) if matrix is not None]
        return weights if self.recurrent_scale == 1 else [self.recurrent_scale * weight for weight in weights]

    def activation(self, sums: Tensor) -> Tensor:
        """f, elementwise."""
        raise NotImplementedError

    def self_connections(self) -> Tensor:
        """The diagonal of R, (D), in float32 or wider. For layers without :attr:`recurrent`."""
        raise NotImplementedError

    def read_dictionary(self, dictionary: Dictionary) -> None:
        """Read which symbols are between words: the value of ``--word-skip``, begin and end of sentence, and padding.

        Raises:
            UserError: if the dictionary does not hold the symbol.
        """
        if self.word_skip is None:
            return
        if self.word_skip not in dictionary:
            raise UserError(f"--word-skip {self.word_skip}: dict.txt has no such symbol; give the one between words")
        boundaries = [dictionary.index(self.word_skip), dictionary.bos(), dictionary.eos(), dictionary.pad()]
        is_boundary = torch.zeros(len(dictionary), dtype=torch.bool)
        is_boundary[boundaries] = True
        self.is_boundary = is_boundary

    def initial_state(self, x: Tensor) -> LayerState:
        state = {"x": x.new_zeros(x.size(0), self.hidden_size)}
        if self.skip is not None:
            state["first_letter"] = torch.zeros_like(state["x"])
            state["inside"] = x.new_zeros(x.size(0), 1)
        return state

    def input_sums(self, x: Tensor) -> Tensor:
        """Part (T, B, D) of the pre-activations that comes from the first columns of the input, (B, T, C')."""
        if self.input is None:
            return F.pad(x.transpose(0, 1), (0, self.hidden_size - x.size(-1)))
        return linear(x.transpose(0, 1), self.input.weight[:, : x.size(-1)], None)

    def steps(self, x: Tensor, context: CellContext) -> Step:
        num_precomputed, precomputed = x.size(-1), self.input_sums(x)
        # Each step needs one product: of its input, the state and the state at the last first letter, concatenated.
        weights: List[Tensor] = []
        if self.input is not None and num_precomputed < self.input_size:
            weights.append(self.input.weight[:, num_precomputed:])
        weights.extend(self.recurrent_matrices())
        products = StepProducts(precomputed, torch.cat(weights, dim=1).t()) if weights else None
        boundaries: Tuple[Tensor, ...] = ()  # whether each step's token is a boundary between words, (B, 1)
        if self.skip is not None:
            assert context.tokens is not None and len(self.is_boundary) > 0
            boundaries = self.is_boundary[context.tokens].unsqueeze(-1).unbind(1)
        connections = self.self_connections() if self.recurrent is None else None
        sums_of_steps = precomputed.unbind(0)

        def step(t: int, state: LayerState, late: Optional[Tensor], _: Optional[Tensor]) -> Tuple[Tensor, LayerState]:
            operands = [] if late is None or self.input is None else [late]
            if self.recurrent is not None:
                operands.append(state["x"])
            is_first = None  # whether the token is the first letter of a word
            if self.skip is not None:
                is_first = ~boundaries[t] & (state["inside"] == 0)
                operands.append(state["first_letter"] * is_first)
            sums = sums_of_steps[t] if products is None else products(t, torch.cat(operands, dim=1))
            if late is not None and self.input is None:
                sums = sums + F.pad(late, (self.hidden_size - late.size(1), 0))
            if connections is not None:
                # in 16 bits the self-connections of units that forget slowly would be 1
                wide = connections.dtype
                sums = torch.addcmul(sums.to(wide), connections, state["x"].to(wide)).to(sums.dtype)
            x = self.activation(sums)
            if is_first is None:
                return x, {"x": x}
            inside = (~boundaries[t]).to(x.dtype)
            return x, {"x": x, "first_letter": torch.where(is_first, x, state["first_letter"]), "inside": inside}

        return step


Transition = choices(["diagonal", "full"])


@dataclass
class DiagonalOptions(SimpleRecurrentOptions):
    """Flags of ``--rnn-cell diagonal``."""

    transition: Transition = field(
        default="diagonal",
        metadata={
            "help": "shape of the recurrent matrix; diagonal: each unit reads only itself, with a weight between -1 "
            "and 1 (default: diagonal)"
        },
    )
    longest_timescale: float = field(
        default=20.0,
        metadata={
            "help": "initial timescale of the slowest unit, the tokens after which 1/e of its state is left. The "
            "others are spaced evenly in the logarithm, down to a quarter of a token (default: 20.0)"
        },
    )


SHORTEST_TIMESCALE, LONGEST_TIMESCALE = 0.25, 100_000
"""In tokens. In 32 bits a self-connection for 10^8 tokens is 1 and learns nothing, so the limit is far below."""


@RECURRENT_CELLS.register("diagonal")
class DiagonalRNN(SimpleRecurrentLayer):
    """x_t = W y_t + r * x_{t-1}: the FPNN, a linear network whose units each have a memory of their own.

    r = tanh(s_0 + s) with a trained s, so r stays within -1 and 1. s_0 determines the initial timescales -1 / log r. r
    is computed in float32: in 16 bits it would be 1 for units that forget slowly. A window is one scan. With
    ``--transition full`` a matrix replaces r, and its values are not bounded.

    Raises:
        UserError: as :class:`SimpleRecurrentLayer`, or if the longest timescale is out of range.
    """

    Options = DiagonalOptions

    @classmethod
    def unused_options(cls, args: Namespace) -> Dict[str, str]:
        if getattr(args, "transition", "diagonal") == "full":
            return {"longest_timescale": "leave out --transition full"}
        if getattr(args, "word_skip", None) is None:
            return {"recurrent_scale": "give it a recurrent matrix by --transition full or --word-skip"}
        return {}

    def __init__(self, input_size: int, hidden_size: int, *, options: DiagonalOptions):
        super().__init__(input_size, hidden_size, options=options)
        if not SHORTEST_TIMESCALE < options.longest_timescale <= LONGEST_TIMESCALE:
            raise UserError(
                f"--longest-timescale {options.longest_timescale}: give a number of tokens above {SHORTEST_TIMESCALE}, "
                f"up to {LONGEST_TIMESCALE:,}"
            )
        self.recurrent = nn.Linear(hidden_size, hidden_size, bias=False) if options.transition == "full" else None
        self.longest_timescale = options.longest_timescale
        self._connection_offset: Optional[Tensor] = None  # not a buffer, whose dtype would follow the weights
        if self.recurrent is None:
            self.connection_bias = nn.Parameter(torch.zeros(hidden_size))

    def activation(self, sums: Tensor) -> Tensor:
        return sums

    @property
    def connection_offset(self) -> Tensor:
        """s_0, (D) in float32, for any dtype of the weights."""
        device = self.connection_bias.device
        if self._connection_offset is None or self._connection_offset.device != device:
            shortest = SHORTEST_TIMESCALE if self.hidden_size > 1 else self.longest_timescale
            timescales = torch.linspace(math.log(shortest), math.log(self.longest_timescale), self.hidden_size).exp()
            self._connection_offset = torch.atanh(torch.exp(-1 / timescales)).to(device)
        return self._connection_offset

    def self_connections(self) -> Tensor:
        bias = self.connection_bias
        return torch.tanh(self.connection_offset + bias.to(accumulation_dtype(bias)))

    def forward(self, x: Tensor, state: LayerState, context: CellContext) -> Tuple[Tensor, LayerState]:
        if self.recurrent is not None or self.skip is not None:
            return super().forward(x, state, context)
        sums = self.input_sums(x)
        if context.leading_padding is not None:
            sums = sums.masked_fill(context.leading_padding.t().unsqueeze(-1), 0)  # zeros stay zeros
        outputs = linear_scan(sums, self.self_connections(), state["x"])
        return outputs.transpose(0, 1), {"x": outputs[-1].clone()}


@RECURRENT_CELLS.register("rectifier")
class RectifierRNN(SimpleRecurrentLayer):
    """x_t = max(0, W y_t + R x_{t-1}).

    Args, Raises: see :class:`SimpleRecurrentLayer`.
    """

    Options = SimpleRecurrentOptions

    def __init__(self, input_size: int, hidden_size: int, *, options: SimpleRecurrentOptions):
        super().__init__(input_size, hidden_size, options=options)
        self.recurrent = nn.Linear(hidden_size, hidden_size, bias=False)

    def activation(self, sums: Tensor) -> Tensor:
        return torch.relu(sums)


@dataclass
class SmoothRectifierOptions(SimpleRecurrentOptions):
    """Flags of ``--rnn-cell smooth-rectifier``."""

    rectifier_smoothing: float = field(
        default=1.0,
        metadata={
            "help": "a in max(0, x - a tanh(x / a)), above 0; as a falls, this approaches the plain rectifier "
            "(default: 1.0)"
        },
    )


@RECURRENT_CELLS.register("smooth-rectifier")
class SmoothRectifierRNN(RectifierRNN):
    """x_t = f(W y_t + R x_{t-1}) with f(z) = max(0, z - a tanh(z / a)), whose derivative is continuous.

    Raises:
        UserError: as :class:`SimpleRecurrentLayer`, or if a is not above zero.
    """

    Options = SmoothRectifierOptions

    def __init__(self, input_size: int, hidden_size: int, *, options: SmoothRectifierOptions):
        super().__init__(input_size, hidden_size, options=options)
        self.smoothing = check_positive(options.rectifier_smoothing, flag="--rectifier-smoothing")

    def activation(self, sums: Tensor) -> Tensor:
        return torch.relu(sums - self.smoothing * torch.tanh(sums / self.smoothing))
