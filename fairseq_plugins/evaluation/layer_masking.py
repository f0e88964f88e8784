"""Perplexity where outputs of recurrent layers are set to zero at random (Shuang et al. 2020, section V-C).

A model whose features do not depend on each other's company loses less.
"""

from dataclasses import dataclass
from typing import Collection, Dict, Sequence

import torch
from fairseq.models import FairseqLanguageModel
from torch import Tensor

from fairseq_plugins.evaluation.layer_outputs import changed_layer_outputs
from fairseq_plugins.evaluation.perplexity import evaluate_perplexity

MASKS = ("element", "locked")
"""A fresh mask for every element of every time step, or one for each feature of a row that stays for a whole run."""


@dataclass(frozen=True)
class LayerMask:
    """Which outputs are masked, and how.

    Attributes:
        layers: numbers of the masked layers, from 1 on.
        probability: of an element to be set to zero, 0 <= P <= 1; what is kept is not rescaled.
        kind: a value of :data:`MASKS`.
    """

    layers: Collection[int]
    probability: float
    kind: str = "element"

    def __post_init__(self):
        assert self.kind in MASKS and 0 <= self.probability <= 1


def masked_perplexities(
    model: FairseqLanguageModel, tokens: Tensor, mask: LayerMask, *, seeds: Sequence[int], **options
) -> Dict[int, float]:
    """Perplexity for each seed of the masks.

    Args:
        model, tokens, options: as :func:`~fairseq_plugins.evaluation.perplexity.evaluate_perplexity`.
        mask: what is masked.
        seeds: of the runs' random masks.
    """
    return {seed: _masked_perplexity(model, tokens, mask, seed=seed, **options) for seed in seeds}


def _masked_perplexity(model, tokens, mask: LayerMask, *, seed: int, **options) -> float:
    generator = torch.Generator(device=options.get("device", "cpu")).manual_seed(seed)
    locked: Dict[int, Tensor] = {}

    def draw(output: Tensor) -> Tensor:
        shape = output.shape if mask.kind == "element" else (output.size(0), 1, output.size(2))
        return torch.empty(shape, device=output.device).bernoulli_(1 - mask.probability, generator=generator)

    def change(n: int, output: Tensor) -> Tensor:
        if n not in mask.layers:
            return output
        if mask.kind == "locked":
            if n not in locked:
                locked[n] = draw(output)
            return output * locked[n].to(output)
        return output * draw(output).to(output)

    with changed_layer_outputs(model, change):
        return evaluate_perplexity([model], tokens, **options).perplexity
