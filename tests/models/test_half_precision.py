"""Training in bfloat16 on the CPU."""

import contextlib

import pytest
import torch

V, B, T = 50, 4, 10
NO_DROPOUT = {f"dropout_{name}": 0.0 for name in ("embedding", "input", "hidden", "output", "weight")}


@pytest.fixture
def train(build_lm):
    """``train(precision, label_smoothing)``: the losses of 30 updates on the same batch."""

    def train(precision, label_smoothing):
        torch.manual_seed(0)
        sizes = dict(embed_dim=16, hidden_sizes="24 16", experts_per_layer="0 1 3", latent_dropout=0.0)
        model = build_lm("lstm_lm_doc", V, **sizes, **NO_DROPOUT)
        if precision == "bfloat16":
            model.bfloat16()
        autocast = torch.autocast("cpu", torch.bfloat16) if precision == "autocast" else contextlib.nullcontext()
        optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
        tokens, mask = torch.randint(4, V, (B, T + 1)), torch.arange(T) < torch.tensor([[T], [T], [7], [3]])
        options = dict(target=tokens[:, 1:], token_weights=mask, label_smoothing=label_smoothing)
        losses = []
        for _ in range(30):
            with autocast:
                loss, extra = model(tokens[:, :-1], **options)
            optimizer.zero_grad()
            (loss / mask.sum()).backward()
            assert loss.dtype == torch.float32 and extra["nll"].isfinite().all()
            assert all(p.grad.dtype == p.dtype and p.grad.isfinite().all() for p in model.parameters())
            optimizer.step()
            losses.append(loss.item() / mask.sum().item())
        return losses

    return train


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("precision", ["bfloat16", "autocast"])
def test_the_loss_of_a_repeated_batch_goes_down_as_in_float32(precision, label_smoothing, train):
    losses, expected = train(precision, label_smoothing), train("float32", label_smoothing)
    assert losses[-1] < losses[0] - 0.5
    assert losses == pytest.approx(expected, rel=2**-8)  # the precision of bfloat16
