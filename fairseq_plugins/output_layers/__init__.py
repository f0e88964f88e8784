"""Output layers, gates and ways to copy source words. Importing the package registers them."""

from fairseq_plugins.output_layers import copying, gates, mixture, softmax  # noqa: F401
