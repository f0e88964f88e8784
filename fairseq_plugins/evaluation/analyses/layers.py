"""Analyses of layers: use by a mixture, masks and correlations of their outputs, spectra and timescales.

Shapes: B rows, T steps, D or D_n width of a layer, N index of the last layer, J experts.
"""

import math
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Callable, Collection, Dict, Iterable, Iterator, List, Optional, Sequence

import torch
from fairseq.models import BaseFairseqModel, FairseqLanguageModel
from torch import Tensor
from torch.nn.functional import pad

from fairseq_plugins.console import progress
from fairseq_plugins.evaluation.analyses.experts import expert_layers, mixture_output
from fairseq_plugins.evaluation.scoring import ScoredBatch, device_of, evaluate_perplexity, score_windows
from fairseq_plugins.models.gated_lm import GatedDecoder
from fairseq_plugins.models.recurrent_lm import RecurrentDecoder
from fairseq_plugins.modules.simple_rnn import DiagonalRNN, SimpleRecurrentLayer
from fairseq_plugins.modules.stack import RecurrentStack
from fairseq_plugins.options import UserError


@dataclass(frozen=True)
class LayerLearning:
    """Means over the words of a text, by layer 0 .. N; layer 0 is the embedding.

    Attributes:
        shares: prior of the experts that read the layer; they sum to 1.
        gradients: norm of d(-log P(w)) / d h^n, in nats, from the output layer to h^n alone, without the gradients that
            arrive through higher layers.
        num_words: predicted words, end marks included.
    """

    shares: List[float]
    gradients: List[float]
    num_words: int


def layer_learning(model: BaseFairseqModel, batches: Iterable[ScoredBatch]) -> LayerLearning:
    """Measure a model on batches that it has scored with ``score_lines`` or ``score_pairs``, without dropout.

    Raises UserError if the model has no mixture, or there is no sentence.
    """
    output, read_layers = mixture_output(model), torch.tensor(expert_layers(model))
    mass = torch.zeros(len(read_layers), dtype=torch.float64)
    norms: List[float] = []
    num_words = 0
    for scored in batches:
        assert scored.states is not None
        layers = [layer.detach().requires_grad_() for layer in scored.states.layers]
        with torch.enable_grad():
            scores = output(replace(scored.states, layers=layers), scored.target, token_weights=scored.is_token)
        assert scores.loss is not None and scores.mixture_weights is not None
        gradients = torch.autograd.grad(scores.loss, layers, allow_unused=True)
        norms = norms or [0.0] * len(layers)
        for n, gradient in enumerate(gradients):
            norms[n] += 0.0 if gradient is None else float(gradient.double().norm(dim=-1).sum())
        mass += scores.mixture_weights.detach().double()[scored.is_token].sum(0).cpu()
        num_words += int(scored.is_token.sum())
    if num_words == 0:
        raise UserError("there is no sentence that has a word")
    shares = [float(mass[read_layers == n].sum()) / num_words for n in range(len(norms))]
    return LayerLearning(shares=shares, gradients=[norm / num_words for norm in norms], num_words=num_words)


def recurrent_stack(model: FairseqLanguageModel) -> RecurrentStack:
    """The recurrent layers of a model, or of the base model under a gate.

    Raises UserError if there are none, or several base models.
    """
    decoder = model.decoder
    if isinstance(decoder, GatedDecoder):
        if len(decoder.members) > 1:
            raise UserError(
                f"the gated model has {len(decoder.members)} base models: look into the layers of one alone"
            )
        decoder = decoder.members[0]
    if not isinstance(decoder, RecurrentDecoder):
        raise UserError("the model has no recurrent layers of this package: give one such as lstm_lm_awd")
    return decoder.stack


# Masks on the outputs of recurrent layers (Shuang et al. 2020, section V-C). A model loses less if its features depend
# less on each other.


@contextmanager
def changed_layer_outputs(model: FairseqLanguageModel, change: Callable[[int, Tensor], Tensor]) -> Iterator[None]:
    """Within the block, the output of layer n = 1 .. N, (B, T, D_n), is ``change(n, output)``.

    The next layer and the output layer read the changed output. The layer's recurrent state does not change. In
    evaluation mode ``output`` is without dropout.
    """
    with ExitStack() as hooks:
        for n, dropout in enumerate(recurrent_stack(model).dropouts, start=1):
            handle = dropout.register_forward_hook(lambda module, inputs, output, n=n: change(n, output))
            hooks.callback(handle.remove)
        yield


