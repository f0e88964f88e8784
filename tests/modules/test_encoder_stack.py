"""An encoder's directions against the recurrences written out, wherever padding stands."""

import plain_formulas
import pytest
import torch

from fairseq_plugins.modules.encoder_stack import MERGES, EncoderStack
from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS
from fairseq_plugins.modules.recurrent_state import select_rows

C = 5
WIDTHS = [7, 6, 8]
LENGTHS = [6, 1, 3, 5]
B, S = len(LENGTHS), 8

every_merge = pytest.mark.parametrize("merge", MERGES)

PLACES = {
    "left": lambda length: S - length,
    "right": lambda length: 0,
    "mixed": lambda length: (S - length) // 2,
}


def make(merge, *, widths=WIDTHS, hidden_dropout=0.0, dtype=torch.float64, cell="lstm", directions="both"):
    stack = EncoderStack(C, widths, cell=cell, directions=directions, merge=merge, hidden_dropout=hidden_dropout).to(
        dtype
    )
    with torch.no_grad():
        for param in stack.parameters():
            param.uniform_(-0.7, 0.7)
    return stack


def cells(stack):
    """The layers of both directions, bottom first."""
    return [list(direction.layers) for direction in stack.stacks]


def by_hand(stack, x, merge):
    """Annotations and state of one sentence x (1, S, C)."""

    def read(layer, x, e):
        return plain_formulas.recurrent(layer, x, layer.initial_state(x), e)

    e, ahead, back, state = x, x, x.flip(1), []
    for layer, other in zip(*cells(stack)):
        (ahead, ahead_state), (back, back_state) = read(layer, ahead, e), read(other, back, e.flip(1))
        state.append({name: part + back_state[name] for name, part in ahead_state.items()})
        if merge == "layer":
            x = ahead + back.flip(1)
            ahead, back = x, x.flip(1)
    return (x if merge == "layer" else ahead + back.flip(1)), state


@pytest.fixture
def sentences():
    return [torch.randn(1, length, C, dtype=torch.float64) for length in LENGTHS]


def batch(sentences, place):
    """Sentences in one batch, with garbage at padding, and where padding is."""
    x = 10 * torch.randn(B, S, C, dtype=torch.float64)
    padding = torch.ones(B, S, dtype=torch.bool)
    for row, sentence in enumerate(sentences):
        start = PLACES[place](sentence.size(1))
        x[row, start : start + sentence.size(1)] = sentence
        padding[row, start : start + sentence.size(1)] = False
    return x, padding


@every_merge
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("widths", [WIDTHS, [6]])
@pytest.mark.parametrize("cell", sorted(plain_formulas.CELLS))
def test_annotations_and_state_are_those_of_each_sentence_alone(sentences, merge, place, widths, cell):
    stack = make(merge, widths=widths, cell=cell)
    x, padding = batch(sentences, place)
    annotations, state = stack(x, padding)
    assert annotations.shape == (B, S, widths[-1]) and len(state) == len(widths)
    for row, sentence in enumerate(sentences):
        expected, expected_state = by_hand(stack, sentence, merge)
        torch.testing.assert_close(annotations[row, ~padding[row]], expected[0], rtol=1e-12, atol=1e-12)
        found = select_rows(state, slice(row, row + 1))
        torch.testing.assert_close(found, expected_state, rtol=1e-12, atol=1e-12)
    assert not annotations[padding].any()


@every_merge
@pytest.mark.parametrize("length", [1, 5])
def test_sentences_of_one_length_need_no_padding(merge, length):
    stack, x = make(merge), torch.randn(B, length, C, dtype=torch.float64)
    annotations, state = stack(x)
    for row in range(B):
        expected, expected_state = by_hand(stack, x[row : row + 1], merge)
        torch.testing.assert_close(annotations[row : row + 1], expected, rtol=1e-12, atol=1e-12)
        found = select_rows(state, slice(row, row + 1))
        torch.testing.assert_close(found, expected_state, rtol=1e-12, atol=1e-12)
    nothing_padded = stack(x, torch.zeros(B, length, dtype=torch.bool))
    torch.testing.assert_close(nothing_padded, (annotations, state), rtol=1e-12, atol=1e-12)


