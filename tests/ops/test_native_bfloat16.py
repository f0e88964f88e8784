"""How products in bfloat16 are compared with those in float32."""

import torch

from fairseq_plugins.ops import native_bfloat16


def test_autocast_does_not_narrow_what_is_compared(monkeypatch):
    products = []

    def matmul(a, b):
        products.append(a @ b)
        return products[-1]

    monkeypatch.setattr(native_bfloat16, "matmul", matmul)
    device = torch.device("cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gain = native_bfloat16.bfloat16_gain.__wrapped__(device)
    half = len(products) // 2
    assert gain > 0 and half > 0
    assert {product.dtype for product in products[:half]} == {torch.float32}
    assert {product.dtype for product in products[half:]} == {torch.bfloat16}
