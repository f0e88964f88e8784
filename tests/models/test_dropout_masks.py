"""Masks of language models, counted over windows: fixed over a window where the papers say so, else fresh at a step.

Zaremba et al. 2015 drop every step anew and never the recurrent connections. Gal & Ghahramani 2016 draw four kinds of
mask once a window and row, and Zilly et al. 2017 follow them. The program of Melis et al. 2020 has such a mask of the
state alone.
"""

import pytest
import torch
from builders import build_lm

from fairseq_plugins.modules.layers import BroadcastDropout

V, B, T, D = 12, 6, 20, 24
TWO_LAYERS = dict(embed_dim=D, hidden_sizes=f"{D} {D}")
SIZES = {
    "lstm_lm_zaremba_medium": TWO_LAYERS,
    "lstm_lm_variational_medium": TWO_LAYERS,
    "rhn_lm_ptb": dict(embed_dim=D, hidden_sizes=f"{D}"),
    "mogrifier_lm_ptb": dict(**TWO_LAYERS, mogrifier_rank=3),
}
RATES = {  # of words, of the input and what each layer gives, recurrent
    "lstm_lm_zaremba_medium": (0, (0.5, 0.5, 0.5), None),
    "lstm_lm_variational_medium": (0.2, (0.35, 0.35, 0.35), 0.2),
    "rhn_lm_ptb": (0.25, (0.75, 0.75), 0.25),
    "mogrifier_lm_ptb": (0, (0.729, 0.291, 0.716), 0.387),
}
FRESH_AT_EVERY_STEP = ("lstm_lm_zaremba_medium", "mogrifier_lm_ptb")

every_arch = pytest.mark.parametrize("arch", list(SIZES))


@pytest.fixture
def tokens():
    return torch.randint(4, V, (B, T))


def read(model, tokens, monkeypatch, *, position=0):
    """Factors of a window, of words (B, T) and by place (B, T, D); recurrent ones as drawn, (B, D) a layer."""
    decoder, looked_up, outputs, recurrent, draw = model.decoder, [], [], [], BroadcastDropout.mask
    dropouts = [getattr(layer, "recurrent_dropout", None) for layer in decoder.stack.layers]

    def spy(self, like, size):
        mask = draw(self, like, size)
        if self in dropouts:
            recurrent.append(mask)
        return mask

    hooks = [decoder.embedding.register_forward_hook(lambda _, __, vectors: looked_up.append(vectors))]
    hooks += [
        layer.register_forward_hook(lambda _, __, result: outputs.append(result[0])) for layer in decoder.stack.layers
    ]
    with monkeypatch.context() as patch:
        patch.setattr(BroadcastDropout, "mask", spy)
        states = model(tokens, stream="train", position=position)[1]["states"]
    embedded, *layers = states.layers
    for hook in hooks:
        hook.remove()
    words = (looked_up[0] / decoder.embedding.weight[tokens])[..., 0]
    masks = [torch.where(words.ne(0).unsqueeze(-1), embedded / looked_up[0], torch.nan)]
    masks += [after / before for after, before in zip(layers, [*outputs[:-1], states.top])]
    return words, masks, recurrent


def assert_values(mask, rate):
    """Of a mask: 0 and 1 / (1 - rate)."""
    values, found = torch.tensor([0, 1 / (1 - rate)], dtype=torch.float64), mask[mask.isfinite()]
    assert ((found.unsqueeze(-1) - values).abs().min(-1).values < 1e-9).all()


@every_arch
def test_every_row_and_place_has_masks_of_its_own(arch, tokens, monkeypatch):
    model = build_lm(arch, V, **SIZES[arch]).double()
    words, masks, recurrent = read(model, tokens, monkeypatch)
    word_rate, rates, recurrent_rate = RATES[arch]
    assert_values(words, word_rate)
    assert len(masks) == len(rates) and len(recurrent) == (len(rates) - 1 if recurrent_rate else 0)
    drawn = []
    for mask, rate in zip(masks, rates):
        assert_values(mask, rate)
        for row in mask:
            steps = {tuple(step.ne(0).tolist()) for step in row if step.isfinite().all()}
            assert len(steps) == (T if arch in FRESH_AT_EVERY_STEP else 1)
            drawn += steps
    for mask in recurrent:
        assert mask.shape == (B, D)
        assert_values(mask, recurrent_rate)
        drawn += [tuple(row.ne(0).tolist()) for row in mask]
    assert len(set(drawn)) == len(drawn)  # each place and row has its own
    if recurrent_rate is None:
        assert all(torch.equal(layer.hidden_weight(), layer.weight_hh_l0) for layer in model.decoder.stack.layers)


@every_arch
def test_every_window_of_a_stream_draws_fresh_masks_and_evaluation_none(arch, tokens, monkeypatch):
    model = build_lm(arch, V, **SIZES[arch]).double()
    windows = [read(model, tokens, monkeypatch, position=n * T) for n in range(3)]
    for places in zip(*([*masks, *recurrent] for _, masks, recurrent in windows)):
        assert len({tuple(mask.nan_to_num(2).ne(0).flatten().tolist()) for mask in places}) == 3
    words, masks, recurrent = read(model.eval(), tokens, monkeypatch)
    assert (words == 1).all() and all((mask == 1).all() for mask in masks)
    assert not any(mask is not None for mask in recurrent)
