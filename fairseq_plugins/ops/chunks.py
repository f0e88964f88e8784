"""Chunks of tokens: how many tokens each holds, and which."""

from typing import Sequence, Union

import torch
from torch import Tensor

CPU_CHUNK_BYTES = 32 * 2**20
"""Logits of a chunk on a CPU: about a last-level cache."""
GPU_CHUNK_SHARE = 1 / 128
"""Logits of a chunk on a GPU, as a share of its memory."""
MIN_CHUNK_ROWS = 512
"""Fewer rows slow the matrix products down; from 16,384 words on they are more than the bytes above."""


def default_chunk_size(num_experts: int, vocab_size: int, *, dtype: torch.dtype, device: torch.device) -> int:
    """Tokens whose logits fill the share of the device's memory, or of a CPU's cache, that runs fastest.

    Matrix products need a few hundred rows to run at full speed, whatever the vocabulary.
    """
    if device.type == "cuda":
        chunk_bytes = torch.cuda.get_device_properties(device).total_memory * GPU_CHUNK_SHARE
    else:
        chunk_bytes = CPU_CHUNK_BYTES
    num_rows = max(MIN_CHUNK_ROWS, int(chunk_bytes / (vocab_size * dtype.itemsize)))
    return max(1, num_rows // num_experts)


def even_chunk_size(num_tokens: int, chunk_size: int) -> int:
    """The size at which as many chunks as of ``chunk_size`` are all about as large."""
    num_chunks = max(1, -(-num_tokens // chunk_size))
    return max(1, -(-num_tokens // num_chunks))


def cut(weights: Tensor, chunk_size: int, *, may_skip: bool) -> Sequence[Union[slice, Tensor]]:
    """Indices of the tokens of each chunk.

    Args:
        weights: of the tokens, (N).
        may_skip: whether tokens of weight zero are in no chunk; on a GPU, finding them waits for the device.
    """
    num_tokens = weights.numel()
    kept = weights.nonzero().squeeze(-1) if may_skip else None
    if kept is None or kept.numel() == num_tokens:
        return [slice(first, first + chunk_size) for first in range(0, num_tokens, chunk_size)]
    return kept.split(chunk_size) if kept.numel() else []
