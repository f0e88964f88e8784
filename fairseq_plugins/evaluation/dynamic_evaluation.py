"""Dynamic evaluation (Krause et al. 2018): the weights take a gradient step after each segment that was scored.

Every segment is scored before the weights learn from it, so this is an ordinary perplexity. The weights are part of the
model's state.
"""

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ContextManager, Dict, List, Optional

import torch
from fairseq.models import FairseqLanguageModel
from torch import Tensor, nn

from fairseq_plugins.evaluation.scoring import device_of, score_windows, scores_in_float32, set_within_block
from fairseq_plugins.fairseq_patches.checkpoints import check_archive
from fairseq_plugins.files import file_digest, write_tensors

RULES = ("rms", "sgd")
"""Update rules: gradients over their root mean squares on the training text, or plain gradients."""


@dataclass(frozen=True)
class DynamicOptions:
    """Options of dynamic evaluation.

    Attributes:
        rule: a value of :data:`RULES`.
        rate: eta, at least 0.
        decay: lambda, at least 0.
        epsilon: added to the root mean squares, above 0.
        segment: tokens of a row between two steps.
        rows: number of rows that the training text is cut into for the statistics.
    """

    rule: str
    rate: float
    decay: float
    epsilon: float
    segment: int
    rows: int

    @property
    def changes_weights(self) -> bool:
        """Whether any step moves the weights. Without gradients the decay has nothing to undo."""
        return self.rate > 0


class AdaptingWeights:
    """The weights of a model while it reads a text. All of them adapt, frozen ones included.

    A step is theta <- theta + lambda R (theta_0 - theta) - eta grad / (RMS + epsilon) with the trained weights theta_0:

    * RMS is the root of the mean squared gradients over the training text. Weights whose gradients are usually small
      take larger steps, as in RMSprop, but with statistics that do not change during the evaluation.
    * R is RMS over a, where a is the mean over tensors of each tensor's mean RMS. Weights that matter more to the loss
      are pulled back harder. lambda R is at most 1, because a stronger pull would overshoot theta_0.
    * With the rule "sgd", R and RMS + epsilon are 1.

    Args:
        model: with the trained weights.
        options: rule and constants.
        mean_squares: mean squared gradients by parameter name; unused with "sgd".
    """

    def __init__(self, model: FairseqLanguageModel, options: DynamicOptions, *, mean_squares: Dict[str, Tensor]):
        named = dict(model.named_parameters())
        self.parameters: List[Tensor] = list(named.values())
        self._trained = [parameter.detach().clone() for parameter in self.parameters]
        if options.rule == "sgd":
            self._pulls = [parameter.new_tensor(options.decay) for parameter in self._trained]
            self._rates = [parameter.new_tensor(options.rate) for parameter in self._trained]
            return
        roots = [mean_squares[name].to(parameter).sqrt() for name, parameter in named.items()]
        # the mean of the tensors' means, not of all elements: the word matrices would outweigh all other tensors
        mean_root = torch.stack([root.mean() for root in roots]).mean()
        self._pulls = [(options.decay * root / mean_root).clamp(max=1).detach() for root in roots]
        self._rates = [(options.rate / (root + options.epsilon)).detach() for root in roots]

    def follow(self, loss: Tensor) -> None:
        """Take a step by the gradient of the loss, the mean NLL of the last segment. No gradient crosses a segment."""
        # a loss may not use all parameters: the unused ones get a zero gradient and are only pulled back
        gradients = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
        with torch.no_grad():
            for parameter, trained, pull, rate, gradient in zip(
                self.parameters, self._trained, self._pulls, self._rates, gradients
            ):
                # lerp first: the pull reads theta before the step, and the decay does not shrink the new gradient
                parameter.lerp_(trained, pull).addcmul_(gradient, rate, value=-1)

    @torch.no_grad()
    def restore(self) -> None:
        """Put the trained weights back."""
        for parameter, trained in zip(self.parameters, self._trained):
            parameter.copy_(trained)


# Statistics of the gradients. They take a pass over the training text, so they are computed once and kept on disk.


def mean_squared_gradients(
    model: FairseqLanguageModel, tokens: Tensor, *, num_rows: int, segment: int
) -> Dict[str, Tensor]:
    """Mean over segments of the squared gradient of a segment's mean NLL, by parameter name.

    The weights do not change, and there is no dropout. Output layers compute in float32, so that the result does not
    depend on the precision of the evaluation. The training text (n,) int64 is cut into ``num_rows`` rows, and a segment
    is ``segment`` tokens of each row. Raises UserError if the text is too short for the rows.
    """
    named = dict(model.named_parameters())
    totals = {name: torch.zeros_like(parameter) for name, parameter in named.items()}
    num_segments = 0
    with every_parameter_learns(model), scores_in_float32([model]):
        for window in score_windows([model], tokens, num_rows=num_rows, window=segment, with_gradients=True):
            loss = window.scores[0].output / window.target.numel()
            gradients = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
            for total, gradient in zip(totals.values(), gradients):
                total.addcmul_(gradient, gradient)
            num_segments += 1
    return {name: total / num_segments for name, total in totals.items()}


def kept_gradient_statistics(
    model: FairseqLanguageModel, tokens: Tensor, *, checkpoint: Path, num_rows: int, segment: int
) -> Dict[str, Tensor]:
    """:func:`mean_squared_gradients`, read from a file beside the checkpoint or computed and written to it.

    A file of another checkpoint or text, or one that cannot be read, is replaced. If the new file cannot be written,
    a line on the standard error says so.
    """
    path = checkpoint.with_name(f"{checkpoint.stem}.gradients-{num_rows}x{segment}.pt")
    key = {
        "checkpoint": file_digest(checkpoint),
        "tokens": hashlib.sha256(tokens.contiguous().numpy().data).hexdigest(),
    }
    statistics = _read(path, key=key, model=model)
    if statistics is not None:
        return statistics
    statistics = mean_squared_gradients(model, tokens, num_rows=num_rows, segment=segment)
    try:
        write_tensors(path, {**key, "mean_squares": {name: one.cpu() for name, one in statistics.items()}})
    except OSError as error:
        print(f"gradient statistics are not kept: {path}: {error.strerror}", file=sys.stderr)
    return statistics


def _read(path: Path, *, key: Dict[str, str], model: nn.Module) -> Optional[Dict[str, Tensor]]:
    """Statistics of a file, or None if it does not belong to the key and the model."""
    try:
        check_archive(path)  # torch itself compares no checksum
        kept = torch.load(path, map_location=device_of(model), weights_only=True)
        statistics: Dict[str, Tensor] = kept["mean_squares"]
        fits = all(kept[name] == value for name, value in key.items())
        found = {name: one.shape for name, one in statistics.items()}
    except Exception:  # torch raises many kinds for damaged files; the statistics are then computed again
        return None
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    return statistics if fits and found == shapes else None


def every_parameter_learns(model: nn.Module) -> ContextManager[None]:
    """Enable gradients of all parameters in the block, including frozen ones."""
    parameters = list(model.parameters())
    return set_within_block(parameters, "requires_grad", [True] * len(parameters))
