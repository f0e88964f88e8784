"""Recurrent state, and the contract and flags of every cell."""

from argparse import Namespace

import pytest
import torch
from cell_contract import CellContract

from fairseq_plugins.modules import cell as cell_module
from fairseq_plugins.modules.cell import RECURRENT_CELLS
from fairseq_plugins.options import flag_of

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


@pytest.mark.parametrize("rows", [[1, 1, 1, 0, 2], []])
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


def test_unpacking_is_the_inverse_and_takes_another_number_of_rows():
    state, other = make_state(), make_state(2, seed=3)
    packed = torch.cat([cell_module.pack_state(state), cell_module.pack_state(other)])
    unpacked = cell_module.unpack_state(packed, like=state)
    assert_same(unpacked, cell_module.map_state(lambda *rows: torch.cat(rows), state, other))
    assert all(x.is_contiguous() for x in cell_module.state_tensors(unpacked))


@pytest.mark.parametrize("dtypes", [DTYPES, DTYPES[::-1]])
def test_unpacking_restores_the_types(dtypes):
    drawn = cell_module.state_tensors(cell_module.map_state(lambda x: 10 * x, make_state()))
    state = cell_module.with_tensors(make_state(), (x.to(dtype) for x, dtype in zip(drawn, dtypes)))
    unpacked = cell_module.unpack_state(cell_module.pack_state(state), like=state)
    assert [x.dtype for x in cell_module.state_tensors(unpacked)] == dtypes
    assert_same(unpacked, state)


# the cells

UNUSED = [  # a cell, a flag that is read, and flags beside which it has no effect
    *(
        ("mmlstm", {"minor_input": "previous"}, {"major_proportions": text}, "give --major-proportions below 1")
        for text in ("1", "1 1.0", "1,1")
    ),
    ("mogrifier", {"mogrifier_rank": 3}, {"mogrifier_rounds": 0}, "give --mogrifier-rounds 1 or more"),
    ("diagonal", {"longest_timescale": 40.0}, {"transition": "full"}, "leave out --transition full"),
]


@pytest.mark.parametrize("cell, flag, others, remedy", UNUSED)
def test_a_flag_that_has_no_effect_is_refused(cell, flag, others, remedy):
    ((name, value),) = flag.items()
    assert getattr(RECURRENT_CELLS.read_options(Namespace(rnn_cell=cell, **flag)), name) == value
    with pytest.raises(ValueError, match=f"^{flag_of(name)} has no effect .*: leave it out, or {remedy}$"):
        RECURRENT_CELLS.read_options(Namespace(rnn_cell=cell, **flag, **others))


@pytest.mark.parametrize("matrix", [{"transition": "full"}, {"word_skip": "_"}])
def test_a_recurrent_scale_is_that_of_a_matrix(matrix):
    args = Namespace(rnn_cell="diagonal", recurrent_scale=0.01)
    with pytest.raises(ValueError, match="^--recurrent-scale has no effect .* by --transition full or --word-skip$"):
        RECURRENT_CELLS.read_options(args)
    assert RECURRENT_CELLS.read_options(Namespace(**vars(args), **matrix)).recurrent_scale == 0.01


# what is near zero would be lost in 32 bits
FLAGS = {"smooth-rectifier": {"rectifier_smoothing": 0.01}}
CASES = [(cell, FLAGS.get(cell, {})) for cell in sorted(RECURRENT_CELLS)] + [
    ("lstm", {"rnn_biases": "one"}),
    ("mmlstm", {"minor_input": "previous"}),
    ("mmlstm", {"major_proportions": "0.6 1"}),
    ("rhn", {"transform_input": "candidate"}),
    ("rhn", {"recurrence_depth": 1}),
    ("mogrifier", {"mogrifier_rank": 3}),
    ("mogrifier", {"mogrifier_rounds": 0}),
    ("diagonal", {"transition": "full"}),
    ("rectifier", {"recurrent_scale": 0.3}),
]


class TestEveryCell(CellContract):
    @pytest.fixture(params=CASES, ids=lambda case: " ".join([case[0], *map(str, case[1].values())]))
    def case(self, request):
        return request.param
