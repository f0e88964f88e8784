"""Chunks of tokens: their sizes, and that they hold every token that counts once."""

import pytest
import torch

from fairseq_plugins.ops.chunks import CPU_CHUNK_BYTES, MIN_CHUNK_ROWS, cut, default_chunk_size, even_chunk_size


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_experts", [1, 20, 1000])
@pytest.mark.parametrize("vocab_size", [1, 10_000, 10**7])
def test_the_default_chunk_is_the_most_tokens_that_fit_the_share_or_the_fewest_rows(vocab_size, num_experts, dtype):
    chunk_size = default_chunk_size(num_experts, vocab_size, dtype=dtype, device=torch.device("cpu"))
    num_rows = max(MIN_CHUNK_ROWS, CPU_CHUNK_BYTES // (vocab_size * dtype.itemsize))
    assert 1 <= chunk_size
    assert chunk_size * num_experts <= max(num_rows, num_experts)
    assert (chunk_size + 1) * num_experts > num_rows


@pytest.mark.parametrize("num_tokens", [0, 1, 5, 12, 13, 700])
@pytest.mark.parametrize("chunk_size", [1, 5, 12, 1000])
def test_even_chunks_are_as_many_and_differ_by_little(num_tokens, chunk_size):
    size = even_chunk_size(num_tokens, chunk_size)
    num_chunks = -(-num_tokens // chunk_size)
    assert 1 <= size <= chunk_size and -(-num_tokens // size) <= num_chunks
    assert num_tokens == 0 or size - 1 < num_tokens / num_chunks <= size


@pytest.mark.parametrize("may_skip", [False, True])
@pytest.mark.parametrize("zeros", [[], [0, 4, 5], list(range(9))])
def test_each_token_that_counts_is_in_one_chunk(zeros, may_skip):
    weights = torch.ones(9).index_fill(0, torch.tensor(zeros, dtype=torch.long), 0)
    chunks = [torch.arange(9)[chosen] for chosen in cut(weights, 4, may_skip=may_skip)]
    expected = [token for token in range(9) if not (may_skip and token in zeros)]
    assert [token for chunk in chunks for token in chunk.tolist()] == expected
    assert all(0 < len(chunk) <= 4 for chunk in chunks)
