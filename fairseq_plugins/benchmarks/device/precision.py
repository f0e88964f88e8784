"""Precision of float32 products on a GPU, for a while."""

from contextlib import contextmanager
from typing import Iterator, Literal

import torch


@contextmanager
def float32_products(kind: Literal["strict", "TF32"]) -> Iterator[None]:
    """Within the context, products of float32 operands are exact to float32, or round their operands to TF32.

    It holds for matrix products and for cuDNN, which takes TF32 unless told otherwise.
    """
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision("high" if kind == "TF32" else "highest")
        torch.backends.cudnn.allow_tf32 = kind == "TF32"
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
