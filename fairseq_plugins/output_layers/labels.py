"""Flags of the layers that bring labels into a joint space, and the networks that the flags describe.

Shapes: V labels, B batch, T time, d embedding width.
"""

from dataclasses import dataclass, field

from fairseq_plugins.flags.choices import OnOff, choices
from fairseq_plugins.flags.values import check_dropout, check_not_negative
from fairseq_plugins.modules.dropout import BroadcastDropout
from fairseq_plugins.modules.label_network import (
    ACTIVATIONS,
    INITIALISATIONS,
    LABEL_MASKS,
    PLACES,
    SHARED_DIMS,
    LabelNetwork,
)
from fairseq_plugins.output_layers.projected import ProjectedOptions

LabelMask = choices(LABEL_MASKS)
LabelActivation = choices(sorted(ACTIVATIONS))
LabelStart = choices(INITIALISATIONS)
DropoutPlace = choices(PLACES)


@dataclass
class LabelDropoutOptions(ProjectedOptions):
    """Dropout of labels."""

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
    """One layer of a label network."""

    label_activation: LabelActivation = field(
        default="sigmoid", metadata={"help": "activation of the label network (default: sigmoid)"}
    )
    label_init: LabelStart = field(
        default="uniform",
        metadata={
            "help": "start of the label network's matrices: uniform, in plus and minus 0.1, or glorot; "
            "a model's --init-range or --init holds (default: uniform)"
        },
    )


@dataclass
class LabelNetworkOptions(LabelLayerOptions):
    """A deep residual label network."""

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


def label_dropout(options: LabelDropoutOptions) -> BroadcastDropout:
    """Dropout of labels (V, d) without a network."""
    shared_dims = SHARED_DIMS[options.label_mask]
    return BroadcastDropout(options.label_dropout, flag="--label-dropout", shared_dims=shared_dims)


def label_layer(in_width: int, out_width: int, options: LabelLayerOptions, *, dropout: float) -> LabelNetwork:
    """One layer without residuals."""
    return LabelNetwork(
        in_width,
        out_width,
        depth=1,
        residual=False,
        layer_residual=False,
        activation=options.label_activation,
        dropout=dropout,
        mask=options.label_mask,
        place="input",
        initialisation=options.label_init,
    )


def label_network(width: int, options: LabelNetworkOptions) -> LabelNetwork:
    """A network of ``--label-depth`` layers for labels (V, d).

    Raises:
        ValueError: on a negative depth or a rate outside [0, 1).
    """
    return _deep_network(width, options, mask=options.label_mask)


def hidden_network(width: int, options: LabelNetworkOptions) -> LabelNetwork:
    """A network of the same shape for hidden states (B, T, d).

    A variational mask is drawn for each batch row, as in the program published with DRILL, and where inputs are
    dropped, the first layer reads all features.
    """
    network = _deep_network(width, options, mask="row" if options.label_mask == "variational" else options.label_mask)
    if options.label_depth > 0 and options.label_dropout_place == "input":
        network.layers[0].dropout.rate = 0.0
    return network


def _deep_network(width: int, options: LabelNetworkOptions, *, mask: str) -> LabelNetwork:
    check_not_negative(options.label_depth, flag="--label-depth")
    check_dropout(options.label_dropout, flag="--label-dropout")
    return LabelNetwork(
        width,
        width,
        depth=options.label_depth,
        residual=options.label_residual == "on",
        layer_residual=options.label_layer_residual == "on",
        activation=options.label_activation,
        dropout=options.label_dropout,
        mask=mask,
        place=options.label_dropout_place,
        initialisation=options.label_init,
    )
