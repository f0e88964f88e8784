"""Perplexity where outputs of recurrent layers are set to zero at random (Shuang et al. 2020, section V-C).

A model whose features do not depend on each other's company loses less.
"""

import sys
from dataclasses import dataclass
from typing import Any, Collection, Dict, List, Sequence

import torch
from fairseq.models import FairseqLanguageModel
from torch import Tensor
from tqdm import tqdm

from fairseq_plugins.evaluation.analyses.layer_outputs import changed_layer_outputs
from fairseq_plugins.evaluation.perplexity import evaluate_perplexity

LAYER_MASKS = ("element", "locked")
"""A fresh mask for every element of every time step, or one for each feature of a row that stays for a whole run."""


@dataclass(frozen=True)
class LayerMask:
    """Which outputs are masked, and how.

    Attributes:
        layers: numbers of the masked layers, from 1 on.
        probability: of an element to be set to zero, 0 <= P <= 1; what is kept is not rescaled.
        kind: a value of :data:`LAYER_MASKS`.
    """

    layers: Collection[int]
    probability: float
    kind: str = "element"

    def __post_init__(self) -> None:
        assert self.kind in LAYER_MASKS and 0 <= self.probability <= 1


@dataclass(frozen=True)
class MaskedRuns:
    """Perplexities of one model with one kind of mask.

    Attributes:
        model: its name.
        layers: "all", or the number of the only layer that is masked.
        probability, mask: as :class:`LayerMask` has them.
        perplexity: the mean over the runs.
        perplexities: of each run; without a mask there is one.
    """

    model: str
    layers: str
    probability: float
    mask: str
    perplexity: float
    perplexities: List[float]


def masking_curves(
    models: Dict[str, FairseqLanguageModel],
    tokens: Tensor,
    *,
    probabilities: Sequence[float],
    kind: str,
    num_runs: int,
    show_progress: bool = False,
    **options: Any,
) -> List[MaskedRuns]:
    """Perplexities with all layers masked together, then with each alone (figure 5 of the paper).

    Args:
        models: by name, all with the same number of layers.
        tokens, options: as :func:`~fairseq_plugins.evaluation.perplexity.evaluate_perplexity`.
        probabilities: to mask with.
        kind: a value of :data:`LAYER_MASKS`.
        num_runs: runs with other masks, seeds 1, 2, ...
        show_progress: whether a bar is drawn on standard error.

    Raises:
        ValueError: if the models differ in depth.
    """
    depths = {len(model.decoder.stack.layers) for model in models.values()}
    if len(depths) > 1:
        raise ValueError(f"models with {' and '.join(map(str, sorted(depths)))} layers: compare those of one depth")
    layers = range(1, depths.pop() + 1)
    masked = {"all": list(layers), **{str(n): [n] for n in layers if len(layers) > 1}}
    cases = [
        (name, chosen, LayerMask(numbers, probability, kind))
        for name in models
        for chosen, numbers in masked.items()
        for probability in probabilities
    ]
    curves = []
    for name, chosen, mask in tqdm(cases, unit="case", disable=not show_progress, file=sys.stderr):
        seeds = range(1, 1 + (num_runs if mask.probability > 0 else 1))
        runs = [masked_perplexity(models[name], tokens, mask, seed=seed, **options) for seed in seeds]
        curves.append(MaskedRuns(name, chosen, mask.probability, kind, sum(runs) / len(runs), runs))
    return curves


def masked_perplexity(
    model: FairseqLanguageModel, tokens: Tensor, mask: LayerMask, *, seed: int, **options: Any
) -> float:
    """Perplexity with random masks.

    Args:
        model, tokens, options: as :func:`~fairseq_plugins.evaluation.perplexity.evaluate_perplexity`.
        mask: what is masked.
        seed: of the masks.
    """
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
