"""A stack of layers: its outputs and where its dropouts act; for its cells see cell_contract.py."""

import plain_formulas
import pytest
import torch
from builders import randomise
from cell_contract import loss

from fairseq_plugins.modules.cell import CellContext, select_rows
from fairseq_plugins.modules.layers import MASKS
from fairseq_plugins.modules.stack import MERGES, EncoderStack, RecurrentStack

B, T, C = 3, 8, 5
WIDTHS = [9, 8, 10]

every_masks = pytest.mark.parametrize("masks", sorted(MASKS))


@pytest.fixture
def x():
    return torch.randn(B, T, C, dtype=torch.float64)


def make(**options):
    return RecurrentStack(C, WIDTHS, **options).double()


def run_layer(layer, x):
    """Output of one layer of an LSTM over x."""
    return layer(x, layer.initial_state(x), CellContext(stack_input=x))[0]


def is_mask(mask, rate):
    """Values 0 and 1 / (1 - rate), both of which occur."""
    values = torch.tensor([0.0, 1 / (1 - rate)], dtype=mask.dtype)
    distance = (mask.unsqueeze(-1) - values).abs()
    return bool((distance.min(dim=-1).values < 1e-9).all() and (distance < 1e-9).flatten(0, -2).any(dim=0).all())


def has_its_kind(mask, masks):
    """Whether a mask (B, T, D) is locked or standard, and every row has one of its own."""
    num_of_rows = [len(row.ne(0).unique(dim=0)) for row in mask]  # over the steps
    kind = max(num_of_rows) == 1 if masks == "locked" else min(num_of_rows) > T // 2
    return kind and len(mask.ne(0).unique(dim=0)) == B


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


@pytest.mark.parametrize("widths", [[9], [9, 8], [9, 9, 8]])
def test_a_sum_of_what_cannot_be_summed_is_refused(widths):
    message = f'^--output-skip sum needs .* of equal width: change --hidden-sizes "{" ".join(map(str, widths))}"'
    with pytest.raises(ValueError, match=message):
        RecurrentStack(C, widths, skip="sum")


def whole_run(stack, x):
    outputs = stack(x)
    return outputs.layers, outputs.top


def step_by_step(stack, x):
    steps, state, outputs = stack.steps(x[..., :2]), stack.initial_state(x), []
    for t in range(T):
        outputs.append(steps(t, x[:, t, 2:], state))
        state = outputs[-1].state
    *lower, last = (torch.stack(each, dim=1) for each in zip(*(step.layers for step in outputs)))
    return [*lower, stack.dropouts[-1](last)], torch.stack([step.top for step in outputs], dim=1)


@every_masks
@pytest.mark.parametrize("run", [whole_run, step_by_step])
def test_dropout_acts_between_layers_where_the_next_reads_it_and_on_the_last_one_but_not_on_top(x, masks, run):
    stack = make(hidden_dropout=0.5, output_dropout=0.4, masks=masks)
    layers, top = run(stack, x)
    mask = layers[-1] / top
    assert is_mask(mask, 0.4) and has_its_kind(mask, masks) and (top != 0).all()
    below = x
    for n in (0, 1):
        plain = run_layer(stack.layers[n], below)
        mask, below = layers[n] / plain, layers[n]
        assert is_mask(mask, 0.5) and has_its_kind(mask, masks)
    torch.testing.assert_close(run_layer(stack.layers[2], layers[1]), top, rtol=1e-12, atol=1e-12)


ENCODER_WIDTHS = [7, 6, 8]
LENGTHS = [6, 1, 3, 5]
ENCODER_B, S = len(LENGTHS), 8

every_merge = pytest.mark.parametrize("merge", MERGES)

PLACES = {
    "left": lambda length: S - length,
    "right": lambda length: 0,
    "mixed": lambda length: (S - length) // 2,
}


def make_encoder(merge, *, widths=ENCODER_WIDTHS, hidden_dropout=0.0, cell="lstm", num_directions=2):
    options = dict(cell=cell, hidden_dropout=hidden_dropout, masks="standard")
    stack = EncoderStack([RecurrentStack(C, widths, **options) for _ in range(num_directions)], merge=merge)
    return randomise(stack, 0.7).double()


@pytest.fixture
def sentences():
    return [torch.randn(1, length, C, dtype=torch.float64) for length in LENGTHS]


def batch(sentences, place):
    """Sentences in one batch, with garbage at padding, and where padding is."""
    x = 10 * torch.randn(ENCODER_B, S, C, dtype=torch.float64)
    padding = torch.ones(ENCODER_B, S, dtype=torch.bool)
    for row, sentence in enumerate(sentences):
        start = PLACES[place](sentence.size(1))
        x[row, start : start + sentence.size(1)] = sentence
        padding[row, start : start + sentence.size(1)] = False
    return x, padding


