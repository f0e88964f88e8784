"""Masks of the base language models, counted: fixed over a window where the papers say so, fresh where they say so.

Zaremba et al. 2014 drop every step anew and never the recurrent connections; Gal & Ghahramani 2016 draw four kinds of
mask once a window and row.
"""

from dataclasses import dataclass
from typing import Dict

import pytest
import torch
from builders import build_lm
from torch import Tensor

from fairseq_plugins.modules.cell import RecurrentCell
from fairseq_plugins.modules.lstm import LSTMLayer, VariationalLSTM

V, B, T, D = 12, 6, 20, 24
BASES = [f"{family}_{size}" for family in ("zaremba", "variational") for size in ("medium", "large")]
VARIATIONAL = [base for base in BASES if base.startswith("variational")]
RATES = {  # word, input, recurrent, output
    "zaremba_medium": (0, 0.5, 0, 0.5),
    "zaremba_large": (0, 0.65, 0, 0.65),
    "variational_medium": (0.2, 0.35, 0.2, 0.35),
    "variational_large": (0.3, 0.5, 0.3, 0.5),
}
INPUTS = ["input of layer 0", "input of layer 1"]
EVERYWHERE = [*INPUTS, "output"]


@dataclass
class Window:
    """What a window multiplied by.

    Attributes:
        words: factor of the embedding at each place, (B, T).
        masks: by place, (B, T, D).
        hidden: factors that the recurrent matrix of each layer saw, (B, T - 1, D).
    """

    words: Tensor
    masks: Dict[str, Tensor]
    hidden: Dict[str, Tensor]


@pytest.fixture
def build():
    return lambda base: build_lm(f"lstm_lm_{base}", V, embed_dim=D, hidden_sizes=f"{D} {D}").double()


def read(model, tokens, monkeypatch, **options) -> Window:
    """Run a window, and divide what each place received by what came before it."""
    decoder, read_by, looked_up, gates = model.decoder, {}, [], LSTMLayer.gates

    def spy(self, prepared, t, late, h):
        read_by.setdefault(self, []).append(h)
        return gates(self, prepared, t, late, h)

    hook = decoder.embedding.register_forward_hook(lambda _, __, vectors: looked_up.append(vectors))
    outputs = []
    hooks = [hook] + [
        layer.register_forward_hook(lambda _, __, result: outputs.append(result[0])) for layer in decoder.stack.layers
    ]
    with monkeypatch.context() as patch:
        patch.setattr(LSTMLayer, "gates", spy)
        # step by step, which test_cell_contract.py holds to be the same
        patch.setattr(VariationalLSTM, "forward", RecurrentCell.forward)
        states = model(tokens, **options)[1]["states"]
    for hook in hooks:
        hook.remove()
    embedded, first, last = states.layers
    word_factors = looked_up[0] / decoder.embedding.weight[tokens]
    assert torch.allclose(word_factors, word_factors[..., :1].expand_as(word_factors))
    words = word_factors[..., 0]
    present = words.ne(0)
    inputs = torch.where(present.unsqueeze(-1), embedded / looked_up[0], torch.nan)
    masks = dict(zip(EVERYWHERE, (inputs, first / outputs[0], last / outputs[1])))
    hidden = {
        f"hidden of layer {n}": torch.stack(read_by[layer][1:], dim=1) / outputs[n][:, :-1]
        for n, layer in enumerate(decoder.stack.layers)
        if layer in read_by
    }
    return Window(words, masks, hidden)


def assert_values(mask, rate):
    """Of a mask: 0 and 1 / (1 - rate)."""
    values = torch.tensor([0, 1 / (1 - rate)], dtype=torch.float64)
    assert ((mask[mask.isfinite()].unsqueeze(-1) - values).abs().min(-1).values < 1e-9).all()


def num_masks(mask):
    """Different ones of the steps of each row (B, T, D); places without a word count for none."""
    return [len({tuple(step.ne(0).tolist()) for step in row if step.isfinite().all()}) for row in mask]


@pytest.fixture
def tokens():
    return torch.randint(4, V, (B, T))


@pytest.mark.parametrize("base", ["zaremba_medium", "zaremba_large"])
def test_zaremba_draws_every_mask_anew_at_every_step(base, build, tokens, monkeypatch):
    window, (_, rate, _, _) = read(build(base), tokens, monkeypatch), RATES[base]
    for place, mask in window.masks.items():
        assert_values(mask, rate)
        assert num_masks(mask) == [T] * B, place
        assert len({tuple(step.ne(0).tolist()) for step in mask.flatten(0, 1)}) == B * T
        n = mask.numel()
        assert mask.eq(0).double().mean().item() == pytest.approx(rate, abs=5 * (rate * (1 - rate) / n) ** 0.5)


