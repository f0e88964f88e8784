"""Temperature of a trained model's softmaxes."""

from contextlib import contextmanager
from typing import Iterator, Sequence

from fairseq.models import FairseqLanguageModel

from fairseq_plugins.output_layers.base import OutputLayer
from fairseq_plugins.output_layers.projected import ProjectedOutput


@contextmanager
def softmax_temperature(models: Sequence[FairseqLanguageModel], *, temperature: float) -> Iterator[None]:
    """Divide the logits of all softmaxes, those of every expert, by the temperature in the block.

    Raises:
        ValueError: if the temperature is not 1 and a model's output layer has no logits.
    """
    layers = [part for model in models for part in model.modules() if isinstance(part, OutputLayer)]
    projected = [layer for layer in layers if isinstance(layer, ProjectedOutput)]
    if temperature != 1 and len(projected) < len(layers):
        names = ", ".join(sorted({layer.name for layer in layers if not isinstance(layer, ProjectedOutput)}))
        raise ValueError(f"--temperature {temperature:g}: --output-layer {names} has no logits to divide; leave it out")
    before = [layer.temperature for layer in projected]
    try:
        for layer in projected:
            layer.temperature = temperature
        yield
    finally:
        for layer, former in zip(projected, before):
            layer.temperature = former
