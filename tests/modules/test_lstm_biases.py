"""Weight-drop LSTMs with one bias vector; LSTMs with one or two, moved and copied."""

import copy

import pytest
import torch
from cell_cases import loss, run_steps
from lstm_cases import NAMES, RATE, C, D, by_hand, draw_inputs, leading_padding, make, run


@pytest.fixture
def inputs():
    return draw_inputs()


def make_pair(rate=0.0):
    """A layer with one bias vector, and one with two of which the second is zero, of equal weights."""
    one, two = make(rate, "one"), make(rate)
    with torch.no_grad():
        two.bias_hh_l0.zero_()
    assert not two.load_state_dict(one.state_dict(), strict=False).unexpected_keys
    return one, two


def test_one_bias_vector_is_the_second_less():
    one, two = make_pair()
    assert [name for name, _ in one.named_parameters()] == list(one.state_dict()) == NAMES[:3]
    sizes = [sum(param.numel() for param in layer.parameters()) for layer in (one, two)]
    assert sizes == [4 * D * (C + D + 1), 4 * D * (C + D + 2)]


@pytest.mark.parametrize("rate", [0.0, RATE])
@pytest.mark.parametrize("padded", [False, True])
def test_one_bias_vector_is_two_of_which_one_is_zero(inputs, rate, padded):
    x, state = inputs[0].requires_grad_(), None if padded else inputs[1]
    results = []
    for layer in make_pair(rate):
        torch.manual_seed(5)
        found = run(layer, x, state, leading_padding=leading_padding() if padded else None)
        gradients = torch.autograd.grad(loss(*found), [x, *(getattr(layer, name) for name in NAMES[:3])])
        results.append((found, gradients))
    torch.testing.assert_close(*results, rtol=0, atol=0)
    steps = [run_steps(layer.eval(), x, inputs[1], 2) for layer in make_pair()]
    torch.testing.assert_close(*steps, rtol=0, atol=0)


def test_one_bias_vector_against_the_recurrence(inputs):
    layer, (x, state) = make(0.0, "one"), inputs
    expected = by_hand(layer, x, state, 1.0)
    torch.testing.assert_close(run(layer, x, state), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(run_steps(layer, x, state, 2), expected, rtol=1e-12, atol=1e-12)
    assert not layer.bias_hh_l0.requires_grad and not layer.bias_hh_l0.any()


def test_a_state_dict_with_one_bias_vector_goes_round(inputs):
    layer, other = make(0.0, "one"), make(0.0, "one")
    assert not torch.equal(run(layer, inputs[0])[0], run(other, inputs[0])[0])
    other.load_state_dict(layer.state_dict())
    assert torch.equal(run(layer, inputs[0])[0], run(other, inputs[0])[0])
    with pytest.raises(RuntimeError, match="bias_hh_l0"):
        other.load_state_dict(make(0.0).state_dict())


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.to(torch.float32).to("cpu"),
        lambda layer: layer.float().double(),
        lambda layer: copy.deepcopy(layer),
        lambda layer: copy.deepcopy(layer).to(dtype=torch.float32),
        lambda layer: layer.share_memory(),
    ],
)
@pytest.mark.parametrize("biases", ["one", "two"])
def test_a_layer_moves_and_is_copied_whole(change, biases, inputs):
    layer, (x, state) = make(RATE, biases), inputs
    expected = run(layer.eval(), x, state)
    changed = change(layer)
    dtype = changed.weight_ih_l0.dtype
    assert {getattr(changed, name).dtype for name in NAMES} == {dtype}
    found = run(changed, x.to(dtype), {name: part.to(dtype) for name, part in state.items()})
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, check_dtype=False)
    with torch.no_grad():
        changed.bias_ih_l0.add_(1)  # the kernel reads the parameter itself, no copy of it
    again, _ = run(changed, x.to(dtype), {name: part.to(dtype) for name, part in state.items()})
    assert not torch.allclose(again, found[0])


def test_a_copy_has_weights_of_its_own(inputs):
    layer = make(0.0, "one")
    expected = run(layer, inputs[0])[0]
    with torch.no_grad():
        for param in copy.deepcopy(layer).parameters():
            param.zero_()
    assert torch.equal(run(layer, inputs[0])[0], expected)