@pytest.mark.parametrize("base", ["zaremba_medium", "zaremba_large"])
def test_zaremba_drops_neither_words_nor_recurrent_connections(base, build, tokens, monkeypatch):
    model = build(base)
    window = read(model, tokens, monkeypatch)
    assert (window.words == 1).all() and window.hidden == {}
    for layer in model.decoder.stack.layers:
        assert torch.equal(layer.hidden_weight(), layer.weight_hh_l0)


@pytest.mark.parametrize("base", VARIATIONAL)
def test_variational_masks_are_one_a_row_in_a_window(base, build, tokens, monkeypatch):
    model, (_, rate, recurrent_rate, _) = build(base), RATES[base]
    window = read(model, tokens, monkeypatch)
    assert list(window.hidden) == ["hidden of layer 0", "hidden of layer 1"]
    drawn = []
    for masks, masks_rate in ((window.masks, rate), (window.hidden, recurrent_rate)):
        for place, mask in masks.items():
            assert_values(mask, masks_rate)
            assert num_masks(mask) == [1] * B, place
            drawn += [row.ne(0)[row.isfinite().all(dim=-1)][0] for row in mask]
    assert len({tuple(mask.tolist()) for mask in drawn}) == len(drawn) == 5 * B  # each place and row has its own


@pytest.mark.parametrize("base", VARIATIONAL)
def test_variational_words_are_dropped_by_type_and_row(base, build, monkeypatch):
    tokens, (rate, _, _, _) = torch.randint(4, V, (60, T)), RATES[base]
    window = read(build(base), tokens, monkeypatch)
    assert_values(window.words, rate)
    factors_of_rows = {word: set() for word in range(4, V)}
    for row, factors in zip(tokens, window.words):
        for word in set(row.tolist()):
            (factor,) = factors[row == word].ne(0).unique().tolist()  # one at all places of the row
            factors_of_rows[word].add(factor)
    assert all(len(factors) == 2 for factors in factors_of_rows.values())  # each is dropped in some rows only
    n = sum(len(set(row.tolist())) for row in tokens)
    dropped = sum(len(set(row[gone].tolist())) for row, gone in zip(tokens, window.words.eq(0)))
    assert dropped / n == pytest.approx(rate, abs=5 * (rate * (1 - rate) / n) ** 0.5)


@pytest.mark.parametrize("base", VARIATIONAL)
def test_variational_rates(base, build, monkeypatch):
    model, rates = build(base), RATES[base]
    windows = [read(model, torch.randint(4, V, (40, 2)), monkeypatch) for _ in range(5)]
    found = {
        rates[1]: torch.cat([window.masks[place][:, 0] for window in windows for place in EVERYWHERE]),
        rates[2]: torch.cat([mask[:, 0] for window in windows for mask in window.hidden.values()]),
    }
    for rate, masks in found.items():
        masks = masks[masks.isfinite()]
        error = 5 * (rate * (1 - rate) / masks.numel()) ** 0.5
        assert masks.eq(0).double().mean().item() == pytest.approx(rate, abs=error)


@pytest.mark.parametrize("base", BASES)
def test_every_window_of_a_stream_draws_fresh_masks(base, build, tokens, monkeypatch):
    model = build(base)
    windows = [read(model, tokens, monkeypatch, stream="train", position=n * T) for n in range(3)]
    for place in EVERYWHERE:
        # the first step with a word in the first two windows; the last layers have one everywhere
        drawn = [tuple(window.masks[place].nan_to_num(2).ne(0).flatten().tolist()) for window in windows]
        assert len(set(drawn)) == 3, place
    for layer in windows[0].hidden:
        assert len({tuple(window.hidden[layer].ne(0).flatten().tolist()) for window in windows}) == 3
    if base in VARIATIONAL:
        assert len({tuple(window.words.flatten().tolist()) for window in windows}) == 3


@pytest.mark.parametrize("base", BASES)
def test_evaluation_has_no_masks(base, build, tokens, monkeypatch):
    model = build(base).eval()
    window = read(model, tokens, monkeypatch)
    assert (window.words == 1).all()
    assert all((mask == 1).all() for mask in [*window.masks.values(), *window.hidden.values()])
    assert torch.equal(model(tokens)[0], model(tokens)[0])
