"""Output layers and gates of every model, and copying of translators. Importing the package registers them."""

from fairseq_plugins.output_layers import (  # noqa: F401
    attention_copying,
    bilinear,
    doc,
    drill,
    dual,
    hidden_gate,
    input_to_output_gate,
    lstm_gate,
    mos,
    softmax,
)
