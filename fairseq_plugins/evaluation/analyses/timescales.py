"""Timescales of the units of diagonal recurrent layers (Pachitariu & Sahani 2013)."""

from dataclasses import dataclass
from pathlib import Path
from typing import List, Union

from fairseq.models import FairseqLanguageModel

from fairseq_plugins.modules.diagonal_rnn import DiagonalRNN


@dataclass(frozen=True)
class Timescales:
    """Times in tokens after which the units of a layer keep 1/e of what they held, -1 / log r.

    Attributes:
        layer: its number, from 1 on.
        values: of the units with 0 < r < 1, the longest first.
        num_alternating: units with r < 0, whose sign changes at every token.
        num_without: units with r = 0, which hold nothing, or 1, which forget nothing.
    """

    layer: int
    values: List[float]
    num_alternating: int
    num_without: int

    @property
    def num_units(self) -> int:
        """Of the layer."""
        return len(self.values) + self.num_alternating + self.num_without


def timescales(model: FairseqLanguageModel, path: Union[str, Path]) -> List[Timescales]:
    """Of each layer, bottom first; ``path`` names the model.

    Raises:
        ValueError: if a layer is not diagonal.
    """
    found = []
    for number, layer in enumerate(model.decoder.stack.layers, start=1):
        if not isinstance(layer, DiagonalRNN) or layer.recurrent is not None:
            raise ValueError(
                f"{path}: layer {number} has no self-connections: give a model with --rnn-cell diagonal, such as "
                "--arch fpnn_lm"
            )
        connections = layer.self_connections().detach().double().cpu()
        inside = connections[(connections > 0) & (connections < 1)]
        found.append(
            Timescales(
                layer=number,
                values=(-1 / inside.log()).sort(descending=True).values.tolist(),
                num_alternating=int((connections < 0).sum()),
                num_without=int(((connections == 0) | (connections == 1)).sum()),
            )
        )
    return found
