"""A stream of text that language models read piece by piece, as it comes.

Shapes: M models, n tokens.
"""

from typing import List, Optional, Sequence

import torch
from fairseq.models import FairseqLanguageModel
from torch import Tensor

from fairseq_plugins.evaluation.ensemble import average_nll
from fairseq_plugins.modules.carried_state import CarriesState, DecoderState, new_stream


def carry_state(models: Sequence[FairseqLanguageModel]) -> bool:
    """Whether all models go on in a stream from the state after the window before."""
    return all(isinstance(model.decoder, CarriesState) for model in models)


def check_carries_state(models: Sequence[FairseqLanguageModel], *, remedy: str) -> None:
    """Refuse models that read no stream.

    Args:
        models: which may carry their state.
        remedy: what the user can do.

    Raises:
        ValueError: for the first that carries no state.
    """
    for model in models:
        if not carry_state([model]):
            raise ValueError(f"a {type(model).__name__} carries no state from line to line: {remedy}")


class ScoredStream:
    """Scores pieces of a stream one after the other; state is carried from piece to piece.

    The stream begins with an end mark, which is read and not scored. As a context manager it forgets its state at the
    end. Streams do not know of each other and can be read by several threads, one each.

    Args:
        models: language models that carry their state, on ``device``; several are averaged as probabilities.
        window: tokens that a forward pass reads; does not change the result beyond rounding.
        device: where the models are.
    """

    def __init__(self, models: Sequence[FairseqLanguageModel], *, window: int = 1000, device: str = "cpu"):
        assert carry_state(models)
        self.models = models
        self.window = window
        self.device = device
        self.name = new_stream("scored stream")
        self.position = 0
        self.last = int(models[0].decoder.dictionary.eos())
        """The token that is read next."""

    def __enter__(self) -> "ScoredStream":
        return self

    def __exit__(self, *error: object) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin another stream, with fresh state."""
        for model in self.models:
            model.decoder.carried_state.forget(self.name)
        self.position = 0
        self.last = int(self.models[0].decoder.dictionary.eos())

    @torch.no_grad()
    def score(self, tokens: Tensor) -> Tensor:
        """NLL in nats of the next tokens (n,) of the stream, (n,) float64 on the CPU.

        Raises:
            ValueError: if an NLL is not finite.
        """
        parts = [self._score(part) for part in tokens.split(self.window)] if len(tokens) else []
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def _score(self, tokens: Tensor) -> Tensor:
        target = tokens.unsqueeze(0).to(self.device)
        inputs = shifted(target, first=self.last)
        place = {"stream": self.name, "position": self.position}
        nll = average_nll([model.eval()(inputs, target=target, **place)[1]["scores"].nll for model in self.models])
        self.position += len(tokens)
        self.last = int(tokens[-1])
        return nll.squeeze(0).cpu()

    def states(self) -> List[Optional[DecoderState]]:
        """The state of each model before :attr:`last`, one row; None, which stands for zeros, at the start."""
        if self.position == 0:
            return [None] * len(self.models)
        return [model.decoder.carried_state.get(self.name, self.position) for model in self.models]

    def fork(self) -> "ScoredStream":
        """Another stream with the same text before it."""
        other = ScoredStream(self.models, window=self.window, device=self.device)
        if self.position > 0:
            for model, state in zip(self.models, self.states()):
                assert state is not None
                model.decoder.carried_state.set(other.name, self.position, state)
        other.position, other.last = self.position, self.last
        return other


def shifted(target: Tensor, *, first: int) -> Tensor:
    """What is read where each of the tokens (..., n) is predicted: the one before it, and before them the first."""
    inputs = target.roll(1, dims=-1)
    inputs[..., 0] = first
    return inputs
