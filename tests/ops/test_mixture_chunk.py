"""The size of a chunk, and the scale of its gradients in float16. test_mixture_loss.py has its formula."""

import pytest
import torch

from fairseq_plugins.ops.mixture_chunk import (
    CPU_CHUNK_BYTES,
    MIN_CHUNK_ROWS,
    default_chunk_size,
    even_chunk_size,
    float16_scale,
)


@pytest.mark.parametrize(
    "vocab_size, num_experts, dtype",
    [(1, 20, torch.float32), (10_000, 1, torch.float64), (10_000, 1000, torch.float32), (10**7, 20, torch.float64)],
)
def test_the_default_chunk_is_the_most_tokens_that_fit_the_share_or_the_fewest_rows(vocab_size, num_experts, dtype):
    chunk_size = default_chunk_size(num_experts, vocab_size, dtype=dtype, device=torch.device("cpu"))
    num_rows = max(MIN_CHUNK_ROWS, CPU_CHUNK_BYTES // (vocab_size * dtype.itemsize))
    assert 1 <= chunk_size
    assert chunk_size * num_experts <= max(num_rows, num_experts)
    assert (chunk_size + 1) * num_experts > num_rows


@pytest.mark.parametrize("num_tokens, chunk_size", [(0, 12), (1, 1), (12, 12), (13, 12), (700, 12), (700, 1000)])
def test_even_chunks_are_as_many_and_differ_by_little(num_tokens, chunk_size):
    size = even_chunk_size(num_tokens, chunk_size)
    num_chunks = -(-num_tokens // chunk_size)
    assert 1 <= size <= chunk_size and -(-num_tokens // size) <= num_chunks
    assert num_tokens == 0 or size - 1 < num_tokens / num_chunks <= size


@pytest.mark.parametrize("factor", [1e-6, 1.0, 100.0])
@pytest.mark.parametrize("row, weight", [(0.01, 0.1), (3.0, 0.1), (0.01, 300.0)])
def test_the_scale_is_a_power_of_two_that_uses_the_range_and_stays_in_it(row, weight, factor):
    rows, matrix = row * torch.randn(40, 3, 5), weight * torch.randn(7, 5)
    scale = float16_scale(rows, matrix, torch.full((40,), factor), chunk_size=10).item()
    assert torch.tensor(scale).log2().frac() == 0
    largest = factor * max(1.0, 10 * rows.abs().max().item(), 2 * matrix.abs().max().item())
    assert scale * largest <= 2**15
    assert scale * largest > 2**14 or scale == 2**25  # where all factors are tiny
