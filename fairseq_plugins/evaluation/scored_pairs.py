"""Sentence pairs scored by an encoder-decoder, which reads the target that it predicts.

Shapes: N pairs, B pairs of a batch, T longest target of a batch.
"""

from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Sequence

import torch
from fairseq import utils
from fairseq.data import LanguagePairDataset
from fairseq.models import FairseqEncoderDecoderModel
from torch import Tensor
from tqdm import tqdm

from fairseq_plugins.evaluation.ensemble import average_nll
from fairseq_plugins.evaluation.scored_sequences import batches_by_length, nll_of
from fairseq_plugins.output_layers.base import OutputLayer
from fairseq_plugins.output_layers.decoder_states import DecoderStates
from fairseq_plugins.output_layers.scores import Scores


@dataclass(frozen=True)
class ScoredPairs:
    """What a model makes of a batch of pairs; all tensors are where the model is.

    Attributes:
        numbers: places of the pairs in what was given, B.
        target: the tokens that are predicted, (B, T).
        is_token: where the target has a token, (B, T).
        nll: of the targets in nats, (B, T) float64, 0 where there is none.
        states: what the output layer read; None of a model of the host.
        scores: what the output layer returned; None of a model of the host.
    """

    numbers: List[int]
    target: Tensor
    is_token: Tensor
    nll: Tensor
    states: Optional[DecoderStates]
    scores: Optional[Scores]


def score_pairs(
    model: FairseqEncoderDecoderModel,
    sources: Sequence[Tensor],
    targets: Sequence[Tensor],
    *,
    max_tokens: int = 4096,
    device: str = "cpu",
    show_progress: bool = False,
) -> Iterator[ScoredPairs]:
    """Score every token of the targets, the end mark included; batches come the longest pairs first.

    Args:
        model: on ``device``, of the host too; put into evaluation mode.
        sources: N sequences of the encoder's dictionary, each (n,) int64 with the end mark.
        targets: as many of the decoder's dictionary.
        max_tokens: of a batch on its longer side, padding included, unless one pair is longer; it changes nothing
            beyond rounding.
        device: where the model is.
        show_progress: draw a bar.

    Raises:
        ValueError: if a pair is longer than the model reads, or an NLL is not finite.
    """
    assert len(sources) == len(targets)
    _check_lengths(sources, targets, limits=model.max_positions())
    dictionaries = model.encoder.dictionary, model.decoder.dictionary
    pairs = LanguagePairDataset(
        *(sources, [len(one) for one in sources], dictionaries[0]),
        *(targets, [len(one) for one in targets], dictionaries[1]),
        shuffle=False,
    )
    lengths = [max(len(source), len(target)) for source, target in zip(sources, targets)]
    model.eval()
    with tqdm(total=len(pairs), unit="pair", disable=not show_progress) as progress:
        for numbers in batches_by_length(lengths, max_tokens=max_tokens):
            batch = pairs.collater([pairs[number] for number in numbers])
            batch = utils.move_to_cuda(batch, device=torch.device(device)) if device != "cpu" else batch
            with torch.no_grad():
                scored = _score(model, batch, padding=dictionaries[1].pad())
            yield scored
            progress.update(len(numbers))


def _score(model: FairseqEncoderDecoderModel, batch: Dict[str, Any], *, padding: int) -> ScoredPairs:
    target, net_input = batch["target"], batch["net_input"]
    is_token = target.ne(padding)
    states = scores = None
    if isinstance(getattr(model.decoder, "output", None), OutputLayer):
        extra = model(**net_input, target=target, token_weights=is_token)[1]
        states, scores = extra["states"], extra["scores"]
        nll = scores.nll
    else:
        nll = nll_of(model.get_normalized_probs(model(**net_input), log_probs=True), target, is_token)
    return ScoredPairs(
        numbers=batch["id"].tolist(),
        target=target,
        is_token=is_token,
        nll=average_nll([nll]),
        states=states,
        scores=scores,
    )


def _check_lengths(sources: Sequence[Tensor], targets: Sequence[Tensor], *, limits: Sequence[int]) -> None:
    for side, sequences, limit in zip(("source", "target"), (sources, targets), limits):
        for number, sequence in enumerate(sequences, start=1):
            if len(sequence) > limit:
                raise ValueError(
                    f"the {side} of pair {number} has {len(sequence):,} tokens and the model reads at most {limit:,}: "
                    "leave the pair out or take another model"
                )
