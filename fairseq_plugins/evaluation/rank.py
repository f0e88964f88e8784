"""Rank of the matrix of log-probabilities of a language model (Yang et al. 2018, section 2).

Shapes: N positions, V vocabulary.
"""

import torch
from fairseq.models import FairseqLanguageModel
from torch import Tensor
from tqdm import tqdm

from fairseq_plugins.data.contiguous_streams import ContiguousStreams
from fairseq_plugins.data.windows import fixed_windows


@torch.no_grad()
def singular_values(
    model: FairseqLanguageModel,
    tokens: Tensor,
    *,
    window: int = 500,
    device: str = "cpu",
    show_progress: bool = False,
) -> Tensor:
    """Singular values, (V,) float64, descending, of log P(word | position) for the positions of a stream, (N, V).

    The matrix is never held: its Gram matrix (V, V) is summed in float64, window by window, and the roots of its
    eigenvalues are taken. Values below 1e-8 of the largest are noise.

    Args:
        model: a language model that carries its state, on ``device``; put into evaluation mode.
        tokens: (N + 1,) int64.
        window: positions a forward pass.
        device: where the model is.
        show_progress: draw a bar.
    """
    model.eval()
    streams = ContiguousStreams(tokens, name="rank", num_rows=1, first_row=0, num_own_rows=1)
    gram = None
    with tqdm(total=streams.num_predictions_per_row, unit="token", disable=not show_progress) as progress:
        for cut in fixed_windows(streams.num_predictions_per_row, length=window):
            inputs = streams[cut]["net_input"]
            log_probs, _ = model(inputs["src_tokens"].to(device), stream=inputs["stream"], position=inputs["position"])
            rows = log_probs.flatten(0, 1).double()
            gram = rows.new_zeros(rows.size(1), rows.size(1)) if gram is None else gram
            gram.addmm_(rows.t(), rows)
            progress.update(len(rows))
    return torch.linalg.eigvalsh(gram).flip(0).clamp(min=0).sqrt().cpu()


def rank(values: Tensor, *, threshold: float) -> int:
    """Number of singular values above ``threshold``."""
    return int((values > threshold).sum())


def default_threshold(values: Tensor, *, num_positions: int) -> float:
    """The threshold that numerical libraries take for a matrix in float32: max(N, V) eps times the largest value."""
    return max(num_positions, len(values)) * torch.finfo(torch.float32).eps * float(values[0])