LAYER_MASKS = ("element", "locked")
"""A new mask at every time step, or one mask (B, D_n) for a whole run."""


@dataclass(frozen=True)
class MaskedRuns:
    """Perplexities of one model with one kind of mask.

    Attributes:
        model: its name.
        layers: "all", or the number of the only layer that is masked.
        probability: probability that an element is masked.
        mask: a value of :data:`LAYER_MASKS`.
        perplexity: the mean over the runs.
        perplexities: the perplexity of each run; probability 0 takes one run.
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
    **options: Any,
) -> List[MaskedRuns]:
    """Perplexities with all layers masked together, then with each alone (figure 5 of the paper).

    All models, by name, must have the same number of layers, else a UserError says so. ``kind`` is a value of
    :data:`LAYER_MASKS`, and the runs have masks of seeds 1, 2, ... Tokens and options are those of
    :func:`~fairseq_plugins.evaluation.scoring.evaluate_perplexity`.
    """
    depths = {len(recurrent_stack(model).layers) for model in models.values()}
    if len(depths) > 1:
        raise UserError(f"models with {' and '.join(map(str, sorted(depths)))} layers: compare models of one depth")
    layers = range(1, depths.pop() + 1)
    masked = {"all": list(layers), **{str(n): [n] for n in layers if len(layers) > 1}}
    cases = [
        (name, chosen, numbers, probability)
        for name in models
        for chosen, numbers in masked.items()
        for probability in probabilities
    ]
    curves = []
    for name, chosen, numbers, probability in progress(cases, unit="case"):
        masks: Dict[str, Any] = dict(layers=numbers, probability=probability, kind=kind)
        seeds = range(1, 1 + (num_runs if probability > 0 else 1))
        runs = [masked_perplexity(models[name], tokens, seed=seed, **masks, **options) for seed in seeds]
        curves.append(MaskedRuns(name, chosen, probability, kind, sum(runs) / len(runs), runs))
    return curves


def masked_perplexity(
    model: FairseqLanguageModel,
    tokens: Tensor,
    *,
    layers: Collection[int],
    probability: float,
    kind: str,
    seed: int,
    **options: Any,
) -> float:
    """Perplexity with random masks that set outputs of ``layers``, from 1 on, to zero. Other outputs are not rescaled.

    An element is set to zero with ``probability``, between 0 and 1.
    """
    assert kind in LAYER_MASKS and 0 <= probability <= 1
    generator = torch.Generator(device=device_of(model)).manual_seed(seed)
    locked: Dict[int, Tensor] = {}

    def draw(output: Tensor) -> Tensor:
        shape = output.shape if kind == "element" else (output.size(0), 1, output.size(2))
        return torch.empty(shape, device=output.device).bernoulli_(1 - probability, generator=generator)

    def change(n: int, output: Tensor) -> Tensor:
        if n not in layers:
            return output
        if kind == "locked":
            if n not in locked:
                locked[n] = draw(output)
            return output * locked[n].to(output)
        return output * draw(output).to(output)

    with changed_layer_outputs(model, change):
        return evaluate_perplexity([model], tokens, **options).perplexity


# Correlation of the features of a layer's output.


@dataclass(frozen=True)
class LayerCorrelation:
    """Mean absolute correlation over pairs of different features of one layer, between 0 and 1.

    A mean is None if there is no pair.

    Attributes:
        layer: number of the layer, from 1 on.
        width: D_n.
        num_constant: features that never change; they take part in no pair.
        mean: over all pairs.
        within: over the pairs within each of the layer's groups of features, by name.
        between: over the pairs of features of different groups.
    """

    layer: int
    width: int
    num_constant: int
    mean: Optional[float]
    within: Dict[str, Optional[float]]
    between: Optional[float]


def correlation_matrices(model: FairseqLanguageModel, tokens: Tensor, **options: Any) -> List[Tensor]:
    """Pearson correlations, (D_n, D_n) float64, of the features of each layer over the positions of a stream.

    Rows of features that never change are NaN. Only sums over windows are kept. The model carries its state; the
    options are those of :func:`~fairseq_plugins.evaluation.scoring.score_windows`.
    """
    origins: Dict[int, Tensor] = {}
    sums: Dict[int, Tensor] = {}  # sums of x^T x, where x has a column of ones: (D_n + 1, D_n + 1)
    for window in score_windows([model], tokens, **options):
        for n, output in enumerate(window.states[0].layers[1:]):
            x = output.flatten(0, 1).double()
            # near the mean, to avoid cancellation when the product of the means is subtracted
            origin = origins.setdefault(n, x.mean(dim=0))
            x = pad(x - origin, (0, 1), value=1.0)
            sums[n] = sums.get(n, 0) + x.t() @ x
    found = []
    for of_layer in sums.values():
        means = of_layer / of_layer[-1, -1]
        mean = means[-1, :-1]
        covariance = means[:-1, :-1] - torch.outer(mean, mean)
        deviations = covariance.diagonal().clamp(min=0).sqrt()
        deviations = deviations.masked_fill(deviations < 1e-12, float("nan"))
        found.append((covariance / torch.outer(deviations, deviations)).cpu())
    return found


def layer_correlations(model: FairseqLanguageModel, tokens: Tensor) -> List[LayerCorrelation]:
    """Mean absolute correlation within each layer, bottom first; see :func:`correlation_matrices`."""
    found = []
    for n, (matrix, layer) in enumerate(
        zip(correlation_matrices(model, tokens), recurrent_stack(model).layers), start=1
    ):
        absolute = matrix.abs().fill_diagonal_(float("nan"))
        of_different_groups = torch.zeros_like(absolute, dtype=torch.bool)
        for one, other in combinations(layer.feature_groups.values(), 2):
            of_different_groups[one, other] = True
        found.append(
            LayerCorrelation(
                layer=n,
                width=len(matrix),
                num_constant=int(matrix.diagonal().isnan().sum()),
                mean=_mean_or_none(absolute),
                within={name: _mean_or_none(absolute[group, group]) for name, group in layer.feature_groups.items()},
                between=_mean_or_none(absolute[of_different_groups]),
            )
        )
    return found


def _mean_or_none(absolute: Tensor) -> Optional[float]:
    mean = absolute.nanmean().item()
    return None if math.isnan(mean) else mean


# Recurrent matrices of layers without gates (Pachitariu & Sahani 2013).


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of the recurrent matrix of a layer.

    Attributes:
        layer: its number, from 1 on.
        eigenvalues: (D,) complex128, the largest modulus first.
        most_negative: the lowest real eigenvalue; NaN if none is below zero.
        same_sign: the larger share of entries with the same sign in its right and its left eigenvector; NaN if there is
            no negative eigenvalue.
    """

    layer: int
    eigenvalues: Tensor
    most_negative: float
    same_sign: List[float]


