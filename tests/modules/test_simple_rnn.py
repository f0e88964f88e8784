"""Layers without gates: skips between first letters of words, and timescales. test_cell_equations.py has the rest."""

import plain_formulas
import pytest
import torch
from builders import dictionary_of, randomise
from cell_contract import steps_of_layer

from fairseq_plugins.modules.cell import RECURRENT_CELLS, CellContext
from fairseq_plugins.modules.layers import initialise_uniformly
from fairseq_plugins.modules.simple_rnn import DiagonalOptions, DiagonalRNN
from fairseq_plugins.ops.recurrence import linear_scan

B, T, C, D = 4, 9, 5, 6

# the cell, its flags, and those of them that its formula needs to know
CASES = {
    "diagonal": ("diagonal", {}, {}),
    "full": ("diagonal", {"transition": "full"}, {}),
    "rectifier": ("rectifier", {}, {}),
    "scaled": ("rectifier", {}, {"recurrent_scale": 0.3}),
    "smooth": ("smooth-rectifier", {}, {"rectifier_smoothing": 0.7}),
}

every_case = pytest.mark.parametrize("case", CASES)


@pytest.fixture
def dictionary():
    return dictionary_of("_abc")


def make(case, dictionary, *, word_skip="_", **options):
    cell, *flags = CASES[case]
    options = {**flags[0], **flags[1], "word_skip": word_skip, **options}
    layer = randomise(RECURRENT_CELLS[cell](C, D, options=RECURRENT_CELLS[cell].Options(**options)).double(), 0.7)
    layer.read_dictionary(dictionary)
    return layer


def run(layer, x, state=None, *, tokens=None):
    """Output and state, from zeros where there is no state before."""
    context = CellContext(stack_input=x, tokens=tokens)
    return layer(x, layer.initial_state(x) if state is None else state, context)


@every_case
@pytest.mark.parametrize("num_known", [None, 2])
def test_the_skip_joins_the_first_letters_of_words(case, num_known, dictionary):
    layer = make(case, dictionary)
    text = ["ab_c_a__b", "_ab_cabc_", "abcabcabc", "_________"]
    tokens = torch.tensor([[dictionary.index(letter) for letter in line] for line in text])
    x = torch.randn(B, T, C, dtype=torch.float64)
    state, boundaries = layer.initial_state(x), tokens.eq(dictionary.index("_"))
    expected, _ = plain_formulas.recurrent(layer, x, state, x, boundaries=boundaries, **CASES[case][2])
    if num_known is None:
        found, _ = run(layer, x, tokens=tokens)
    else:
        context = CellContext(stack_input=x, tokens=tokens)
        found, _ = steps_of_layer(layer, x, state, context, num_known=num_known, num_stack_known=0)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(result.square().sum(), list(layer.parameters())) for result in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


@every_case
def test_words_that_two_windows_share_are_whole(case, dictionary):
    layer = make(case, dictionary)
    tokens = torch.tensor([[dictionary.index(letter) for letter in line] for line in ("ab_cab_ca", "_a_bca_bc")])
    x = torch.randn(2, T, C, dtype=torch.float64)
    whole, end = run(layer, x, tokens=tokens)
    for cut in range(1, T):
        first, state = run(layer, x[:, :cut], tokens=tokens[:, :cut])
        second, state = run(layer, x[:, cut:], state, tokens=tokens[:, cut:])
        torch.testing.assert_close(torch.cat([first, second], dim=1), whole, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(state, end, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("symbol", ["_", "</s>"])
def test_end_marks_stand_between_words_too(symbol, dictionary):
    layer = make("rectifier", dictionary)
    tokens = torch.tensor([[dictionary.index(token) for token in ("a", "b", symbol, "c", "a")]])
    x = torch.randn(1, 5, C, dtype=torch.float64)
    _, first = run(layer, x[:, :1], tokens=tokens[:, :1])
    outputs, last = run(layer, x, tokens=tokens)
    assert torch.equal(first["first_letter"], first["x"])
    assert torch.equal(last["first_letter"], outputs[:, 3])


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
        make(case, dictionary, **options)


# the diagonal network


def test_a_window_of_the_diagonal_network_is_one_scan(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "fairseq_plugins.modules.simple_rnn.linear_scan", lambda *tensors: calls.append(1) or linear_scan(*tensors)
    )
    x = torch.randn(B, T, C, dtype=torch.float64)
    layer = DiagonalRNN(C, D, options=DiagonalOptions()).double()
    run(layer, x)
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
    steps = steps_of_layer(layer, x, layer.initial_state(x), CellContext(x), num_known=8, num_stack_known=0)
    outputs = [run(layer, x)[0], steps[0]]
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
