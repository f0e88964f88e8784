"""Output layers and gates that work in every model. Importing the package registers them."""

from fairseq_plugins.output_layers import (  # noqa: F401  # noqa: F401
    bilinear,
    drill,
    dual,
    hidden_gate,
    input_to_output_gate,
    lstm_gate,
    mixture,
    softmax,
)
