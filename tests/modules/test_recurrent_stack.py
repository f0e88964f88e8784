"""A stack of layers: its outputs and where its dropouts act; for its cells see test_cell_contract.py."""

import plain_formulas
import pytest
import torch

from fairseq_plugins.modules.dropout import MASKS
from fairseq_plugins.modules.lstm import WeightDropOptions
from fairseq_plugins.modules.recurrent_cell import CellContext
from fairseq_plugins.modules.recurrent_stack import RecurrentStack

B, T, C = 3, 8, 5
WIDTHS = [9, 8, 10]

every_masks = pytest.mark.parametrize("masks", sorted(MASKS))


@pytest.fixture
def x():
    return torch.randn(B, T, C, dtype=torch.float64)


def make(*, weight_dropout=0.0, **options):
    cell_options = WeightDropOptions(dropout_weight=weight_dropout)
    return RecurrentStack(C, WIDTHS, cell_options=cell_options, **options).double()


def run_layer(layer, x):
    """Output of one layer of an LSTM over x."""
    return layer(x, layer.initial_state(x), CellContext(stack_input=x))[0]


def is_mask(mask, rate):
    """Values 0 and 1 / (1 - rate), both of which occur."""
    values = torch.tensor([0.0, 1 / (1 - rate)], dtype=mask.dtype)
    distance = (mask.unsqueeze(-1) - values).abs()
    return bool((distance.min(dim=-1).values < 1e-9).all() and (distance < 1e-9).flatten(0, -2).any(dim=0).all())


def is_locked(mask):
    return torch.allclose(mask, mask[:, :1].expand_as(mask))


def num_masks_of_steps(mask):
    """Different ones in each row."""
    return [len({tuple(step.tolist()) for step in row.ne(0)}) for row in mask]


def has_its_kind(mask, masks):
    """Whether a mask (B, T, D) is locked or standard, and every row has one of its own."""
    kind = is_locked(mask) if masks == "locked" else min(num_masks_of_steps(mask)) > T // 2
    return kind and len({tuple(row.flatten().tolist()) for row in mask.ne(0)}) == B


