"""Exponential moving averages of weights that several parts share."""

import copy

import pytest
import torch
from builders import build_tiny_encdec, build_tiny_gated_lm, build_tiny_lm, build_tiny_transformer, tiny_base_flags
from fairseq.dataclass.configs import EMAConfig
from fairseq.models.ema.ema import EMA

DECAY = 0.9
MODELS = {
    "tied language model": lambda: build_tiny_lm("tied"),
    "language model": lambda: build_tiny_lm("full"),
    "one matrix of an encoder-decoder": lambda: build_tiny_encdec("tied", share_embeddings="output"),
    "Transformer": lambda: build_tiny_transformer("transformer_drill"),
    "gate on a tied model": lambda: build_tiny_gated_lm(tiny_base_flags("tied")),
}


def average(model, *, fp32):
    """The host's average after two updates, each of which adds one to all weights."""
    ema = EMA(model, EMAConfig(store_ema=True, ema_decay=DECAY, ema_fp32=fp32))
    for _ in range(2):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 1
        ema.step(model)
    return ema


@pytest.mark.parametrize("fp32", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_every_weight_decays_once_an_update(name, fp32):
    model = MODELS[name]()
    before = copy.deepcopy(model.state_dict())
    ema = average(model, fp32=fp32)
    moved = (1 - DECAY) * 2 + DECAY * (1 - DECAY)
    for key, _ in model.named_parameters(remove_duplicate=False):
        torch.testing.assert_close(ema.get_model().state_dict()[key], before[key] + moved)
    for key, weight in ema.fp32_params.items():
        torch.testing.assert_close(weight, ema.get_model().state_dict()[key].float())


def test_the_average_in_32_bits_is_that_of_a_model_in_16():
    model = build_tiny_lm("tied").half()
    before = copy.deepcopy(model.state_dict())
    ema = average(model, fp32=True)
    for name in ("decoder.embedding.weight", "decoder.output.projection.weight"):
        change = ema.fp32_params[name] - before[name].float()
        torch.testing.assert_close(change, torch.full_like(change, 0.29), rtol=0, atol=2e-3)
    restored = EMA(model, EMAConfig(store_ema=True, ema_decay=DECAY, ema_fp32=True))
    restored.restore(ema.fp32_params, build_fp32_params=True)
    for name, weight in restored.get_model().state_dict().items():
        assert torch.equal(weight, ema.get_model().state_dict()[name]), name


def test_columns_keep_their_length():
    model = build_tiny_lm("full", column_norm=3.0, hidden_sizes="8", embed_dim=8)
    ema = average(model, fp32=False)
    for weight in ema.get_model().column_norm.weights:
        torch.testing.assert_close(weight.norm(dim=0), torch.full((weight.size(1),), 3.0))
    held = {id(weight) for weight in ema.get_model().column_norm.weights}
    assert held <= {id(parameter) for parameter in ema.get_model().parameters()} and len(held) == 2


def test_the_host_alone_decays_a_shared_matrix_twice(monkeypatch):
    monkeypatch.setattr(EMA, "_step_internal", EMA._step_internal.__wrapped__)
    model = build_tiny_lm("tied")
    before = model.decoder.embedding.weight.detach().clone()
    moved = average(model, fp32=False).get_model().decoder.embedding.weight - before
    assert moved.min() > 0.29 + 0.1