@pytest.mark.parametrize(
    "cell, place, widths, merge",
    [
        *(("lstm", place, [6], "top") for place in PLACES),
        *((cell, "mixed", ENCODER_WIDTHS, "top") for cell in ("lstm", "mmlstm")),
        *((cell, "mixed", ENCODER_WIDTHS, "layer") for cell in sorted(plain_formulas.CELLS)),
    ],
)
def test_annotations_state_and_gradients_are_those_of_each_sentence_alone(sentences, merge, place, widths, cell):
    stack = make_encoder(merge, widths=widths, cell=cell)
    x, padding = batch(sentences, place)
    annotations, state = stack(x.requires_grad_(), padding)
    assert annotations.shape == (ENCODER_B, S, widths[-1]) and len(state) == len(widths)
    assert not annotations[padding].any()
    total = 0
    for row, sentence in enumerate(sentences):
        expected, expected_state = plain_formulas.encoder(stack, sentence, merge)
        torch.testing.assert_close(annotations[row, ~padding[row]], expected[0], rtol=1e-12, atol=1e-12)
        found = select_rows(state, slice(row, row + 1))
        torch.testing.assert_close(found, expected_state, rtol=1e-12, atol=1e-12)
        total = total + loss(expected, expected_state)
    *ours, d_x = torch.autograd.grad(loss(annotations, state), [*stack.parameters(), x])
    torch.testing.assert_close(ours, [*torch.autograd.grad(total, list(stack.parameters()))], rtol=1e-9, atol=1e-12)
    assert not d_x[padding].any()


def run_with_recorded_inputs(stack, x):
    """The result, and input and output of every layer of both directions."""
    calls = {}

    def record(layer, args, output):
        calls[layer] = args[0].detach(), output[0].detach()

    for direction in stack.stacks:
        for layer in direction.layers:
            layer.register_forward_hook(record)
    return stack(x), [[calls[layer] for layer in direction.layers] for direction in stack.stacks]


@every_merge
def test_dropout_is_standard_and_acts_between_layers_only(merge):
    stack = make_encoder(merge, hidden_dropout=0.5)
    x = torch.randn(ENCODER_B, S, C, dtype=torch.float64)
    (annotations, _), (ahead, back) = run_with_recorded_inputs(stack, x)
    assert torch.equal(ahead[0][0], x) and torch.equal(back[0][0], x.flip(1))
    torch.testing.assert_close(annotations, ahead[-1][1] + back[-1][1].flip(1))
    for n in (1, 2):
        below = ahead[n - 1][1], back[n - 1][1]
        if merge == "layer":
            below = below[0] + below[1].flip(1), below[0].flip(1) + below[1]
        for read, undropped in ((ahead[n][0], below[0]), (back[n][0], below[1])):
            mask = read / undropped
            assert ((mask == 0) | ((mask - 2).abs() < 1e-9)).all()
            assert 0.3 < mask.eq(0).double().mean() < 0.7
            assert all(len({tuple(step.tolist()) for step in row.eq(0)}) > 3 for row in mask)
            assert len({tuple(row.flatten().tolist()) for row in mask.eq(0)}) == ENCODER_B


@every_merge
def test_every_call_draws_fresh_masks_and_evaluation_none(sentences, merge):
    stack, plain = make_encoder(merge, hidden_dropout=0.5), make_encoder(merge)
    plain.load_state_dict(stack.state_dict())
    inputs = batch(sentences, "left")
    assert not torch.equal(stack(*inputs)[0], stack(*inputs)[0])
    torch.testing.assert_close(stack.eval()(*inputs), plain(*inputs), rtol=0, atol=0)


@every_merge
@pytest.mark.parametrize("cell, place", [*(("lstm", place) for place in PLACES), ("mmlstm", "mixed")])
def test_one_direction_is_a_stack_that_reads_forwards(sentences, merge, place, cell):
    stack = make_encoder(merge, cell=cell, num_directions=1)
    x, padding = batch(sentences, place)
    annotations, state = stack(x, padding)
    for row, sentence in enumerate(sentences):
        expected = stack.stacks[0](sentence)
        torch.testing.assert_close(annotations[row, ~padding[row]], expected.top[0], rtol=1e-12, atol=1e-12)
        found = select_rows(state, slice(row, row + 1))
        torch.testing.assert_close(found, expected.state, rtol=1e-12, atol=1e-12)
    assert len(stack.stacks) == 1 and not annotations[padding].any()
