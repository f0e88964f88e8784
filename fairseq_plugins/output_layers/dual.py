"""Softmax in a joint space of hidden states and labels.

Shapes: V vocabulary, d embedding width, D_N width of the last layer, d_j width of the joint space.
"""

from dataclasses import dataclass, field
from typing import Optional, Sequence

from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_plugins.flags.values import check_positive
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS
from fairseq_plugins.output_layers.labels import LabelLayerOptions, label_layer
from fairseq_plugins.output_layers.softmax import SoftmaxOutput
from fairseq_plugins.output_layers.word_projection import WordProjection


@dataclass
class DualOptions(LabelLayerOptions):
    """Flags of the dual layer."""

    label_width: Optional[int] = field(
        default=None, metadata={"help": "width of the joint space (default: that of the embedding)"}
    )


@OUTPUT_LAYERS.register("dual")
class DualSoftmax(SoftmaxOutput):
    """P = softmax(act(E U + b_u) act(V h^N + b_v) + b)  (Pappas, Miculicich & Henderson 2018; 2019, eq. 5).

    Raises:
        ValueError: on a width that is not positive.
    """

    Options = DualOptions

    def __init__(
        self,
        *,
        dictionary: Dictionary,
        layer_widths: Sequence[int],
        shared_weight: Optional[nn.Parameter],
        options: DualOptions,
    ):
        super().__init__(options)
        width = layer_widths[0]
        joint_width = width if options.label_width is None else options.label_width
        check_positive(joint_width, flag="--label-width")
        self.projection = WordProjection(
            width,
            len(dictionary),
            shared_weight=shared_weight,
            bias=options.output_bias,
            label_encoder=label_layer(width, joint_width, options, dropout=options.label_dropout),
        )
        self.hidden_encoder = label_layer(layer_widths[-1], joint_width, options, dropout=0.0)

    def encode_hidden(self, hidden: Tensor) -> Tensor:
        return self.hidden_encoder(hidden)
