"""Training and decoding in 16 bits on the CPU."""

import contextlib
from functools import lru_cache

import pytest
import torch
from builders import build_encdec, build_lm, build_tiny_transformer

V, B, T = 50, 4, 10
PAD = 1
NO_DROPOUT = {f"dropout_{name}": 0.0 for name in ("embedding", "input", "hidden", "output", "weight")}

LEARNING_RATES = {
    "language model": 3.0,
    "language model on Major-Minor LSTMs": 3.0,
    "encoder-decoder in the warm-up": 1.0,
    "encoder-decoder after it": 1.0,
    "encoder-decoder on Major-Minor LSTMs": 1.0,
    "Transformer with drill": 0.3,
    "Transformer with doc": 0.3,
}
SMOOTHED = [("language model", "bfloat16"), ("Transformer with drill", "bfloat16")]
DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "autocast to bfloat16": torch.bfloat16,
    "autocast to float16": torch.float16,
}
CASES = [  # on a CPU torch's LSTM refuses autocast to float16
    *(("language model", precision) for precision in ("bfloat16", "float16")),
    ("language model on Major-Minor LSTMs", "autocast to bfloat16"),
    ("encoder-decoder in the warm-up", "bfloat16"),
    ("encoder-decoder after it", "autocast to bfloat16"),
    ("encoder-decoder on Major-Minor LSTMs", "float16"),
    *(("Transformer with drill", precision) for precision in ("bfloat16", "float16")),
    ("Transformer with doc", "autocast to float16"),
]
DECODERS = [(name, precision) for name, precision in CASES if not name.startswith("language model")]


def build(name, init_range=0.3):
    """A DOC or DRILL model without dropout, and its inputs."""
    torch.manual_seed(0)
    tokens = torch.randint(4, V, (B, T))
    cell = "mmlstm" if name.endswith("Major-Minor LSTMs") else "lstm"
    sizes = dict(embed_dim=16, hidden_sizes="24 16", latent_dropout=0.0, rnn_cell=cell)
    if name.startswith("language model"):
        return build_lm("lstm_lm_doc", V, **sizes, **NO_DROPOUT, experts_per_layer="0 1 3"), [tokens]
    lengths, source = torch.tensor([7, 2, 1, 6]), torch.randint(4, V, (B, 7))
    source[torch.arange(7) < 7 - lengths.unsqueeze(1)] = PAD
    if name.startswith("Transformer"):
        flags = dict(source_size=V, vocab_size=V, encoder_embed_dim=16, decoder_embed_dim=16, init_range=init_range)
        if name.endswith("doc"):
            flags.update(latent_dropout=0.0, experts_per_layer="1 1 2", label_encoder="drill")
        return build_tiny_transformer(f"transformer_{name.split()[-1]}", **flags), [source, lengths, tokens]
    flags = dict(sizes, dropout=0.0, init_range=init_range, experts_per_layer="0 1 1 2", expert_warmup=100)
    model = build_encdec("lstm_encdec_doc", V, V, **flags)
    model.decoder.output.set_num_updates(0 if name.endswith("in the warm-up") else 100)
    return model, [source, lengths, tokens]


def cast(model, precision):
    """The model in 16 bits, or in 32 for autocast and "float32"."""
    return model if precision.startswith("autocast") else model.to(DTYPES.get(precision, torch.float32))


def autocast(precision):
    return torch.autocast("cpu", DTYPES[precision]) if precision.startswith("autocast") else contextlib.nullcontext()


def train(name, precision, label_smoothing):
    """The losses of 30 updates on the same batch.

    Weights are updated in 32 bits, as by fairseq: 16 would lose small updates.
    """
    model, inputs = build(name)
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    cast(model, precision)
    optimizer = torch.optim.SGD(weights, lr=LEARNING_RATES[name])
    mask = torch.arange(T) < torch.tensor([[T], [T], [7], [3]])
    options = dict(target=inputs[-1].roll(-1, 1), token_weights=mask, label_smoothing=label_smoothing)
    losses = []
    for _ in range(30):
        with autocast(precision):
            loss, extra = model(*inputs, **options)
        model.zero_grad()
        (loss / mask.sum()).backward()
        assert loss.dtype == torch.float32 and extra["scores"].nll.isfinite().all()
        assert all(p.grad.dtype == p.dtype and p.grad.isfinite().all() for p in model.parameters())
        for weight, parameter in zip(weights, model.parameters()):
            weight.grad = parameter.grad.float()
        optimizer.step()
        with torch.no_grad():
            for weight, parameter in zip(weights, model.parameters()):
                parameter.copy_(weight)
        losses.append(loss.item() / mask.sum().item())
    return losses


@lru_cache(maxsize=None)
def float32_losses(name, label_smoothing):
    return train(name, "float32", label_smoothing)


@pytest.mark.parametrize(
    "name, precision, label_smoothing",
    # a smoothed loss is formed by the output layer alone, a mixture or one softmax
    [
        *((*case, 0.1) for case in SMOOTHED),
        *(pytest.param(*case, 0.0, marks=pytest.mark.slow) for case in CASES if case not in SMOOTHED),
    ],
)
def test_the_loss_of_a_repeated_batch_goes_down_as_in_float32(name, precision, label_smoothing):
    losses = train(name, precision, label_smoothing)
    assert losses[-1] < losses[0] - 0.5
    expected = float32_losses(name, label_smoothing)
    assert losses == pytest.approx(expected, rel=torch.finfo(DTYPES[precision]).eps / 2)


@pytest.mark.parametrize("name, precision", DECODERS)
@torch.no_grad()
def test_incremental_decoding_is_the_full_forward(name, precision):
    model, (source, lengths, tokens) = build(name, init_range=0.7)
    cast(model, precision).eval()
    with autocast(precision):
        outputs = [model(source, lengths, tokens)]
        encoder_out, state = model.encoder(source, src_lengths=lengths), {}
        for t in range(T):
            outputs.append(model.decoder(tokens[:, : t + 1], encoder_out=encoder_out, incremental_state=state))
    log_probs, extras = zip(*outputs)
    eps = torch.finfo(DTYPES[precision]).eps
    assert all(x.dtype == torch.float32 for x in log_probs)
    torch.testing.assert_close(torch.cat(log_probs[1:], dim=1), log_probs[0], rtol=0, atol=12 * eps)
    if name.endswith("drill"):  # no mixture
        return
    expected, *weights = (extra["scores"].mixture_weights for extra in extras)
    torch.testing.assert_close(torch.cat(weights, dim=1), expected, rtol=0, atol=2 * eps)
    assert bool(expected[..., :2].any()) != name.endswith("in the warm-up")
