"""Mogrifier LSTM against the equations of Melis et al. 2020, with its mask taken from the seed."""

from argparse import Namespace

import plain_formulas
import pytest
import torch
from cell_cases import assert_as_by_hand, drawn_mask, run, run_steps

from fairseq_plugins.modules.cell import RECURRENT_CELLS
from fairseq_plugins.modules.mogrifier_lstm import MogrifierLSTM, MogrifierOptions, MogrifierRound

B, T, C, D = 4, 6, 5, 7
RATE = 0.4

every_size = pytest.mark.parametrize("rounds, rank", [(0, 0), (1, 0), (2, 3), (5, 0), (5, 3), (6, 2)])


@pytest.fixture
def x():
    return torch.randn(B, T, C, dtype=torch.float64)


@pytest.fixture
def state():
    return dict(zip("hc", torch.randn(2, B, D, dtype=torch.float64)))


def make(rounds=5, rank=3, rate=RATE):
    options = MogrifierOptions(dropout_recurrent=rate, mogrifier_rounds=rounds, mogrifier_rank=rank)
    layer = MogrifierLSTM(C, D, options=options).double()
    with torch.no_grad():
        for param in layer.parameters():
            param.uniform_(-0.9, 0.9)
    return layer


def full_matrix(mogrifier):
    """Q of a round."""
    first, *others = (factor.weight for factor in mogrifier.factors)
    return others[0] @ first if others else first


def by_hand(layer, x, state, mask):
    rounds = [(full_matrix(mogrifier), mogrifier.factors[-1].bias) for mogrifier in layer.rounds]
    weights = layer.input.weight, layer.recurrent.weight, layer.input.bias
    output, h, c = plain_formulas.mogrifier(x, state["h"], state["c"], rounds, *weights, mask=mask)
    return output, {"h": h, "c": c}


@every_size
@pytest.mark.parametrize("num_known", [None, 0, 2, C])
def test_values_and_gradients_are_those_of_the_equations(rounds, rank, num_known, x, state):
    layer, mask = make(rounds, rank), drawn_mask(5, (B, D), rate=RATE)
    assert_as_by_hand(layer, x, state, lambda: by_hand(layer, x, state, mask), num_known=num_known)


@pytest.mark.parametrize("rate, training", [(RATE, False), (0.0, True)])
def test_evaluation_and_rate_zero_have_no_mask(rate, training, x, state):
    layer = make(rate=rate).train(training)
    torch.testing.assert_close(run(layer, x, state), by_hand(layer, x, state, 1.0), rtol=1e-12, atol=1e-12)


def test_leading_padding_goes_with_the_mask(x):
    layer, lengths, mask = make(), [T, 2, 0, 5], drawn_mask(5, (B, D), rate=RATE)
    padding = torch.arange(T) < T - torch.tensor(lengths).unsqueeze(1)
    torch.manual_seed(5)
    output, state = run(layer, x, layer.initial_state(x), leading_padding=padding)
    assert not output[padding].any() and not state["h"][2].any() and not state["c"][2].any()
    for row, length in enumerate(lengths):
        if length:
            rows, zeros = slice(row, row + 1), dict(zip("hc", torch.zeros(2, 1, D, dtype=torch.float64)))
            expected = by_hand(layer, x[rows, T - length :], zeros, mask[rows])
            found = output[rows, T - length :], {name: part[rows] for name, part in state.items()}
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_what_enters_a_cell_is_bounded_by_the_cap(x):
    """|c| <= f |c'| + i with i <= 1 - f, so no cell ever leaves [-1, 1]."""
    layer, zeros = make(rate=0.0), dict(zip("hc", torch.zeros(2, B, D, dtype=torch.float64)))
    with torch.no_grad():
        layer.input.weight *= 100
        for _ in range(20):
            _, zeros = run(layer, x, zeros)
    assert zeros["c"].abs().max() <= 1


# rounds and the mask, read from what they are given


def read_of_steps(layer, x, state, monkeypatch):
    """What is gated and what is read in every round, and results, in the order of the calls."""
    calls, gate = [], MogrifierRound.gate

    def spy(products, t, y, z):
        calls.append((y, z, gate(products, t, y, z)))
        return calls[-1][-1]

    with monkeypatch.context() as patch:
        patch.setattr(MogrifierRound, "gate", staticmethod(spy))
        run_steps(layer, x, state, C)
    return calls


def test_input_and_state_gate_each_other_by_turns(x, state, monkeypatch):
    calls = read_of_steps(make(), x, state, monkeypatch)
    assert len(calls) == 5 * T
    for t in range(T):
        first, second, third, fourth, fifth = calls[5 * t : 5 * t + 5]
        assert first[0] is not None and torch.equal(first[0], x[:, t])
        assert second[0] is first[1] and second[1] is first[2]
        assert third[0] is first[2] and third[1] is second[2]
        assert fourth[0] is second[2] and fourth[1] is third[2]
        assert fifth[0] is third[2] and fifth[1] is fourth[2]
        assert all(((y == 0) | ((new / y > 0) & (new / y < 2))).all() for y, _, new in (first, second, third))


def test_one_mask_serves_all_steps_of_a_window_and_each_row_has_its_own(x, state, monkeypatch):
    layer = make()
    windows = [read_of_steps(layer, x, state, monkeypatch) for _ in range(3)]
    masks = [torch.stack([z.ne(0) for _, z, _ in calls[::5]]) for calls in windows]
    for kept in masks:
        assert kept.shape == (T, B, D) and torch.equal(kept, kept[:1].expand_as(kept))
        assert len({tuple(row.tolist()) for row in kept[0]}) == B
    assert len({tuple(kept[0].flatten().tolist()) for kept in masks}) == 3


def test_the_carried_state_is_not_masked(x, state):
    output, new_state = run(make(rate=0.9), x, state)
    assert torch.equal(new_state["h"], output[:, -1]) and (output != 0).all() and (new_state["c"] != 0).all()


# parameters


@pytest.mark.parametrize("rank", [0, 3])
def test_parameters(rank):
    layer = make(5, rank)
    matrices = 5 * (rank * (C + D) if rank else C * D)
    expected = 4 * D * (C + D + 1) + matrices + 3 * C + 2 * D
    assert sum(param.numel() for param in layer.parameters()) == expected


def test_rounds_start_without_biases():
    layer = MogrifierLSTM(C, D, options=MogrifierOptions(mogrifier_rank=3))
    assert not any(mogrifier.factors[-1].bias.any() for mogrifier in layer.rounds)
    assert all(factor.weight.any() for mogrifier in layer.rounds for factor in mogrifier.factors)


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"rounds": -1}, "--mogrifier-rounds -1: give 0 or more"),
        ({"rank": -2}, "--mogrifier-rank -2: give 0 or more"),
        ({"rate": 1.5}, "--dropout-recurrent 1.5"),
    ],
)
def test_what_does_not_fit_is_refused(flags, message):
    with pytest.raises(ValueError, match=message):
        make(**flags)


def test_a_rank_is_that_of_rounds():
    args = Namespace(rnn_cell="mogrifier", mogrifier_rank=3)
    assert RECURRENT_CELLS.read_options(args).mogrifier_rank == 3
    args.mogrifier_rounds = 0
    with pytest.raises(
        ValueError, match="^--mogrifier-rank has no effect .*: leave it out, or give --mogrifier-rounds"
    ):
        RECURRENT_CELLS.read_options(args)
