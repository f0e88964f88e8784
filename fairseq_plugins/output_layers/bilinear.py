"""Softmax with a bilinear map between hidden states and labels.

Shapes: V vocabulary, d embedding width, D_N width of the last layer.
"""

from typing import Optional, Sequence

from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_plugins.modules.linear import Linear
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS
from fairseq_plugins.output_layers.labels import LabelDropoutOptions, label_dropout
from fairseq_plugins.output_layers.softmax import SoftmaxOutput
from fairseq_plugins.output_layers.word_projection import WordProjection


@OUTPUT_LAYERS.register("bilinear")
class BilinearSoftmax(SoftmaxOutput):
    """P = softmax(E W h^N + b) with W (d, D_N)  (Gulordava, Aina & Boleda 2018).

    The hidden states are multiplied by W rather than the labels, which are more.
    """

    Options = LabelDropoutOptions

    def __init__(
        self,
        *,
        dictionary: Dictionary,
        layer_widths: Sequence[int],
        shared_weight: Optional[nn.Parameter],
        options: LabelDropoutOptions,
    ):
        super().__init__(options)
        width = layer_widths[0]
        self.projection = WordProjection(
            width,
            len(dictionary),
            shared_weight=shared_weight,
            bias=options.output_bias,
            label_encoder=label_dropout(options),
        )
        self.bilinear = Linear(layer_widths[-1], width, bias=False)
        nn.init.uniform_(self.bilinear.weight, -0.1, 0.1)

    def encode_hidden(self, hidden: Tensor) -> Tensor:
        return self.bilinear(hidden)
