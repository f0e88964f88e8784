"""Output layers that work in every model. Importing the package registers them."""

from fairseq_plugins.output_layers import bilinear, drill, dual, mixture, softmax  # noqa: F401
