"""Recurrent state and carried state, and the contract of every cell."""

import pytest
import torch
from cell_contract import CellContract

from fairseq_plugins.modules import cell as cell_module
from fairseq_plugins.modules.cell import RECURRENT_CELLS, CarriedState

PATHS = ["layers.0.h", "layers.0.c", "layers.1.recent", "fed", "gate.0"]
SHAPES = [(4,), (4,), (2, 3), (7,), ()]
DTYPES = [torch.float64, torch.int64, torch.float16, torch.float32, torch.bool]


def make_state(num_rows=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    h, c, recent, fed, gate = (torch.randn(num_rows, *shape, generator=generator) for shape in SHAPES)
    return {"layers": [{"h": h, "c": c}, {"recent": recent}], "fed": fed, "gate": (gate,), "none": []}


def assert_same(state, other):
    """Of one structure, with equal tensors."""
    assert list(cell_module.named_tensors(state)) == list(cell_module.named_tensors(other)) == PATHS
    torch.testing.assert_close(
        list(cell_module.state_tensors(state)), list(cell_module.state_tensors(other)), rtol=0, atol=0
    )


def test_tensors_are_named_by_their_path_in_order():
    state = make_state()
    named = cell_module.named_tensors(state)
    assert list(named) == PATHS
    assert named["layers.1.recent"] is state["layers"][1]["recent"] and named["gate.0"] is state["gate"][0]
    assert [id(x) for x in cell_module.state_tensors(state)] == [id(x) for x in named.values()]


def test_a_tensor_alone_is_a_state():
    x = torch.randn(3, 4)
    assert cell_module.named_tensors(x) == {"": x}
    assert torch.equal(cell_module.map_state(torch.neg, x), -x)
    assert torch.equal(cell_module.unpack_state(cell_module.pack_state(x), x), x)


@pytest.mark.parametrize("empty", [{}, [], (), {"layers": []}, [[], {}]])
def test_an_empty_state_has_no_tensors(empty):
    assert cell_module.named_tensors(empty) == {}
    assert cell_module.named_tensors(cell_module.select_rows(empty, torch.tensor([0]))) == {}


def test_a_function_reaches_every_tensor_of_all_states_at_its_place():
    first, second = make_state(), make_state(seed=1)
    joined = cell_module.map_state(lambda a, b: a - b, first, second)
    assert_same(joined, cell_module.add_states(first, cell_module.map_state(torch.neg, second)))
    assert torch.equal(joined["layers"][1]["recent"], first["layers"][1]["recent"] - second["layers"][1]["recent"])
    assert isinstance(joined["layers"], list) and list(joined) == list(first)


@pytest.mark.parametrize("rows", [[2, 0, 1], [1, 1, 1, 0, 2], [0], []])
def test_rows_are_selected_everywhere(rows):
    state, rows = make_state(), torch.tensor(rows, dtype=torch.long)
    selected = cell_module.select_rows(state, rows)
    assert_same(selected, cell_module.map_state(lambda x: x[rows], state))
    before = make_state()
    for x in cell_module.state_tensors(selected):
        x.add_(1)
    assert_same(state, before)


def test_a_detached_state_has_no_gradient_and_the_same_values():
    state = cell_module.map_state(lambda x: x.requires_grad_() * 1, make_state())
    detached = cell_module.detach_state(state)
    assert not any(x.requires_grad for x in cell_module.state_tensors(detached))
    assert_same(detached, make_state())


def test_packing_joins_all_tensors_in_order():
    state = make_state()
    packed = cell_module.pack_state(state)
    assert packed.shape == (3, 4 + 4 + 6 + 7 + 1)
    assert torch.equal(packed[:, :4], state["layers"][0]["h"])
    assert torch.equal(packed[:, 8:14], state["layers"][1]["recent"].flatten(1))
    assert torch.equal(packed[:, -1], state["gate"][0])


def test_unpacking_is_the_inverse_and_takes_another_number_of_rows():
    state, other = make_state(), make_state(2, seed=3)
    packed = torch.cat([cell_module.pack_state(state), cell_module.pack_state(other)])
    unpacked = cell_module.unpack_state(packed, like=state)
    assert_same(unpacked, cell_module.map_state(lambda *rows: torch.cat(rows), state, other))
    assert all(x.is_contiguous() for x in cell_module.state_tensors(unpacked))


@pytest.mark.parametrize("first", range(len(DTYPES)))
def test_unpacking_restores_the_types(first):
    dtypes = [*DTYPES[first:], *DTYPES[:first]]
    drawn = cell_module.state_tensors(cell_module.map_state(lambda x: 10 * x, make_state()))
    state = cell_module.with_tensors(make_state(), (x.to(dtype) for x, dtype in zip(drawn, dtypes)))
    unpacked = cell_module.unpack_state(cell_module.pack_state(state), like=state)
    assert [x.dtype for x in cell_module.state_tensors(unpacked)] == dtypes
    assert_same(unpacked, state)


def decoder_state(value=0.0):
    return {"layers": [{"h": torch.full((3, 4), value), "c": torch.full((3, 4), value)}, {"h": torch.zeros(3, 7)}]}


def value(state):
    """What :func:`make_state` was given."""
    return state["layers"][0]["h"][0, 0].item()


def read(carried, stream, *, windows):
    """Go over windows (start, end); the state after each is its end."""
    for start, end in windows:
        state = carried.get(stream, start)
        assert (state is None) == (start == 0) and (state is None or value(state) == start)
        carried.set(stream, end, decoder_state(float(end)))


@pytest.fixture
def carried():
    return CarriedState()


@pytest.mark.parametrize("stream, position", [("valid", -1), ("valid", 1), ("valid", 3), ("other", 4)])
def test_a_position_before_which_no_window_ended_is_refused_with_the_stream(carried, stream, position):
    carried.set("valid", 4, decoder_state())
    with pytest.raises(ValueError, match=f"stream '{stream}' cannot go on at token {position}: "):
        carried.get(stream, position)
    assert carried.get(stream, 0) is None


def test_after_a_window_that_was_passed_over_the_state_before_it_goes_on(carried):
    carried.set("train", 4, decoder_state(1.0))
    carried.set("train", 9, decoder_state(2.0))
    assert value(carried.get("train", 15)) == 2
    carried.set("train", 20, decoder_state(3.0))
    assert value(carried.get("train", 20)) == 3


def test_after_a_first_window_that_was_passed_over_the_stream_goes_on_from_zeros(carried):
    assert carried.get("train", 0) is None
    assert carried.get("train", 70) is None
    carried.set("train", 140, decoder_state(1.0))
    assert value(carried.get("train", 140)) == 1


def test_what_an_earlier_epoch_left_is_gone_when_the_next_one_starts(carried):
    carried.num_repeatable = 3
    read(carried, "train", windows=[(0, 50), (50, 70), (70, 90)])
    carried.get("train", 0)
    assert [carried.get("train", position) for position in (50, 70, 90, 1000)] == [None] * 4


def test_interleaved_streams_do_not_know_of_each_other(carried):
    for step in range(3):
        for n, stream in enumerate(("train", "valid", "train, for statistics")):
            start, end = 4 * step, 4 * step + 4
            state = carried.get(stream, start)
            assert state is None if step == 0 else value(state) == 100 * n + start
            carried.set(stream, end, decoder_state(100.0 * n + end))


@pytest.mark.parametrize("num_repeatable", [1, 2, 4])
def test_the_last_windows_can_be_read_again_and_no_others(carried, num_repeatable):
    carried.num_repeatable = num_repeatable
    ends = [3, 7, 9, 15, 20, 22, 30]
    read(carried, "train", windows=list(zip([0, *ends], ends)))
    starts = ends[-1 - num_repeatable : -1]
    for first in range(len(starts)):
        again = [*starts[first:], ends[-1]]
        read(carried, "train", windows=list(zip(again, again[1:])))
        assert value(carried.get("train", 30)) == 30
    with pytest.raises(ValueError, match="token"):
        carried.get("train", ends[-2 - num_repeatable])


def test_a_window_that_is_read_again_takes_the_place_of_what_came_after(carried):
    carried.set("train", 4, decoder_state(1.0))
    carried.set("train", 8, decoder_state(2.0))
    carried.set("train", 4, decoder_state(3.0))
    assert value(carried.get("train", 4)) == 3
    assert value(carried.get("train", 8)) == 3


def test_the_states_of_a_long_stream_do_not_pile_up(carried):
    read(carried, "train", windows=[(t, t + 1) for t in range(50)])
    alive = [position for position in range(1, 51) if is_kept(carried, position)]
    assert alive == [49, 50]


def is_kept(carried, position):
    try:
        return carried.get("train", position) is not None
    except ValueError:
        return False


def test_no_gradient_crosses_a_window(carried):
    h = torch.ones(3, 4, requires_grad=True)
    carried.set("train", 4, {"layers": [{"h": 2 * h}]})
    kept = carried.get("train", 4)["layers"][0]["h"]
    assert not kept.requires_grad and torch.equal(kept, 2 * h.detach())


# what is near zero would be lost in 32 bits
FLAGS = {"smooth-rectifier": {"rectifier_smoothing": 0.01}}
CASES = [(cell, FLAGS.get(cell, {})) for cell in sorted(RECURRENT_CELLS)] + [
    ("lstm", {"rnn_biases": "one"}),
    ("mmlstm", {"rnn_biases": "one"}),
    ("mmlstm", {"minor_input": "previous"}),
    ("mmlstm", {"major_proportions": "0.6 1"}),
    ("variational", {"rnn_biases": "one"}),
    ("rhn", {"transform_input": "candidate"}),
    ("rhn", {"recurrence_depth": 1}),
    ("mogrifier", {"mogrifier_rank": 3}),
    ("mogrifier", {"mogrifier_rounds": 0}),
    ("diagonal", {"transition": "full"}),
]


class TestEveryCell(CellContract):
    @pytest.fixture(params=CASES, ids=lambda case: " ".join([case[0], *map(str, case[1].values())]))
    def case(self, request):
        return request.param
