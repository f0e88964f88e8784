"""Products with chosen labels against those with all of them."""

import pytest
import torch

from fairseq_plugins.ops.chosen_logits import TOKENS_AT_ONCE, chosen_logits

U, C, K = 11, 6, 5


def make_inputs(num_tokens):
    hidden = torch.randn(num_tokens, C, dtype=torch.double, requires_grad=True)
    labels = torch.randn(U, C, dtype=torch.double, requires_grad=True)
    return hidden, labels, torch.randint(U - 2, (num_tokens, K))  # the last two labels are not chosen


@pytest.mark.parametrize("num_tokens", [1, 7, 2 * TOKENS_AT_ONCE + 3])
def test_values_and_gradients_are_those_of_all_products(num_tokens):
    hidden, labels, chosen = make_inputs(num_tokens)
    found = chosen_logits(hidden, labels, chosen)
    expected = (hidden @ labels.T).gather(1, chosen)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    factors = torch.randn_like(found)
    gradients = torch.autograd.grad((found * factors).sum(), (hidden, labels))
    torch.testing.assert_close(gradients, torch.autograd.grad((expected * factors).sum(), (hidden, labels)))
    assert not gradients[1][-2:].any()


@pytest.mark.parametrize("frozen", [0, 1])
def test_what_is_frozen_has_no_gradient(frozen):
    inputs = make_inputs(9)
    inputs[frozen].requires_grad_(False)
    chosen_logits(*inputs).sum().backward()
    assert inputs[frozen].grad is None and inputs[1 - frozen].grad is not None


def test_without_gradients_it_has_the_same_values():
    inputs = make_inputs(9)
    with torch.no_grad():
        assert torch.equal(chosen_logits(*inputs), chosen_logits(*(x.detach() for x in inputs)))
