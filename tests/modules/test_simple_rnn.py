"""Layers without gates against the equations of Pachitariu & Sahani 2013."""

from argparse import Namespace

import plain_formulas
import pytest
import torch
from builders import dictionary_of, randomise
from cells_by_hand import assert_as_by_hand, run, run_steps

from fairseq_plugins.modules.cell import RECURRENT_CELLS, CellContext
from fairseq_plugins.modules.layers import initialise_uniformly
from fairseq_plugins.modules.simple_rnn import DiagonalOptions, DiagonalRNN
from fairseq_plugins.ops.recurrence import linear_scan

B, T, C, D = 4, 9, 5, 6

CASES = {
    "diagonal": ("diagonal", {}, lambda z: z),
    "full": ("diagonal", {"transition": "full"}, lambda z: z),
    "rectifier": ("rectifier", {}, plain_formulas.rectified),
    "scaled": ("rectifier", {"recurrent_scale": 0.3}, plain_formulas.rectified),
    "smooth": ("smooth-rectifier", {"rectifier_smoothing": 0.7}, lambda z: plain_formulas.rectified(z, 0.7)),
}

every_case = pytest.mark.parametrize("case", CASES)


@pytest.fixture
def dictionary():
    return dictionary_of("_abc")


def make(case, *, input_size=C, dictionary=None, **options):
    cell, flags, _ = CASES[case]
    layer = RECURRENT_CELLS[cell](input_size, D, options=RECURRENT_CELLS[cell].Options(**{**flags, **options})).double()
    randomise(layer, 0.7)
    if dictionary is not None:
        layer.read_dictionary(dictionary)
    return layer


def scale_of(case):
    return CASES[case][1].get("recurrent_scale", 1)


def by_hand(case, layer, x, state, **skip):
    w_x = torch.eye(D, dtype=x.dtype) if layer.input is None else layer.input.weight
    if layer.recurrent is None:
        w_h = torch.diag(torch.tanh(layer.connection_offset + layer.connection_bias))
    else:
        w_h = scale_of(case) * layer.recurrent.weight
    outputs = plain_formulas.simple_recurrent(x, state["x"], w_x, w_h, CASES[case][2], **skip)
    return outputs, {"x": outputs[:, -1]}


@every_case
@pytest.mark.parametrize("input_matrix", ["on", "off"])
@pytest.mark.parametrize("num_known", [None, 2])
def test_values_and_gradients_are_those_of_the_equations(case, input_matrix, num_known):
    size = C if input_matrix == "on" else D
    layer = make(case, input_size=size, input_matrix=input_matrix)
    x, state = torch.randn(B, T, size, dtype=torch.float64), {"x": torch.randn(B, D, dtype=torch.float64)}
    assert_as_by_hand(layer, x, state, lambda: by_hand(case, layer, x, state), num_known=num_known)


@every_case
@pytest.mark.parametrize("num_known", [None, 2])
def test_the_skip_joins_the_first_letters_of_words(case, num_known, dictionary):
    layer = make(case, word_skip="_", dictionary=dictionary)
    text = ["ab_c_a__b", "_ab_cabc_", "abcabcabc", "_________"]
    tokens = torch.tensor([[dictionary.index(letter) for letter in line] for line in text])
    x = torch.randn(B, T, C, dtype=torch.float64)
    state = layer.initial_state(x)
    boundaries = tokens.eq(dictionary.index("_"))
    expected, _ = by_hand(case, layer, x, state, skip=scale_of(case) * layer.skip.weight, boundaries=boundaries)
    if num_known is None:
        found, _ = run(layer, x, state, tokens=tokens)
    else:
        found, _ = run_steps(layer, x, state, num_known, tokens=tokens)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(result.square().sum(), list(layer.parameters())) for result in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


@every_case
def test_words_that_two_windows_share_are_whole(case, dictionary):
    layer = make(case, word_skip="_", dictionary=dictionary)
    tokens = torch.tensor([[dictionary.index(letter) for letter in line] for line in ("ab_cab_ca", "_a_bca_bc")])
    x = torch.randn(2, T, C, dtype=torch.float64)
    whole, end = run(layer, x, layer.initial_state(x), tokens=tokens)
    for cut in range(1, T):
        outputs, state = [], layer.initial_state(x)
        for part in (slice(0, cut), slice(cut, T)):
            output, state = run(layer, x[:, part], state, tokens=tokens[:, part])
            outputs.append(output)
        torch.testing.assert_close(torch.cat(outputs, dim=1), whole, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(state, end, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("symbol", ["_", "</s>"])
def test_end_marks_stand_between_words_too(symbol, dictionary):
    layer = make("rectifier", word_skip="_", dictionary=dictionary)
    tokens = torch.tensor([[dictionary.index(token) for token in ("a", "b", symbol, "c", "a")]])
    x = torch.randn(1, 5, C, dtype=torch.float64)
    _, first = run(layer, x[:, :1], layer.initial_state(x), tokens=tokens[:, :1])
    outputs, last = run(layer, x, layer.initial_state(x), tokens=tokens)
    assert torch.equal(first["first_letter"], first["x"])
    assert torch.equal(last["first_letter"], outputs[:, 3])


# refusals and parameters


@pytest.mark.parametrize(
    "case, options, named",
    [
        *((case, dict(input_matrix="off"), "--input-matrix off") for case in CASES),
        *((case, dict(word_skip="%"), "--word-skip %") for case in CASES),
        ("full", dict(recurrent_scale=0.0), "--recurrent-scale 0.0"),
        ("smooth", dict(rectifier_smoothing=0.0), "--rectifier-smoothing 0.0"),
        *(
            ("diagonal", dict(longest_timescale=x), "--longest-timescale")
            for x in (0.0, -1.0, 0.25, 1e9, float("inf"), float("nan"))
        ),
    ],
)
def test_flags_that_do_not_fit_are_refused(case, options, named, dictionary):
    with pytest.raises(ValueError, match=named):
        make(case, dictionary=dictionary, **options)


# the diagonal network


def test_a_window_of_the_diagonal_network_is_one_scan(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "fairseq_plugins.modules.simple_rnn.linear_scan", lambda *tensors: calls.append(1) or linear_scan(*tensors)
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
        step = layer.steps(x[:, t : t + 1], CellContext(x[:, t : t + 1]))
        output, state = step(0, state, None, None)
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


def test_a_full_matrix_has_no_timescales():
    args = Namespace(rnn_cell="diagonal", longest_timescale=40.0)
    assert RECURRENT_CELLS.read_options(args).longest_timescale == 40.0
    args.transition = "full"
    message = (
        "^--longest-timescale has no effect on this --rnn-cell diagonal: leave it out, or leave out --transition full$"
    )
    with pytest.raises(ValueError, match=message):
        RECURRENT_CELLS.read_options(args)


@pytest.mark.parametrize("matrix", [{"transition": "full"}, {"word_skip": "_"}])
def test_a_recurrent_scale_is_that_of_a_matrix(matrix):
    args = Namespace(rnn_cell="diagonal", recurrent_scale=0.01)
    with pytest.raises(ValueError, match="^--recurrent-scale has no effect .* by --transition full or --word-skip$"):
        RECURRENT_CELLS.read_options(args)
    assert RECURRENT_CELLS.read_options(Namespace(**vars(args), **matrix)).recurrent_scale == 0.01
