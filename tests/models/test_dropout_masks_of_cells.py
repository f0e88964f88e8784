"""Masks of recurrent highway networks and Mogrifier LSTMs in their language models, counted over windows.

Zilly et al. 2017 take the masks of Gal & Ghahramani 2016: one a window and row at every place. The program of Melis et
al. 2020 has such a mask of the state alone; those of the input, between the layers and of the output are fresh at every
step.
"""

import pytest
import torch
from builders import build_lm

from fairseq_plugins.modules.cell import RecurrentCell
from fairseq_plugins.modules.lstm import RecurrentDropout

V, B, T, D = 12, 6, 20, 24
SIZES = {
    "rhn_lm_ptb": dict(embed_dim=D, hidden_sizes=f"{D}"),
    "mogrifier_lm_ptb": dict(embed_dim=D, hidden_sizes=f"{D} {D}", mogrifier_rank=3),
}
RATES = {  # words, input, between layers, output, recurrent
    "rhn_lm_ptb": (0.25, 0.75, None, 0.75, 0.25),
    "mogrifier_lm_ptb": (0, 0.729, 0.291, 0.716, 0.387),
}

MASKS_IN_A_WINDOW = {"rhn_lm_ptb": 1, "mogrifier_lm_ptb": T}

every_arch = pytest.mark.parametrize("arch", list(SIZES))


@pytest.fixture
def tokens():
    return torch.randint(4, V, (B, T))


def read(model, tokens, monkeypatch, *, stream="train", position=0):
    """Factors of a window, of words (B, T) and by place (B, T, D); recurrent ones as drawn, (B, D) a layer."""
    decoder, looked_up, outputs, recurrent, draw = model.decoder, [], [], [], RecurrentDropout.draw

    def spy(self, x, width):
        recurrent.append(draw(self, x, width))
        return recurrent[-1]

    hooks = [decoder.embedding.register_forward_hook(lambda _, __, vectors: looked_up.append(vectors))]
    hooks += [
        layer.register_forward_hook(lambda _, __, result: outputs.append(result[0])) for layer in decoder.stack.layers
    ]
    with monkeypatch.context() as patch:
        patch.setattr(RecurrentDropout, "draw", spy)
        states = model(tokens, stream=stream, position=position)[1]["states"]
    embedded, *layers = states.layers
    for hook in hooks:
        hook.remove()
    words = (looked_up[0] / decoder.embedding.weight[tokens])[..., 0]
    masks = [torch.where(words.ne(0).unsqueeze(-1), embedded / looked_up[0], torch.nan)]
    masks += [after / before for after, before in zip(layers, [*outputs[:-1], states.top])]
    return words, masks, recurrent


def assert_values(mask, rate):
    values = torch.tensor([0, 1 / (1 - rate)], dtype=torch.float64)
    assert ((mask[mask.isfinite()].unsqueeze(-1) - values).abs().min(-1).values < 1e-9).all()


@every_arch
def test_every_row_and_place_has_masks_of_its_own(arch, tokens, monkeypatch):
    model = build_lm(arch, V, **SIZES[arch]).double()
    words, masks, recurrent = read(model, tokens, monkeypatch)
    word_rate, *rates, recurrent_rate = RATES[arch]
    assert_values(words, word_rate)
    rates = [rate for rate in rates if rate is not None]
    assert len(masks) == len(rates) and len(recurrent) == len(model.decoder.stack.layers)
    drawn = []
    for mask, rate in zip(masks, rates):
        assert_values(mask, rate)
        for row in mask:
            steps = {tuple(step.ne(0).tolist()) for step in row if step.isfinite().all()}
            assert len(steps) == MASKS_IN_A_WINDOW[arch]
            drawn += steps
    for mask in recurrent:
        assert mask.shape == (B, D)
        assert_values(mask, recurrent_rate)
        drawn += [tuple(row.ne(0).tolist()) for row in mask]
    assert len(set(drawn)) == len(drawn)  # each place and row has its own


@every_arch
def test_every_window_of_a_stream_draws_fresh_masks(arch, tokens, monkeypatch):
    model = build_lm(arch, V, **SIZES[arch]).double()
    windows = [read(model, tokens, monkeypatch, position=n * T) for n in range(3)]
    for places in zip(*(masks for _, masks, _ in windows)):
        assert len({tuple(mask.nan_to_num(2).ne(0).flatten().tolist()) for mask in places}) == 3
    for places in zip(*(recurrent for _, _, recurrent in windows)):
        assert len({tuple(mask.flatten().tolist()) for mask in places}) == 3


@every_arch
def test_evaluation_has_no_masks(arch, tokens, monkeypatch):
    model = build_lm(arch, V, **SIZES[arch]).double().eval()
    words, masks, recurrent = read(model, tokens, monkeypatch)
    assert (words == 1).all() and all((mask == 1).all() for mask in masks)
    assert recurrent == [None] * len(model.decoder.stack.layers)


@every_arch
def test_one_drawing_serves_a_whole_window(arch, tokens, monkeypatch):
    """The mask is drawn once, whether the run is the cell's own or step by step."""
    model = build_lm(arch, V, **SIZES[arch]).double()
    for layer in model.decoder.stack.layers:
        layer_class = type(layer)
        monkeypatch.setattr(layer_class, "forward", RecurrentCell.forward)
    assert len(read(model, tokens, monkeypatch)[2]) == len(model.decoder.stack.layers)
