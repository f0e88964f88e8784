"""Training and decoding in bfloat16 on the CPU."""

import contextlib

import pytest
import torch

V, B, T = 50, 4, 10
PAD = 1
NO_DROPOUT = {f"dropout_{name}": 0.0 for name in ("embedding", "input", "hidden", "output", "weight")}


MODELS = ["language model", "encoder-decoder in the warm-up", "encoder-decoder after it"]


@pytest.fixture
def build(build_lm, build_encdec):
    """``build(name)``: a DOC model without dropout, and its inputs."""

    def build(name, init_range=0.3):
        torch.manual_seed(0)
        tokens = torch.randint(4, V, (B, T))
        sizes = dict(embed_dim=16, hidden_sizes="24 16", latent_dropout=0.0)
        if name == "language model":
            return build_lm("lstm_lm_doc", V, **sizes, **NO_DROPOUT, experts_per_layer="0 1 3"), [tokens]
        flags = dict(sizes, dropout=0.0, init_range=init_range, experts_per_layer="0 1 1 2", expert_warmup=100)
        model = build_encdec("lstm_encdec_doc", V, V, **flags)
        model.decoder.output.set_num_updates(100 if name.endswith("after it") else 0)
        lengths, source = torch.tensor([7, 2, 1, 6]), torch.randint(4, V, (B, 7))
        source[torch.arange(7) < 7 - lengths.unsqueeze(1)] = PAD
        return model, [source, lengths, tokens]

    return build


def autocast(precision):
    return torch.autocast("cpu", torch.bfloat16) if precision == "autocast" else contextlib.nullcontext()


@pytest.fixture
def train(build):
    """``train(name, precision, label_smoothing)``: the losses of 30 updates on the same batch."""

    def train(name, precision, label_smoothing):
        model, inputs = build(name)
        if precision == "bfloat16":
            model.bfloat16()
        optimizer = torch.optim.SGD(model.parameters(), lr=3.0 if name == "language model" else 1.0)
        mask = torch.arange(T) < torch.tensor([[T], [T], [7], [3]])
        options = dict(target=inputs[-1].roll(-1, 1), token_weights=mask, label_smoothing=label_smoothing)
        losses = []
        for _ in range(30):
            with autocast(precision):
                loss, extra = model(*inputs, **options)
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
@pytest.mark.parametrize("name", MODELS)
def test_the_loss_of_a_repeated_batch_goes_down_as_in_float32(name, precision, label_smoothing, train):
    losses, expected = (train(name, kind, label_smoothing) for kind in (precision, "float32"))
    assert losses[-1] < losses[0] - 0.5
    assert losses == pytest.approx(expected, rel=2**-8)  # the precision of bfloat16


@pytest.mark.parametrize("precision", ["bfloat16", "autocast"])
@pytest.mark.parametrize("name", MODELS[1:])
@torch.no_grad()
def test_incremental_decoding_is_the_full_forward(name, precision, build):
    model, (source, lengths, tokens) = build(name, init_range=0.7)
    model.eval()
    if precision == "bfloat16":
        model.bfloat16()
    with autocast(precision):
        full, full_extra = model(source, lengths, tokens)
        encoder_out, state, steps = model.encoder(source, src_lengths=lengths), {}, []
        for t in range(T):
            steps.append(model.decoder(tokens[:, : t + 1], encoder_out=encoder_out, incremental_state=state))
    log_probs = torch.cat([step for step, _ in steps], dim=1)
    weights = torch.cat([extra["mixture_weights"] for _, extra in steps], dim=1)
    assert full.dtype == log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs, full, rtol=0, atol=0.1)
    torch.testing.assert_close(weights, full_extra["mixture_weights"], rtol=0, atol=0.02)
    assert bool(weights[..., :2].any()) == name.endswith("after it")