@every_merge
def test_the_place_of_padding_changes_nothing_in_float32(sentences, merge):
    stack, results = make(merge, dtype=torch.float32), []
    for place in PLACES:
        x, padding = batch(sentences, place)
        annotations, state = stack(x.float(), padding)
        results.append((annotations[~padding], state))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-6, atol=1e-6)


@every_merge
def test_gradients_reach_every_parameter_and_no_padding(sentences, merge):
    stack = make(merge)
    x, padding = batch(sentences, "mixed")
    x.requires_grad_()
    annotations, state = stack(x, padding)
    (annotations.pow(2).sum() + sum((layer["h"] * layer["c"]).sum() for layer in state)).backward()
    assert [name for name, param in stack.named_parameters() if not param.grad.abs().sum() > 0] == []
    assert not x.grad[padding].any() and (x.grad[~padding].abs().sum(-1) > 0).all()


def run_with_recorded_inputs(stack, x, padding):
    """The result, and input and output of every layer of both directions."""
    calls = {}
    for direction in cells(stack):
        for layer in direction:
            layer.register_forward_hook(
                lambda layer, args, output: calls.update({layer: (args[0].detach(), output[0].detach())})
            )
    return stack(x, padding), [[calls[layer] for layer in direction] for direction in cells(stack)]


@every_merge
def test_dropout_is_standard_and_acts_between_layers_only(merge):
    stack, x = make(merge, hidden_dropout=0.5), torch.randn(B, S, C, dtype=torch.float64)
    (annotations, _), (ahead, back) = run_with_recorded_inputs(stack, x, None)
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
            assert len({tuple(row.flatten().tolist()) for row in mask.eq(0)}) == B


def test_each_direction_of_two_stacks_has_masks_of_its_own():
    stack, x = make("top", hidden_dropout=0.5), torch.randn(B, S, C, dtype=torch.float64)
    _, (ahead, back) = run_with_recorded_inputs(stack, x, None)
    assert not torch.equal(ahead[1][0].eq(0), back[1][0].eq(0))
    assert not torch.equal(ahead[1][0].eq(0), back[1][0].eq(0).flip(1))


@every_merge
def test_every_call_draws_fresh_masks_and_evaluation_none(sentences, merge):
    stack, plain = make(merge, hidden_dropout=0.5), make(merge)
    plain.load_state_dict(stack.state_dict())
    inputs = batch(sentences, "left")
    assert not torch.equal(stack(*inputs)[0], stack(*inputs)[0])
    torch.testing.assert_close(stack.eval()(*inputs), plain(*inputs), rtol=0, atol=0)


@every_merge
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("cell", sorted(RECURRENT_CELLS))
def test_one_direction_is_a_stack_that_reads_forwards(sentences, merge, place, cell):
    stack = make(merge, cell=cell, directions="forward")
    x, padding = batch(sentences, place)
    annotations, state = stack(x, padding)
    for row, sentence in enumerate(sentences):
        expected = stack.stacks[0](sentence)
        torch.testing.assert_close(annotations[row, ~padding[row]], expected.top[0], rtol=1e-12, atol=1e-12)
        found = select_rows(state, slice(row, row + 1))
        torch.testing.assert_close(found, expected.state, rtol=1e-12, atol=1e-12)
    assert len(stack.stacks) == 1 and not annotations[padding].any()


@every_merge
def test_one_direction_drops_between_layers(merge):
    stack, plain = (make(merge, hidden_dropout=rate, directions="forward") for rate in (0.5, 0.0))
    plain.load_state_dict(stack.state_dict())
    x = torch.randn(B, S, C, dtype=torch.float64)
    assert not torch.allclose(stack(x)[0], plain(x)[0])
    torch.testing.assert_close(stack.eval()(x), plain(x), rtol=0, atol=0)


def test_a_checkpoint_of_the_other_merge_is_refused_with_both():
    with pytest.raises(ValueError, match="--encoder-merge top, this model has --encoder-merge layer"):
        make("layer").load_state_dict(make("top").state_dict())


@every_merge
@pytest.mark.parametrize("widths", [[0], [4, 0], [4, -1]])
def test_widths_below_one_are_refused(merge, widths):
    with pytest.raises(ValueError, match="--hidden-sizes"):
        make(merge, widths=widths)
