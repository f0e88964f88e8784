"""A token stream scored by language models that carry their state, window by window.

Shapes: M models, n tokens, B rows, T window length, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Sequence

import torch
from fairseq.models import FairseqLanguageModel
from torch import Tensor
from tqdm import tqdm

from fairseq_plugins.data.contiguous_streams import ContiguousStreams
from fairseq_plugins.data.windows import fixed_windows
from fairseq_plugins.evaluation.ensemble import average_log_probs, average_nll
from fairseq_plugins.modules.carried_state import new_stream
from fairseq_plugins.output_layers.decoder_states import DecoderStates
from fairseq_plugins.output_layers.scores import Scores

SCORED_WORDS = ("targets", "all")
"""The words whose probabilities are computed."""


@dataclass(frozen=True)
class ScoredWindow:
    """What models make of a window; all tensors are where the models are.

    Attributes:
        inputs: the tokens that are read, (B, T).
        target: the tokens that are predicted, (B, T).
        nll: of the targets in nats, (B, T) float64 without gradient, of the models' averaged probabilities.
        log_probs: of all words, (B, T, V) float64, averaged in the same way; None where the targets alone are scored.
        states: what each of the M models' output layers read; the layers' outputs are in ``states[m].layers``.
        scores: what each of the M output layers returned. Where the targets alone are scored, ``scores[m].loss`` is the
            NLL summed over the window.
    """

    inputs: Tensor
    target: Tensor
    nll: Tensor
    log_probs: Optional[Tensor]
    states: List[DecoderStates]
    scores: List[Scores]


def score_windows(
    models: Sequence[FairseqLanguageModel],
    tokens: Tensor,
    *,
    num_rows: int = 1,
    window: int = 1000,
    words: str = "targets",
    with_gradients: bool = False,
    device: str = "cpu",
    show_progress: bool = False,
) -> Iterator[ScoredWindow]:
    """Score a stream in order; state is carried through it, from zeros at the start of each row.

    Every token but the first of a row is predicted once; what does not fill a row is left out at the end. The models
    are in evaluation mode whenever a window is read. Their state of other streams, that of a training or of another
    scoring at the same time, is neither read nor changed, and that of this one is forgotten at the end. Weights may be
    changed between windows.

    Args:
        models: language models that carry their state, on ``device``. Several are averaged as probabilities.
        tokens: (n,) int64.
        num_rows: rows the stream is cut into, B.
        window: tokens of a row that a forward pass reads; does not change the result beyond rounding.
        words: a value of :data:`SCORED_WORDS`; with "targets" the probabilities of all words are never held.
        with_gradients: whether ``states``, ``scores`` and ``log_probs`` have gradients; none crosses a window.
        device: where the models are.
        show_progress: draw a bar.

    Raises:
        ValueError: if the stream is too short for the rows, rows or window are below one, or an NLL is not finite.
    """
    assert words in SCORED_WORDS
    check_cut(num_rows=num_rows, window=window)
    name = new_stream("scored windows")
    streams = ContiguousStreams(tokens, name=name, num_rows=num_rows, first_row=0, num_own_rows=num_rows)
    num_predictions = num_rows * streams.num_predictions_per_row
    try:
        with tqdm(total=num_predictions, unit="token", disable=not show_progress) as progress:
            for cut in fixed_windows(streams.num_predictions_per_row, length=window):
                batch = streams[cut]
                # gradients are on for the models alone, not for whoever reads the windows
                with torch.set_grad_enabled(with_gradients):
                    scored = _score(models, batch, words=words, device=device)
                yield scored
                progress.update(scored.target.numel())
    finally:
        for model in models:
            model.decoder.carried_state.forget(name)


def check_cut(*, num_rows: int, window: int) -> None:
    """Refuse rows and windows that no stream can be cut into.

    Raises:
        ValueError: if one is below one.
    """
    if num_rows < 1 or window < 1:
        raise ValueError(f"{num_rows} rows and a window of {window} tokens: both must be at least 1")


def check_rows(tokens: Tensor, *, num_rows: int, split: str) -> None:
    """Refuse more rows than a split has tokens for, which are two a row.

    Raises:
        ValueError: with the remedy.
    """
    if tokens.numel() < 2 * num_rows:
        raise ValueError(f"--rows {num_rows}: {split} has {tokens.numel():,} tokens, give fewer")


def _score(models: Sequence[FairseqLanguageModel], batch: Dict[str, Any], *, words: str, device: str) -> ScoredWindow:
    inputs, target = batch["net_input"]["src_tokens"].to(device), batch["target"].to(device)
    position = {name: batch["net_input"][name] for name in ("stream", "position")}
    asked = target if words == "targets" else None
    extras = [model.eval()(inputs, **position, target=asked)[1] for model in models]
    scores = [extra["scores"] for extra in extras]
    log_probs = None
    if words == "targets":
        nll = [one.nll for one in scores]
    else:
        nll = [-one.log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1) for one in scores]
        log_probs = average_log_probs([one.log_probs for one in scores])
    return ScoredWindow(
        inputs=inputs,
        target=target,
        nll=average_nll(nll),
        log_probs=log_probs,
        states=[extra["states"] for extra in extras],
        scores=scores,
    )
