"""Separate sequences scored by language models, each from a fresh state.

Shapes: M models, n tokens of a sequence, B rows of a batch, T its longest sequence, V vocabulary.
"""

import math
from dataclasses import dataclass
from typing import Dict, Iterator, List, Sequence

import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqLanguageModel
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from fairseq_plugins.evaluation.ensemble import average_nll
from fairseq_plugins.evaluation.scored_stream import ScoredStream, carry_state, shifted


@dataclass(frozen=True)
class ScoredSequence:
    """How well a sequence is predicted.

    Attributes:
        token_nll: negative log-likelihood of each token in nats, (n,) float64 on the CPU.
    """

    token_nll: Tensor

    @property
    def nll(self) -> float:
        """Negative log-likelihood of the sequence in nats."""
        return float(self.token_nll.sum())


@torch.no_grad()
def score_sequences(
    models: Sequence[FairseqLanguageModel],
    sequences: Sequence[Tensor],
    *,
    max_tokens: int = 4096,
    window: int = 4096,
    device: str = "cpu",
    show_progress: bool = False,
) -> List[ScoredSequence]:
    """Score sequences that do not know of each other; the results are in the order of ``sequences``.

    Every token is predicted, the first from an end mark as the input, and the end mark at the end too if the sequence
    has it. Sequences are batched by length and padded behind.

    Args:
        models: language models on ``device``, the host's included, with one vocabulary; put into evaluation mode. None
            reads or changes a carried state. Several are averaged as probabilities.
        sequences: each (n,) int64, not empty.
        max_tokens: of a batch, padding included, unless one sequence is longer; does not change the result beyond
            rounding.
        window: a longer sequence is read by itself, so many tokens at a time, where all models carry state; others read
            it at once. Does not change the result beyond rounding.
        device: where the models are.
        show_progress: draw a bar.

    Raises:
        ValueError: if the models have different vocabularies, a sequence is longer than a model reads, a batch would
            have no token, or an NLL is not finite.
    """
    if max_tokens < 1:
        raise ValueError(f"batches of {max_tokens} tokens: give at least 1")
    assert window >= 1
    assert all(len(sequence) > 0 for sequence in sequences)
    dictionary = check_vocabularies(models)
    for model in models:
        model.eval()
    lengths = [len(sequence) for sequence in sequences]
    _check_lengths(lengths, longest=longest_sequence(models))
    in_windows = carry_state(models)

    scored: Dict[int, ScoredSequence] = {}
    with tqdm(total=sum(lengths), unit="token", disable=not show_progress) as progress:
        for indices in batches_by_length(lengths, max_tokens=max_tokens):
            if in_windows and lengths[indices[0]] > window:
                for i in indices:
                    with ScoredStream(models, window=window, device=device) as stream:
                        scored[i] = ScoredSequence(stream.score(sequences[i]))
                    progress.update(lengths[i])
                continue
            target = pad_sequence([sequences[i] for i in indices], batch_first=True, padding_value=dictionary.pad())
            target = target.to(device)
            inputs = shifted(target, first=dictionary.eos())
            ends = torch.tensor([[lengths[i]] for i in indices], device=device)
            is_token = torch.arange(target.size(1), device=device) < ends
            nll = average_nll([_target_nll(model, inputs, target, is_token) for model in models]).cpu()
            scored.update((i, ScoredSequence(row[: lengths[i]].clone())) for i, row in zip(indices, nll))
            progress.update(sum(lengths[i] for i in indices))
    return [scored[i] for i in range(len(sequences))]


def check_vocabularies(models: Sequence[FairseqLanguageModel]) -> Dictionary:
    """The vocabulary that all models have.

    Raises:
        ValueError: if they have different ones.
    """
    dictionary: Dictionary = models[0].decoder.dictionary
    if any(model.decoder.dictionary != dictionary for model in models):
        raise ValueError(
            "the models have different vocabularies and cannot be averaged: take models that were trained with the "
            "same dict.txt"
        )
    return dictionary


def longest_sequence(models: Sequence[FairseqLanguageModel]) -> float:
    """Tokens that all models can read at once; infinite where they carry state."""
    return min((model.max_positions() for model in models if not carry_state([model])), default=math.inf)


def _check_lengths(lengths: Sequence[int], *, longest: float) -> None:
    for number, length in enumerate(lengths, start=1):
        if length > longest:
            raise ValueError(
                f"sequence {number} has {length:,} tokens and the model reads at most {longest:,}: cut it into several"
            )


def batches_by_length(lengths: Sequence[int], *, max_tokens: int) -> Iterator[List[int]]:
    """Indices of sequences, the longest first, so that what does not fit into memory fails at once.

    Args:
        lengths: of the sequences.
        max_tokens: of a batch, padding included, unless it is one sequence.
    """
    batch: List[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if batch and lengths[batch[0]] * (len(batch) + 1) > max_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _target_nll(model: FairseqLanguageModel, inputs: Tensor, target: Tensor, is_token: Tensor) -> Tensor:
    """NLL of each target, (B, T), 0 where ``is_token`` (B, T) is False."""
    if carry_state([model]):
        return model(inputs, target=target, token_weights=is_token)[1]["scores"].nll
    return nll_of(model.get_normalized_probs(model(inputs), log_probs=True), target, is_token)


def nll_of(log_probs: Tensor, target: Tensor, is_token: Tensor) -> Tensor:
    """NLL of each target (B, T) by log-probabilities (B, T, V), 0 where ``is_token`` (B, T) is False."""
    return -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1).masked_fill(~is_token, 0)
