"""Nested state: everything that is done to it reaches every tensor, and nothing else."""

import pytest
import torch

from fairseq_plugins.modules import recurrent_state

PATHS = ["layers.0.h", "layers.0.c", "layers.1.recent", "fed", "gate.0"]
SHAPES = [(4,), (4,), (2, 3), (7,), ()]
DTYPES = [torch.float64, torch.int64, torch.float16, torch.float32, torch.bool]


def make_state(num_rows=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    h, c, recent, fed, gate = (torch.randn(num_rows, *shape, generator=generator) for shape in SHAPES)
    return {"layers": [{"h": h, "c": c}, {"recent": recent}], "fed": fed, "gate": (gate,), "none": []}


def assert_same(state, other):
    """Of one structure, with equal tensors."""
    assert list(recurrent_state.named_tensors(state)) == list(recurrent_state.named_tensors(other)) == PATHS
    torch.testing.assert_close(
        list(recurrent_state.state_tensors(state)), list(recurrent_state.state_tensors(other)), rtol=0, atol=0
    )


def test_tensors_are_named_by_their_path_in_order():
    state = make_state()
    named = recurrent_state.named_tensors(state)
    assert list(named) == PATHS
    assert named["layers.1.recent"] is state["layers"][1]["recent"] and named["gate.0"] is state["gate"][0]
    assert [id(x) for x in recurrent_state.state_tensors(state)] == [id(x) for x in named.values()]


def test_a_tensor_alone_is_a_state():
    x = torch.randn(3, 4)
    assert recurrent_state.named_tensors(x) == {"": x}
    assert torch.equal(recurrent_state.map_state(torch.neg, x), -x)
    assert torch.equal(recurrent_state.unpack_state(recurrent_state.pack_state(x), x), x)


@pytest.mark.parametrize("empty", [{}, [], (), {"layers": []}, [[], {}]])
def test_an_empty_state_has_no_tensors(empty):
    assert recurrent_state.named_tensors(empty) == {}
    assert recurrent_state.named_tensors(recurrent_state.select_rows(empty, torch.tensor([0]))) == {}


def test_a_function_reaches_every_tensor_of_all_states_at_its_place():
    first, second = make_state(), make_state(seed=1)
    joined = recurrent_state.map_state(lambda a, b: a - b, first, second)
    assert_same(joined, recurrent_state.add_states(first, recurrent_state.map_state(torch.neg, second)))
    assert torch.equal(joined["layers"][1]["recent"], first["layers"][1]["recent"] - second["layers"][1]["recent"])
    assert isinstance(joined["layers"], list) and list(joined) == list(first)


def test_the_sum_of_one_state_is_itself():
    assert_same(recurrent_state.add_states(make_state()), make_state())


@pytest.mark.parametrize("rows", [[2, 0, 1], [1, 1, 1, 0, 2], [0], []])
def test_rows_are_selected_everywhere(rows):
    state, rows = make_state(), torch.tensor(rows, dtype=torch.long)
    selected = recurrent_state.select_rows(state, rows)
    assert_same(selected, recurrent_state.map_state(lambda x: x[rows], state))
    before = make_state()
    for x in recurrent_state.state_tensors(selected):
        x.add_(1)
    assert_same(state, before)


def test_a_slice_of_rows():
    state = make_state(5)
    expected = recurrent_state.select_rows(state, torch.tensor([1, 2]))
    assert_same(recurrent_state.select_rows(state, slice(1, 3)), expected)


def test_a_detached_state_has_no_gradient_and_the_same_values():
    state = recurrent_state.map_state(lambda x: x.requires_grad_() * 1, make_state())
    detached = recurrent_state.detach_state(state)
    assert not any(x.requires_grad for x in recurrent_state.state_tensors(detached))
    assert_same(detached, make_state())


def test_others_take_the_tensors_places():
    state = make_state()
    negatives = [-x for x in recurrent_state.state_tensors(state)]
    assert_same(recurrent_state.with_tensors(state, negatives), recurrent_state.map_state(torch.neg, state))


def test_packing_joins_all_tensors_in_order():
    state = make_state()
    packed = recurrent_state.pack_state(state)
    assert packed.shape == (3, 4 + 4 + 6 + 7 + 1)
    assert torch.equal(packed[:, :4], state["layers"][0]["h"])
    assert torch.equal(packed[:, 8:14], state["layers"][1]["recent"].flatten(1))
    assert torch.equal(packed[:, -1], state["gate"][0])


def test_unpacking_is_the_inverse_and_takes_another_number_of_rows():
    state, other = make_state(), make_state(2, seed=3)
    packed = torch.cat([recurrent_state.pack_state(state), recurrent_state.pack_state(other)])
    unpacked = recurrent_state.unpack_state(packed, like=state)
    assert_same(unpacked, recurrent_state.map_state(lambda *rows: torch.cat(rows), state, other))
    assert all(x.is_contiguous() for x in recurrent_state.state_tensors(unpacked))


@pytest.mark.parametrize("first", range(len(DTYPES)))
def test_unpacking_restores_the_types(first):
    dtypes = [*DTYPES[first:], *DTYPES[:first]]
    drawn = recurrent_state.state_tensors(recurrent_state.map_state(lambda x: 10 * x, make_state()))
    state = recurrent_state.with_tensors(make_state(), (x.to(dtype) for x, dtype in zip(drawn, dtypes)))
    unpacked = recurrent_state.unpack_state(recurrent_state.pack_state(state), like=state)
    assert [x.dtype for x in recurrent_state.state_tensors(unpacked)] == dtypes
    assert_same(unpacked, state)
