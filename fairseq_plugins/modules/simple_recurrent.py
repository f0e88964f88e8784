"""Recurrent layers without gates (Pachitariu & Sahani 2013).

Shapes: B batch rows, T time steps, C input width, of which C' columns are known in advance, D width, V words.
"""

from dataclasses import dataclass, field
from typing import List, NamedTuple, Optional, Tuple

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_plugins.flags.choices import choices
from fairseq_plugins.flags.values import check_positive
from fairseq_plugins.modules.initialisation import orthogonal_
from fairseq_plugins.modules.recurrent_cell import CellContext, Late, LayerState, RecurrentCell
from fairseq_plugins.modules.saved_setting import SavesSettings
from fairseq_plugins.ops.linear import linear
from fairseq_plugins.ops.step_products import StepProducts

INPUT_MATRICES = ("on", "off")
"""Whether a layer multiplies its input by a matrix, or adds it as it is."""

InputMatrix = choices(INPUT_MATRICES)


@dataclass
class SimpleRecurrentOptions(FairseqDataclass):
    """Flags of the cells without gates."""

    input_matrix: InputMatrix = field(
        default="on",
        metadata={
            "help": "whether a layer multiplies its input by a matrix; off: the input is added as it is, so that the "
            "embedding is the only matrix between a word and the hidden state, which must be as wide (default: on)"
        },
    )
    word_skip: Optional[str] = field(
        default=None,
        metadata={
            "help": "for texts of characters: the symbol of dict.txt that stands between words, as end marks do. A "
            "second recurrent matrix then reads, at the first letter of a word, the hidden state at that of the word "
            "before (default: no such matrix)"
        },
    )
    recurrent_scale: float = field(
        default=1.0,
        metadata={
            "help": "recurrent matrices, not diagonal ones, are this multiple of their parameters. Steps of Adagrad "
            "and Adam are as long for small gradients as for large ones; by a multiple below 1 these matrices learn "
            "more slowly than others, and start nearer to zero unless --init by-layer (default: 1.0)"
        },
    )


class PreparedSteps(NamedTuple):
    """What all steps of a layer read.

    Attributes:
        known: what is known in advance of the sums, (B, D) a step.
        products: their sum with the products of what the step alone knows; None where it knows nothing.
        boundaries: whether the word is a boundary, (B, 1) a step; empty where nothing skips.
        connections: the diagonal of R, (D), in float32 or wider, or None where R is a matrix.
    """

    known: Tuple[Tensor, ...]
    products: Optional[StepProducts]
    boundaries: Tuple[Tensor, ...]
    connections: Optional[Tensor]


