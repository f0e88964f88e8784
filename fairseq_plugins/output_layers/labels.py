"""Label networks: they encode the labels of an output layer, and the hidden states of the dual layer.

Shapes: V words, B batch rows, T time steps, C input width, D output width, d width of the embedding.
"""

import math
from dataclasses import dataclass, field
from typing import Iterable, Optional

import torch
from torch import Tensor, nn

from fairseq_plugins.modules.layers import BroadcastDropout, ModuleSequence
from fairseq_plugins.ops.matmul import linear
from fairseq_plugins.options import OnOff, check_whole, choices
from fairseq_plugins.output_layers.projected import ProjectedOptions


def identity(x: Tensor) -> Tensor:
    """x."""
    return x


ACTIVATIONS = {"sigmoid": torch.sigmoid, "relu": torch.relu, "tanh": torch.tanh, "linear": identity}
SHARED_DIMS = {"variational": (0,), "standard": ()}
"""Dimensions of the labels (V, C) that share a mask, by ``--label-mask``."""


# Flags of label networks. The dataclasses inherit from each other, so that layers with the same flag share its
# declaration.

LabelMask = choices([*SHARED_DIMS])
LabelActivation = choices(sorted(ACTIVATIONS))
LabelInit = choices(["uniform", "glorot"])
DropoutPlace = choices(["input", "output"])


@dataclass
class LabelDropoutOptions(ProjectedOptions):
    """Flags of layers with dropout of labels."""

    label_dropout: float = field(
        default=0.0,
        metadata={"help": "dropout rate of the labels' features, 0 <= rate < 1 (default: 0.0)"},
    )
    label_mask: LabelMask = field(
        default="variational",
        metadata={
            "help": "variational: one mask for all labels of a forward pass; standard: one for "
            "each label (default: variational)"
        },
    )


@dataclass
class LabelLayerOptions(LabelDropoutOptions):
    """Flags of layers with a label network of one layer."""

    label_activation: LabelActivation = field(
        default="sigmoid", metadata={"help": "activation of the label network (default: sigmoid)"}
    )
    label_init: LabelInit = field(
        default="uniform",
        metadata={
            "help": "initial matrices of the label network: uniform in [-0.1, 0.1], or glorot; a model's "
            "--init-range overrides this (default: uniform)"
        },
    )


@dataclass
class LabelNetworkOptions(LabelLayerOptions):
    """Flags of layers with a deep residual label network."""

    label_depth: int = field(default=2, metadata={"help": "layers of the label network (default: 2)"})
    label_residual: OnOff = field(
        default="on", metadata={"help": "whether every layer adds the label embedding (default: on)"}
    )
    label_layer_residual: OnOff = field(
        default="off",
        metadata={"help": "whether every layer from the second on adds its input as well (default: off)"},
    )
    label_dropout_place: DropoutPlace = field(
        default="input",
        metadata={
            "help": "whether each layer's input is dropped, as in the program published with DRILL, or its "
            "output, as in the paper (default: input)"
        },
    )


class LabelLayer(nn.Module):
    """act(x U + b) with dropout of x (``place="input"``) or of the result (``"output"``).

    All labels of a forward pass share a variational mask. Dropped input features are therefore left out of the product.

    Args:
        in_width, out_width: C and D.
        options: its activation, initialisation and mask. U starts as U(-0.1, 0.1) or by Glorot's rule, b as
            U(-1/sqrt(C), 1/sqrt(C)).
        dropout: rate, 0 <= rate < 1.
        place: "input", as in the program published with DRILL, or "output", as in its eq. 12.

    Shape:
        x: (V, C), or (B, T, C); output: (V, D), or (B, T, D).
    """

    def __init__(
        self, in_width: int, out_width: int, options: LabelLayerOptions, *, dropout: float, place: str = "input"
    ):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_width, in_width))
        self.bias = nn.Parameter(torch.empty(out_width).uniform_(-1 / math.sqrt(in_width), 1 / math.sqrt(in_width)))
        if options.label_init == "glorot":
            nn.init.xavier_uniform_(self.weight)
        else:
            nn.init.uniform_(self.weight, -0.1, 0.1)
        self.activation = ACTIVATIONS[options.label_activation]
        self.mask: str = options.label_mask
        self.place = place
        self.dropout = BroadcastDropout(dropout, flag="--label-dropout", shared_dims=SHARED_DIMS[self.mask])

    def forward(self, x: Tensor) -> Tensor:
        if self.place == "output":
            return self.dropout(self._layer(x))
        features = self._kept_features()
        if features is None:
            return self._layer(self.dropout(x))
        weight = self.weight.index_select(1, features) / (1 - self.dropout.current_rate)
        return self.activation(linear(x.index_select(1, features), weight, self.bias))

    def _layer(self, x: Tensor) -> Tensor:
        return self.activation(linear(x, self.weight, self.bias))

    def _kept_features(self) -> Optional[Tensor]:
        """Indices of the features that a new variational mask keeps, or None without such a mask.

        Also None on a GPU, where finding them waits for the device: the mask is multiplied there.
        """
        rate = self.dropout.current_rate
        if rate == 0 or self.mask != "variational" or self.bias.is_cuda:
            return None
        return self.bias.new_empty(self.weight.size(1)).bernoulli_(1 - rate).nonzero().squeeze(1)


class LabelNetwork(nn.Module):
    """E^(i) = act(E^(i-1) U^(i) + b^(i)) + E [+ E^(i-1) for i >= 2], i = 1 .. depth  (Pappas & Henderson 2019, eq. 10).

    Args:
        layers: without any the network is the identity.
        residual: whether E = E^(0) is added to the output of every layer. Then D = C.
        layer_residual: whether a layer's input is added as well, from the second layer on.

    Shape:
        x: (V, C), or (B, T, C) for hidden states; output: (V, D), or (B, T, D). D = C without layers.
    """

    def __init__(self, layers: Iterable[LabelLayer], *, residual: bool = False, layer_residual: bool = False):
        super().__init__()
        self.layers: ModuleSequence[LabelLayer] = ModuleSequence(layers)
        self.residual = residual
        self.layer_residual = layer_residual

    def forward(self, x: Tensor) -> Tensor:
        output = x
        for i, layer in enumerate(self.layers):
            layer_input, output = output, layer(output)
            if self.residual:
                output = output + x
            if self.layer_residual and i > 0:
                output = output + layer_input
        return output


def label_layer(in_width: int, out_width: int, options: LabelLayerOptions, *, dropout: float) -> LabelNetwork:
    """A label network of one layer without residuals."""
    return LabelNetwork([LabelLayer(in_width, out_width, options, dropout=dropout)])


def label_network(width: int, options: LabelNetworkOptions) -> LabelNetwork:
    """A residual network of ``--label-depth`` layers for labels (V, d).

    Raises:
        UserError: on a depth that is below zero or not whole, or a rate outside [0, 1).
    """
    check_whole(options.label_depth, flag="--label-depth")
    dropout, place = options.label_dropout, options.label_dropout_place
    layers = [LabelLayer(width, width, options, dropout=dropout, place=place) for _ in range(options.label_depth)]
    return LabelNetwork(
        layers, residual=options.label_residual == "on", layer_residual=options.label_layer_residual == "on"
    )
