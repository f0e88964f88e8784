"""Softmax whose labels are encoded by a deep residual network.

Shapes: V vocabulary, d embedding width, which the last layer must have, too.
"""

from dataclasses import dataclass, field
from typing import Optional, Sequence

from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_plugins.flags.choices import OnOff
from fairseq_plugins.modules.label_network import LabelNetwork
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS
from fairseq_plugins.output_layers.labels import LabelNetworkOptions, hidden_network, label_network
from fairseq_plugins.output_layers.softmax import SoftmaxOutput
from fairseq_plugins.output_layers.word_projection import MAKE_WIDTHS_EQUAL, WordProjection


@dataclass
class DrillOptions(LabelNetworkOptions):
    """Flags of DRILL."""

    label_hidden_network: OnOff = field(
        default="off",
        metadata={
            "help": "whether the hidden states pass a network of the same shape with weights of its own; "
            "with --label-dropout-place input its first layer reads all features (default: off, as published)"
        },
    )


@OUTPUT_LAYERS.register("drill")
class Drill(SoftmaxOutput):
    """Deep residual output layer: P = softmax(E^(k) h^N + b), E^(i) = act(drop(E^(i-1)) U^(i) + b^(i)) + E.

    Pappas & Henderson 2019, eq. 8 to 10; eq. 12 drops a layer's output, the published program its input, as here by
    default. With k = ``--label-depth`` 0 it is the tied softmax. The residual always adds the embedding that was not
    dropped.

    Raises:
        ValueError: if the last layer is not as wide as the embedding.
    """

    Options = DrillOptions

    def __init__(
        self,
        *,
        dictionary: Dictionary,
        layer_widths: Sequence[int],
        shared_weight: Optional[nn.Parameter],
        options: DrillOptions,
    ):
        super().__init__(options)
        width = layer_widths[0]
        if layer_widths[-1] != width:
            raise ValueError(
                f"--output-layer drill compares hidden states, {layer_widths[-1]} wide, with word embeddings, {width} "
                f"wide: {MAKE_WIDTHS_EQUAL}"
            )
        self.projection = WordProjection(
            width,
            len(dictionary),
            shared_weight=shared_weight,
            bias=options.output_bias,
            label_encoder=label_network(width, options),
        )
        self.hidden_encoder: Optional[LabelNetwork] = None
        if options.label_hidden_network == "on":
            self.hidden_encoder = hidden_network(width, options)

    def encode_hidden(self, hidden: Tensor) -> Tensor:
        if self.hidden_encoder is None:
            return hidden
        return self.hidden_encoder(hidden)
