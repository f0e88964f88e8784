"""Chunks of tokens: how many tokens each holds, and which."""

from typing import Sequence, Union

import torch
from torch import Tensor

CPU_CHUNK_BYTES = 32 * 2**20
"""Logits of a chunk on a CPU: about a last-level cache."""
GPU_CHUNK_SHARE = 1 / 128
"""Logits of a chunk on a GPU, as a share of its memory."""
MIN_CHUNK_ROWS = 480
"""A chunk has at least about so many rows, for fewer slow the matrix products down; :func:`even_chunk_size` may then
halve it. Above 17,476 words they take more than :data:`CPU_CHUNK_BYTES`. A chunk in 16 bits stays below 32 MiB, where
the C library reuses memory, up to 34,900 words."""


def default_chunk_size(num_experts: int, vocab_size: int, *, dtype: torch.dtype, device: torch.device) -> int:
    """The number of tokens of a chunk that runs fastest.

    Their logits fill :data:`CPU_CHUNK_BYTES`, or on a GPU :data:`GPU_CHUNK_SHARE` of its memory. They have about
    :data:`MIN_CHUNK_ROWS` rows, or more, whatever the vocabulary. ``dtype`` is that of the losses: logits of 16 bits
    take half as much.
    """
    if device.type == "cuda":
        chunk_bytes = torch.cuda.get_device_properties(device).total_memory * GPU_CHUNK_SHARE
    else:
        chunk_bytes = CPU_CHUNK_BYTES
    num_rows = max(MIN_CHUNK_ROWS, int(chunk_bytes / (vocab_size * dtype.itemsize)))
    return max(1, num_rows // num_experts)


def even_chunk_size(num_tokens: int, chunk_size: int) -> int:
    """The smallest size that gives as few chunks as ``chunk_size`` does, so that all are about equally large."""
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