def spectra(model: FairseqLanguageModel) -> List[Spectrum]:
    """Spectrum of each layer, bottom first, in float64.

    Raises UserError if a layer has gates or no recurrent matrix.
    """
    found = []
    for number, layer in enumerate(recurrent_stack(model).layers, start=1):
        if not isinstance(layer, SimpleRecurrentLayer) or layer.recurrent is None:
            raise UserError(
                f"layer {number} has no recurrent matrix without gates: give a model with --rnn-cell "
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
        index = int(values.real.masked_fill(~is_negative, torch.inf).argmin())
        most_negative = float(values.real[index])
        left_values, left = torch.linalg.eig(matrix.t())
        same = int((left_values - values[index]).abs().argmin())
        shares = [_same_sign(vectors.real) for vectors in (right[:, index], left[:, same])]
    return Spectrum(layer=number, eigenvalues=values[order], most_negative=most_negative, same_sign=shares)


def _same_sign(vector: Tensor) -> float:
    rounding = 1e-9 * vector.abs().max()
    return max(float((sign * vector > rounding).double().mean()) for sign in (1, -1))


@dataclass(frozen=True)
class Timescales:
    """Timescales of the units of a diagonal recurrent layer: the tokens until a unit decays to 1/e, -1 / log r.

    Attributes:
        layer: its number, from 1 on.
        values: timescales of the units with 0 < r < 1, the longest first.
        num_alternating: number of units with r < 0, whose sign changes at every token.
        num_without: number of units without a timescale: r = 0 keeps nothing, r = 1 forgets nothing.
    """

    layer: int
    values: List[float]
    num_alternating: int
    num_without: int


def timescales(model: FairseqLanguageModel) -> List[Timescales]:
    """Timescales of each layer, bottom first. Raises UserError if a layer is not diagonal."""
    found = []
    for number, layer in enumerate(recurrent_stack(model).layers, start=1):
        if not isinstance(layer, DiagonalRNN) or layer.recurrent is not None:
            raise UserError(
                f"layer {number} has no self-connections: give a model with --rnn-cell diagonal, such as --arch fpnn_lm"
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
