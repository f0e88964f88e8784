"""Networks that bring labels, or hidden states, into a joint space.

Shapes: * V labels, or B, T batch and time of hidden states, C input width, D output width.
"""

import math
from typing import Optional, TypedDict, Unpack

import torch
from torch import Tensor, nn

from fairseq_plugins.modules.dropout import BroadcastDropout
from fairseq_plugins.modules.module_sequence import ModuleSequence
from fairseq_plugins.modules.saved_setting import SavesSettings
from fairseq_plugins.ops.linear import linear


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
