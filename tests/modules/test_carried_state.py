"""State between windows: training and evaluation apart, no gradient, packing."""

import torch

from fairseq_plugins.modules.carried_state import CarriedState, pack_state, unpack_state


def make_state(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [tuple(torch.randn(3, width, generator=generator) for _ in range(2)) for width in (4, 7, 2)]


def test_there_is_no_state_at_first():
    carried = CarriedState()
    assert carried.get(training=True) is None and carried.get(training=False) is None


def test_training_and_evaluation_are_apart():
    carried, training, evaluation = CarriedState(), make_state(1), make_state(2)
    carried.set(training, training=True)
    carried.set(evaluation, training=False)
    assert torch.equal(carried.get(training=True)[1][0], training[1][0])
    assert torch.equal(carried.get(training=False)[1][0], evaluation[1][0])
    carried.start(training=False)
    assert carried.get(training=False) is None
    assert torch.equal(carried.get(training=True)[2][1], training[2][1])


def test_start_without_a_state_is_harmless():
    carried = CarriedState()
    carried.start(training=True)
    assert carried.get(training=True) is None


def test_no_gradient_crosses_a_window():
    state = [tuple(part.requires_grad_() * 2 for part in layer) for layer in make_state()]
    carried = CarriedState()
    carried.set(state, training=True)
    assert not any(part.requires_grad for layer in carried.get(training=True) for part in layer)


def test_packing_joins_all_parts_in_order():
    state = make_state()
    packed = pack_state(state)
    assert packed.shape == (3, 2 * (4 + 7 + 2))
    assert torch.equal(packed[:, :4], state[0][0]) and torch.equal(packed[:, -2:], state[2][1])


def test_unpacking_is_the_inverse_and_takes_another_number_of_rows():
    state = make_state()
    unpacked = unpack_state(torch.cat([pack_state(state), pack_state(make_state(3))]), like=state)
    expected = [tuple(torch.cat(pair) for pair in zip(*layers)) for layers in zip(state, make_state(3))]
    assert all(torch.equal(a, b) for x, y in zip(unpacked, expected) for a, b in zip(x, y))
