"""Mean of a model's probabilities over dropout masks (Gal & Ghahramani 2016; Melis et al. 2020).

Shapes: B rows, T window length.
"""

import random
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Iterator, List, Sequence

import torch
from fairseq.models import FairseqLanguageModel
from torch import Tensor

from fairseq_plugins.evaluation.ensemble import average_log_probs, average_nll
from fairseq_plugins.evaluation.scored_windows import ScoredWindow
from fairseq_plugins.modules.carried_state import new_stream
from fairseq_plugins.modules.dropout import DropsAtRandom


@dataclass(frozen=True)
class DropoutOptions:
    """Which masks are drawn.

    Attributes:
        num_samples: masks of every window.
        scale: factor of the trained rates, at least 0.
        seed: of the masks.
    """

    num_samples: int
    scale: float
    seed: int


@contextmanager
def sampled_masks(models: Sequence[FairseqLanguageModel], *, scale: float) -> Iterator[None]:
    """Every dropout of models in evaluation mode drops in the block, at its trained rate times ``scale``.

    Noise and margins of a training stay away.

    Raises:
        ValueError: if a rate would be 1 or more.
    """
    parts = [part for model in models for part in model.modules() if isinstance(part, DropsAtRandom)]
    highest = max((part.trained_rate for part in parts), default=0.0)
    if highest * scale >= 1:
        raise ValueError(f"--dropout-scale {scale:g}: the model has a dropout rate of {highest:g}; give a lower scale")
    before = [part.evaluation_scale for part in parts]
    try:
        for part in parts:
            part.evaluation_scale = scale
        yield
    finally:
        for part, former in zip(parts, before):
            part.evaluation_scale = former


class DropoutSamples:
    """Several passes over a stream, each with masks of its own and a state of its own.

    Masks last a window, or a token, as in training. They depend on the seed, the pass, the model's number and the place
    in the stream alone.

    Args:
        models: carry their state. They are averaged as probabilities, as the passes are.
        options: number, scale and seed of the masks.
        device: where the models are.
    """

    def __init__(self, models: Sequence[FairseqLanguageModel], options: DropoutOptions, *, device: str):
        self.models = models
        self.options = options
        self.device = torch.device(device)
        self._name = new_stream("dropout samples")
        self._num_read = 0

    @torch.no_grad()
    def nll(self, window: ScoredWindow) -> Tensor:
        """NLL of a window's targets by the mean of the probabilities, (B, T) float64; windows come in order.

        Raises:
            ValueError: if it is not finite, or a rate would be 1 or more.
        """
        devices: List[torch.device] = [] if self.device.type == "cpu" else [self.device]
        with sampled_masks(self.models, scale=self.options.scale), torch.random.fork_rng(devices):
            samples = [-self._sample(window, sample) for sample in range(self.options.num_samples)]
        self._num_read += window.target.size(1)
        return -average_log_probs(samples)

    def forget(self) -> None:
        """Drop the passes' states."""
        for model in self.models:
            for sample in range(self.options.num_samples):
                model.decoder.carried_state.forget(self._stream(sample))

    def _sample(self, window: ScoredWindow, sample: int) -> Tensor:
        nll = []
        for number, model in enumerate(self.models):
            place = f"{self.options.seed} {sample} {number} {self._num_read}"
            torch.manual_seed(random.Random(place).getrandbits(63))
            _, extra = model.eval()(
                window.inputs, stream=self._stream(sample), position=self._num_read, target=window.target
            )
            nll.append(extra["scores"].nll)
        return average_nll(nll)

    def _stream(self, sample: int) -> str:
        return f"{self._name}, pass {sample}"
