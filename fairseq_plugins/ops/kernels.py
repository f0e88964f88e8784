"""Steps of the mixture's loss that depend on the device: a set of functions for CPUs, and plain torch for others.

``triton_mixture.py`` has a set of Triton kernels. All sets give the same values up to rounding, and tests run each on
any device.
"""

from typing import Any

import torch
from torch import Tensor

from fairseq_plugins.ops.matmul import add_matmul, has_wide_products
from fairseq_plugins.ops.mixture_chunk import Chunk, MixtureChunk

BLOCK_ROWS = 4096
"""Rows of W that a CPU centers at a time, so that no other copy of W is held."""


class Kernels:
    """Plain torch for devices that run one operation after another over the whole tensor, such as GPUs.

    Attributes:
        name: for benchmarks.
        vocab_multiple: W gets rows of zeros up to a multiple of this many words. Rows of logits then start at multiples
            of 16 bytes, which fast matrix products and wide loads need.
        may_synchronize: whether Python may read values of tensors, which would make it wait for a GPU. If it may,
            tokens of weight zero are left out, and improbable tokens are computed again.
        bfloat16_logits: whether the logits and probabilities of operands in bfloat16 are in bfloat16, too. Otherwise
            they are in float32, as statistics always are.
    """

    name = "plain"
    vocab_multiple = 16
    may_synchronize = False
    bfloat16_logits = False

    def fuses_bias_gradient(self, dtype: torch.dtype, like: Tensor) -> bool:
        """Whether one product gives the gradient of W and, in one more column, of the bias, which saves a pass.

        Args:
            dtype: of the operands. If products are rounded to it, the gradient of the bias would be, too.
            like: a tensor on the device in the type of the sums.
        """
        return dtype == like.dtype or like.is_cuda and has_wide_products(dtype)

    def add_product(self, total: Tensor, a: Tensor, b: Tensor) -> None:
        """Add a b to ``total`` (m, n), which may be of a wider type."""
        if total.dtype == a.dtype:
            total.addmm_(a, b)
        elif total.is_cuda and has_wide_products(a.dtype):
            torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
        else:
            total.add_(a @ b)

    def center(self, x: Tensor, mean: Tensor, dtype: torch.dtype) -> Tensor:
        """x - mean, rounded once to ``dtype``."""
        return torch.sub(x, mean, out=torch.empty_like(x, dtype=dtype))

    def make_chunk(self, **arguments: Any) -> Chunk:
        """The loss of a chunk, for the arguments of :class:`~fairseq_plugins.ops.mixture_chunk.MixtureChunk`."""
        return MixtureChunk(**arguments)

    def log_mixture(self, logits: Tensor, log_prior: Tensor, *, out: Tensor) -> bool:
        """Write log sum_j pi_j softmax(z_j)_v to ``out`` (n, V), in log space, so that nothing is rounded to zero.

        Args:
            logits: z, (n * J, V).
            log_prior: log pi, (n, J).

        Returns:
            False if this set has no such kernel. Then nothing is written.
        """
        return False


class CPUKernels(Kernels):
    """For CPUs: works in blocks that stay in the cache, and may read values of tensors, which costs nothing there."""

    name = "cpu"
    vocab_multiple = 1
    may_synchronize = True

    def fuses_bias_gradient(self, dtype: torch.dtype, like: Tensor) -> bool:
        return False

    def add_product(self, total: Tensor, a: Tensor, b: Tensor) -> None:
        add_matmul(total, a, b)

    def center(self, x: Tensor, mean: Tensor, dtype: torch.dtype) -> Tensor:
        result = torch.empty_like(x, dtype=dtype)
        for block, rows in zip(result.split(BLOCK_ROWS), x.split(BLOCK_ROWS)):
            block.copy_(rows - mean)
        return result


CPU, PLAIN = CPUKernels(), Kernels()
