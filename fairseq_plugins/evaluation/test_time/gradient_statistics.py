"""Mean squares of a model's gradients over its training text, computed once and kept on disk.

Shapes: n tokens.
"""

import hashlib
import os
import sys
from pathlib import Path
from typing import Dict, Optional

import torch
from fairseq.models import FairseqLanguageModel
from torch import Tensor, nn

from fairseq_plugins.data.file_digest import file_digest
from fairseq_plugins.evaluation.score_precision import scores_in_float32
from fairseq_plugins.evaluation.scored_windows import score_windows
from fairseq_plugins.flags.written_file import write_tensors
from fairseq_plugins.host.unreadable_checkpoints import check_archive
from fairseq_plugins.modules.frozen_parameters import every_parameter_learns


def mean_squared_gradients(
    model: FairseqLanguageModel, tokens: Tensor, *, num_rows: int, segment: int, device: str, show_progress: bool
) -> Dict[str, Tensor]:
    """Mean over the segments of a stream of the squared gradients of each segment's mean NLL, by the parameter's name.

    The weights stay as they are, and nothing is dropped. Output layers compute in float32, so that the result does not
    depend on the precision of an evaluation.

    Args:
        model: carries its state.
        tokens: the training text, (n,) int64.
        num_rows: rows that it is cut into.
        segment: tokens of a row that make up a segment, with all rows.
        device: where the model is.
        show_progress: draw a bar.

    Raises:
        ValueError: if the text is too short for the rows.
    """
    named = dict(model.named_parameters())
    totals = {name: torch.zeros_like(parameter) for name, parameter in named.items()}
    num_segments = 0
    with every_parameter_learns(model), scores_in_float32([model]):
        windows = score_windows(
            [model],
            tokens,
            num_rows=num_rows,
            window=segment,
            with_gradients=True,
            device=device,
            show_progress=show_progress,
        )
        for window in windows:
            loss = window.scores[0].output / window.target.numel()
            gradients = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
            for total, gradient in zip(totals.values(), gradients):
                total.addcmul_(gradient, gradient)
            num_segments += 1
    return {name: total / num_segments for name, total in totals.items()}


def kept_gradient_statistics(
    model: FairseqLanguageModel,
    tokens: Tensor,
    *,
    checkpoint: Path,
    num_rows: int,
    segment: int,
    device: str,
    show_progress: bool,
) -> Dict[str, Tensor]:
    """:func:`mean_squared_gradients` from a file beside the checkpoint, which is written where it is not there.

    A file that belongs to another checkpoint or text, or that cannot be read, is replaced. Where the folder cannot be
    written, a line on the standard error says so.

    Args:
        model: as the checkpoint holds it.
        checkpoint: its path.
        tokens, num_rows, segment, device, show_progress: see :func:`mean_squared_gradients`.
    """
    path = checkpoint.with_name(f"{checkpoint.stem}.gradients-{num_rows}x{segment}.pt")
    key = {
        "checkpoint": file_digest(checkpoint),
        "tokens": hashlib.sha256(tokens.contiguous().numpy().data).hexdigest(),
    }
    statistics = _read(path, key=key, model=model, device=device)
    if statistics is not None:
        return statistics
    writable = os.access(path.parent, os.W_OK | os.X_OK)
    if not writable:
        print(f"gradient statistics are not kept: nothing can be written to {path.parent}", file=sys.stderr)
    statistics = mean_squared_gradients(
        model, tokens, num_rows=num_rows, segment=segment, device=device, show_progress=show_progress
    )
    if writable:
        try:
            write_tensors(path, {**key, "mean_squares": {name: one.cpu() for name, one in statistics.items()}})
        except OSError as error:
            print(f"gradient statistics are not kept: {path}: {error.strerror}", file=sys.stderr)
    return statistics


def _read(path: Path, *, key: Dict[str, str], model: nn.Module, device: str) -> Optional[Dict[str, Tensor]]:
    """What the file holds for the key, or None."""
    try:
        check_archive(path)  # torch compares no checksum
        kept = torch.load(path, map_location=device, weights_only=True)
        statistics: Dict[str, Tensor] = kept["mean_squares"]
        fits = all(kept[name] == value for name, value in key.items())
        found = {name: one.shape for name, one in statistics.items()}
    except Exception:  # torch has many for damaged files; statistics are computed again
        return None
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    return statistics if fits and found == shapes else None
