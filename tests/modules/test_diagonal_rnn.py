"""The linear network whose units have a memory of their own: its scan, its timescales, 16 bits.

Its equations are compared beside those of the other layers without gates.
"""

from argparse import Namespace

import pytest
import torch
from cell_cases import run

from fairseq_plugins.modules.diagonal_rnn import DiagonalOptions, DiagonalRNN
from fairseq_plugins.modules.initialisation import initialise_uniformly
from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS, CellContext, Late
from fairseq_plugins.ops.linear_scan import linear_scan

B, T, C, D = 4, 9, 5, 6


def test_a_window_of_the_diagonal_network_is_one_scan(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "fairseq_plugins.modules.diagonal_rnn.linear_scan", lambda *tensors: calls.append(1) or linear_scan(*tensors)
    )
    x = torch.randn(B, T, C, dtype=torch.float64)
    layer = DiagonalRNN(C, D, options=DiagonalOptions()).double()
    run(layer, x, layer.initial_state(x))
    assert calls == [1]


def test_timescales_start_from_a_quarter_of_a_token_to_the_longest():
    layer = DiagonalRNN(3, 100, options=DiagonalOptions(longest_timescale=40.0))
    timescales = -1 / layer.self_connections().log()
    assert timescales[[0, -1]].tolist() == pytest.approx([0.25, 40], rel=1e-3)
    assert torch.equal(timescales, timescales.sort().values)
    lonely = DiagonalRNN(3, 1, options=DiagonalOptions(longest_timescale=40.0)).self_connections()
    assert (-1 / lonely.log()).item() == pytest.approx(40, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_units_that_forget_slowly_learn_in_16_bits(dtype):
    options = DiagonalOptions(longest_timescale=1000.0)
    expected = DiagonalRNN(8, 8, options=options).self_connections()
    layer = DiagonalRNN(8, 8, options=options).to(dtype)
    assert torch.equal(layer.self_connections(), expected) and expected.max() < 1
    x = torch.randn(B, T, 8, dtype=dtype)
    outputs = [run(layer, x, layer.initial_state(x))[0]]
    state, steps = layer.initial_state(x), []
    for t in range(T):
        prepared = layer.prepare(x[:, t : t + 1], CellContext(x[:, t : t + 1]))
        output, state = layer.step(prepared, 0, Late(), state)
        steps.append(output)
    outputs.append(torch.stack(steps, dim=1))
    for output in outputs:
        assert output.dtype == dtype
        layer.zero_grad()
        output.float().square().sum().backward()
        assert layer.connection_bias.grad.ne(0).all()
    torch.testing.assert_close(*outputs, rtol=0.05, atol=0.05)


def test_a_model_that_starts_at_zero_has_the_timescales_all_the_same():
    layer = DiagonalRNN(3, 50, options=DiagonalOptions())
    expected = layer.self_connections()
    initialise_uniformly(layer, 0.1, biases="zero")
    assert torch.equal(layer.self_connections(), expected)


def test_another_start_than_the_checkpoints_is_refused():
    layer, other = (DiagonalRNN(2, 3, options=DiagonalOptions(longest_timescale=one)) for one in (20.0, 10.0))
    with pytest.raises(ValueError, match="trained with --longest-timescale 10"):
        layer.load_state_dict(other.state_dict())


def test_connections_stay_within_their_bounds():
    layer = DiagonalRNN(C, D, options=DiagonalOptions())
    with torch.no_grad():
        layer.connection_bias.copy_(torch.linspace(-300, 300, D))
    assert layer.self_connections().abs().max() <= 1


@pytest.mark.parametrize("longest", [0.0, -1.0, 0.25, 1e9, float("inf"), float("nan")])
def test_a_timescale_out_of_range_is_refused(longest):
    with pytest.raises(ValueError, match="--longest-timescale .* give a number of tokens above 0.25"):
        DiagonalRNN(3, 4, options=DiagonalOptions(longest_timescale=longest))


def test_a_full_matrix_has_no_timescales():
    args = Namespace(rnn_cell="diagonal", longest_timescale=40.0)
    assert RECURRENT_CELLS.read_options(args).longest_timescale == 40.0
    args.transition = "full"
    told = (
        "^--longest-timescale has no effect on this --rnn-cell diagonal: leave it out, or leave out --transition full$"
    )
    with pytest.raises(ValueError, match=told):
        RECURRENT_CELLS.read_options(args)


@pytest.mark.parametrize("matrix", [{"transition": "full"}, {"word_skip": "_"}])
def test_a_recurrent_scale_is_that_of_a_matrix(matrix):
    args = Namespace(rnn_cell="diagonal", recurrent_scale=0.01)
    with pytest.raises(ValueError, match="^--recurrent-scale has no effect .* by --transition full or --word-skip$"):
        RECURRENT_CELLS.read_options(args)
    assert RECURRENT_CELLS.read_options(Namespace(**vars(args), **matrix)).recurrent_scale == 0.01
