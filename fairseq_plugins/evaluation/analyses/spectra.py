"""Eigenvalues of the matrices of recurrent layers without gates (Pachitariu & Sahani 2013).

Shapes: D width of a layer.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import List, Union

import torch
from fairseq.models import FairseqLanguageModel
from torch import Tensor

from fairseq_plugins.modules.simple_recurrent import SimpleRecurrentLayer


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of a recurrent matrix R.

    Attributes:
        layer: its number, from 1 on.
        eigenvalues: (D,) complex128, the largest modulus first.
        most_negative: the least of the real ones; NaN where none is below zero.
        same_sign: of its right and its left eigenvector, the larger share of entries that have one sign; NaN where
            there is none.
    """

    layer: int
    eigenvalues: Tensor
    most_negative: float
    same_sign: List[float]

    @property
    def num_growing(self) -> int:
        """Eigenvalues whose modulus is above 1."""
        return int((self.eigenvalues.abs() > 1).sum())


def spectra(model: FairseqLanguageModel, path: Union[str, Path]) -> List[Spectrum]:
    """Of each layer, bottom first, in float64; ``path`` names the model.

    Raises:
        ValueError: if a layer has no matrix from hidden state to hidden state alone.
    """
    found = []
    for number, layer in enumerate(model.decoder.stack.layers, start=1):
        if not isinstance(layer, SimpleRecurrentLayer) or layer.recurrent is None:
            raise ValueError(
                f"{path}: layer {number} has no recurrent matrix without gates: give a model with --rnn-cell "
                "rectifier, smooth-rectifier, or diagonal with --transition full"
            )
        found.append(_spectrum(number, layer.recurrent_matrices()[0].detach().double().cpu()))
    return found


def _spectrum(number: int, matrix: Tensor) -> Spectrum:
    values, right = torch.linalg.eig(matrix)
    order = values.abs().argsort(descending=True)
    is_negative = (values.imag == 0) & (values.real < 0)
    most_negative, shares = float("nan"), [float("nan")] * 2
    if is_negative.any():
        place = int(values.real.masked_fill(~is_negative, torch.inf).argmin())
        most_negative = float(values.real[place])
        left_values, left = torch.linalg.eig(matrix.t())
        same = int((left_values - values[place]).abs().argmin())
        shares = [_same_sign(vectors.real) for vectors in (right[:, place], left[:, same])]
    return Spectrum(layer=number, eigenvalues=values[order], most_negative=most_negative, same_sign=shares)


def _same_sign(vector: Tensor) -> float:
    rounding = 1e-9 * vector.abs().max()
    return max(float((sign * vector > rounding).double().mean()) for sign in (1, -1))