class SimpleRecurrentLayer(RecurrentCell, SavesSettings):
    """x_t = f(W y_t + R x_{t-1}), without biases.

    With ``--word-skip`` R' x_{t'} is added at the first letter of each word, where t' is the first letter of the word
    before (a skipping network). The output is x, and the state x, (B, D), and with the skip x at the last first letter,
    (B, D), and whether the token before was inside a word, 1 or 0, (B, 1). A text begins with a first letter.

    A subclass gives f in :meth:`activation`, and R as :attr:`recurrent` or as :meth:`self_connections`. With
    ``--recurrent-scale`` c, R and R' are c times the parameters :attr:`recurrent` and :attr:`skip`.

    Args:
        input_size: C.
        hidden_size: D.
        options: flags.

    Raises:
        ValueError: without an input matrix if the input is not as wide as the layer; if the scale is not above zero.
    """

    recurrent: Optional[nn.Linear]
    """R / c, (D, D), or None where R is diagonal."""
    is_boundary: Tensor

    def __init__(self, input_size: int, hidden_size: int, *, options: SimpleRecurrentOptions):
        super().__init__()
        if options.input_matrix == "off" and input_size != hidden_size:
            raise ValueError(
                f"--input-matrix off: the layer is {hidden_size} wide and its input {input_size}: give --hidden-sizes "
                "the value of --embed-dim, and a decoder --input-feeding off, or leave it on"
            )
        self.input_size, self.hidden_size = input_size, hidden_size
        self.input = nn.Linear(input_size, hidden_size, bias=False) if options.input_matrix == "on" else None
        self.recurrent_scale = check_positive(options.recurrent_scale, flag="--recurrent-scale")
        self.save_setting("cell_name", flag="--rnn-cell", value=self.name)
        self.save_setting("scale_text", flag="--recurrent-scale", value=f"{options.recurrent_scale:g}")
        self.word_skip = options.word_skip
        if options.word_skip is not None:
            self.save_setting("skip_text", flag="--word-skip", value=options.word_skip)
        self.skip = None if options.word_skip is None else nn.Linear(hidden_size, hidden_size, bias=False)
        self.register_buffer("is_boundary", torch.zeros(0, dtype=torch.bool), persistent=False)

    @torch.no_grad()
    def start_by_layer(self) -> None:
        """R and R' are orthogonal."""
        for matrix in (self.recurrent, self.skip):
            if matrix is not None:
                orthogonal_(matrix.weight)
                matrix.weight.div_(self.recurrent_scale)

    def recurrent_matrices(self) -> List[Tensor]:
        """R and R', (D, D) each, where there are such."""
        weights = [matrix.weight for matrix in (self.recurrent, self.skip) if matrix is not None]
        return weights if self.recurrent_scale == 1 else [self.recurrent_scale * weight for weight in weights]

    def activation(self, sums: Tensor) -> Tensor:
        """f, element by element."""
        raise NotImplementedError

    def self_connections(self) -> Tensor:
        """The diagonal of R, (D), in float32 or wider, where there is no :attr:`recurrent`."""
        raise NotImplementedError

    def read_dictionary(self, dictionary: Dictionary) -> None:
        """Learn which symbols stand between words: that of ``--word-skip``, the end mark, and padding.

        Raises:
            ValueError: if the dictionary does not hold the symbol.
        """
        if self.word_skip is None:
            return
        if self.word_skip not in dictionary:
            raise ValueError(f"--word-skip {self.word_skip}: dict.txt has no such symbol; give the one between words")
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

    def sums_of_inputs(self, x: Tensor) -> Tensor:
        """Share of the sums (T, B, D) of the first columns of the input, (B, T, C')."""
        steps_first = x.transpose(0, 1)
        if self.input is None:
            return F.pad(steps_first, (0, self.hidden_size - x.size(-1)))
        rows = steps_first.flatten(0, 1)
        return linear(rows, self.input.weight[:, : x.size(-1)], None).unflatten(0, steps_first.shape[:2])

    def prepare(self, x: Tensor, context: CellContext) -> PreparedSteps:
        num_known = x.size(-1)
        known = self.sums_of_inputs(x)
        late = self.input_size - num_known
        weights: List[Tensor] = []
        if self.input is not None and late:
            weights.append(self.input.weight[:, num_known:])
        weights.extend(self.recurrent_matrices())
        products = StepProducts(known, torch.cat(weights, dim=1).t()) if weights else None
        boundaries: Tuple[Tensor, ...] = ()
        if self.skip is not None:
            assert context.tokens is not None and len(self.is_boundary) > 0
            boundaries = self.is_boundary[context.tokens].unsqueeze(-1).unbind(1)
        connections = self.self_connections() if self.recurrent is None else None
        return PreparedSteps(known.unbind(0), products, boundaries, connections)

    def step(self, prepared: PreparedSteps, t: int, late: Late, state: LayerState) -> Tuple[Tensor, LayerState]:
        operands: List[Tensor] = []
        if late.input is not None and self.input is not None:
            operands.append(late.input)
        if self.recurrent is not None:
            operands.append(state["x"])
        starts = None
        if self.skip is not None:
            starts = ~prepared.boundaries[t] & (state["inside"] == 0)
            operands.append(state["first_letter"] * starts)
        sums = prepared.known[t] if prepared.products is None else prepared.products(t, torch.cat(operands, dim=1))
        if late.input is not None and self.input is None:
            sums = sums + F.pad(late.input, (self.hidden_size - late.input.size(1), 0))
        if prepared.connections is not None:
            connections, wide = prepared.connections, prepared.connections.dtype
            sums = torch.addcmul(sums.to(wide), connections, state["x"].to(wide)).to(sums.dtype)
        x = self.activation(sums)
        if starts is None:
            return x, {"x": x}
        inside = (~prepared.boundaries[t]).to(x.dtype)
        return x, {"x": x, "first_letter": torch.where(starts, x, state["first_letter"]), "inside": inside}