def test_every_layers_output_is_returned(x):
    stack = make()
    outputs = stack(x)
    expected, layer_input = [], x
    for layer, width in zip(stack.layers, WIDTHS):
        zeros = torch.zeros(B, width, dtype=torch.float64)
        layer_input, h, c = plain_formulas.lstm(layer_input, zeros, zeros, *layer.parameters())
        expected.append((layer_input, {"h": h, "c": c}))
    torch.testing.assert_close(outputs.layers, [output for output, _ in expected], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(outputs.state, [state for _, state in expected], rtol=1e-12, atol=1e-12)
    assert torch.equal(outputs.top, outputs.layers[-1])


@every_masks
def test_a_sum_of_all_layers_has_one_dropout_and_the_layers_read_what_they_did(x, masks):
    stack = RecurrentStack(C, [9, 9, 9], hidden_dropout=0.5, output_dropout=0.4, masks=masks, skip="sum").double()
    outputs = stack(x)
    alone = [run_layer(layer, read) for layer, read in zip(stack.layers, [x, *outputs.layers[:-1]])]
    torch.testing.assert_close(outputs.top, sum(alone), rtol=1e-12, atol=1e-12)
    mask = outputs.layers[-1] / outputs.top
    assert is_mask(mask, 0.4) and has_its_kind(mask, masks)
    assert all(is_mask(after / before, 0.5) for after, before in zip(outputs.layers[:-1], alone))


def test_a_sum_of_all_layers_step_by_step(x):
    stack = RecurrentStack(C, [9, 9], skip="sum").double()
    whole, steps, state, tops = stack(x), stack.steps(x[..., :2]), stack.initial_state(x), []
    for t in range(T):
        step = steps(t, x[:, t, 2:], state)
        state = step.state
        tops.append(step.top)
    torch.testing.assert_close(torch.stack(tops, dim=1), whole.top, rtol=1e-12, atol=1e-12)
    assert not torch.equal(whole.top, run_layer(stack.layers[1], whole.layers[0]))


@pytest.mark.parametrize("widths", [[9], [9, 8], [9, 9, 8]])
def test_a_sum_of_what_cannot_be_summed_is_refused(widths):
    told = f'^--output-skip sum adds .*: --hidden-sizes "{" ".join(map(str, widths))}" has not'
    with pytest.raises(ValueError, match=told):
        RecurrentStack(C, widths, skip="sum")


def test_without_a_state_the_stack_starts_from_zeros(x):
    stack = make()
    state = stack.initial_state(x)
    assert [{name: part.shape for name, part in layer.items()} for layer in state] == [
        {"h": (B, width), "c": (B, width)} for width in WIDTHS
    ]
    assert not any(part.any() for layer in state for part in layer.values())
    assert torch.equal(stack(x, state).top, stack(x).top)


@every_masks
def test_output_dropout_acts_on_the_last_layer_and_spares_top(x, masks):
    outputs = make(output_dropout=0.4, masks=masks)(x)
    mask = outputs.layers[-1] / outputs.top
    assert is_mask(mask, 0.4) and has_its_kind(mask, masks)
    assert all((layer != 0).all() for layer in outputs.layers[:-1])


@every_masks
def test_hidden_dropout_acts_between_layers_and_the_next_layer_reads_it(x, masks):
    stack = make(hidden_dropout=0.5, masks=masks)
    outputs = stack(x)
    assert torch.equal(outputs.layers[-1], outputs.top) and (outputs.top != 0).all()
    for n in (0, 1):
        plain = run_layer(stack.layers[n], x if n == 0 else outputs.layers[n - 1])
        mask = outputs.layers[n] / plain
        assert is_mask(mask, 0.5) and has_its_kind(mask, masks)
    torch.testing.assert_close(run_layer(stack.layers[2], outputs.layers[1]), outputs.top, rtol=1e-12, atol=1e-12)


def test_masks_are_locked_unless_told_otherwise(x):
    outputs = make(output_dropout=0.5)(x)
    assert is_locked(outputs.layers[-1] / outputs.top)


@every_masks
def test_every_layer_and_every_call_has_masks_of_its_own(masks):
    torch.manual_seed(1)
    stack = RecurrentStack(16, [16, 16, 16], hidden_dropout=0.5, output_dropout=0.5, masks=masks).double()
    x = torch.randn(B, T, 16, dtype=torch.float64)
    dropped = [layer.eq(0) for _ in range(2) for layer in stack(x).layers]
    assert len({tuple(mask.flatten().tolist()) for mask in dropped}) == 6


@every_masks
def test_steps_have_the_masks_of_a_whole_run(x, masks):
    stack = make(hidden_dropout=0.5, output_dropout=0.4, masks=masks)
    steps, state, outputs = stack.steps(x[..., :2]), stack.initial_state(x), []
    for t in range(T):
        outputs.append(steps(t, x[:, t, 2:], state))
        state = outputs[-1].state
    layers = [torch.stack(steps, dim=1) for steps in zip(*(step.layers for step in outputs))]
    top = torch.stack([step.top for step in outputs], dim=1)
    mask = layers[-1] / top
    assert is_mask(mask, 0.4) and has_its_kind(mask, masks)
    below = x
    for n in (0, 1):
        plain = run_layer(stack.layers[n], below)
        mask, below = layers[n] / plain, layers[n]
        assert is_mask(mask, 0.5) and has_its_kind(mask, masks)
    torch.testing.assert_close(run_layer(stack.layers[2], below), top, rtol=1e-12, atol=1e-12)


@every_masks
def test_the_carried_state_is_not_dropped(x, masks):
    outputs = make(hidden_dropout=0.5, output_dropout=0.5, masks=masks)(x)
    assert torch.equal(outputs.state[-1]["h"], outputs.top[:, -1])
    assert all((state["h"] != 0).all() for state in outputs.state)


def test_weight_dropout_reaches_every_layer():
    assert [layer.weight_dropout for layer in make(weight_dropout=0.3).layers] == [0.3] * len(WIDTHS)


@every_masks
def test_standard_and_locked_dropout_have_the_same_rate(masks):
    stack = RecurrentStack(4, [2000], output_dropout=0.3, masks=masks)
    output = stack(torch.randn(5, 1, 4)).layers[-1]
    assert output.eq(0).double().mean().item() == pytest.approx(0.3, abs=4 * (0.21 / 10_000) ** 0.5)


def test_evaluation_has_no_dropout(x):
    stack = make(weight_dropout=0.5, hidden_dropout=0.5, output_dropout=0.5).eval()
    plain = make().eval()
    plain.load_state_dict(stack.state_dict())
    assert torch.equal(stack(x).layers[-1], plain(x).layers[-1])


def test_an_unknown_cell_is_refused():
    with pytest.raises(ValueError, match="--rnn-cell gru7.*lstm"):
        RecurrentStack(C, WIDTHS, cell="gru7")


@pytest.mark.parametrize("widths", [[], [0], [4, 0], [4, -1]])
def test_widths_below_one_are_refused(widths):
    with pytest.raises(ValueError, match="--hidden-sizes"):
        RecurrentStack(C, widths)


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_what_is_no_rate_is_refused_with_its_flag(rate):
    for flag in ("hidden", "output"):
        with pytest.raises(ValueError, match=f"--dropout-{flag} {rate}"):
            make(**{f"{flag}_dropout": rate})
