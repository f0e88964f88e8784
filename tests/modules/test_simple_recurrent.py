"""Layers without gates against the equations of Pachitariu & Sahani 2013."""

import plain_formulas
import pytest
import torch
from cell_cases import assert_as_by_hand
from fairseq.data import Dictionary

from fairseq_plugins.modules.rectifier_rnn import RectifierRNN, SmoothRectifierOptions, SmoothRectifierRNN
from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS, CellContext, Late
from fairseq_plugins.modules.simple_recurrent import SimpleRecurrentOptions

B, T, C, D = 4, 9, 5, 6
SMOOTHING = 0.7

CASES = {
    "diagonal": ("diagonal", {}, lambda z: z),
    "full": ("diagonal", {"transition": "full"}, lambda z: z),
    "rectifier": ("rectifier", {}, plain_formulas.rectified),
    "scaled": ("rectifier", {"recurrent_scale": 0.3}, plain_formulas.rectified),
    "smooth": (
        "smooth-rectifier",
        {"rectifier_smoothing": SMOOTHING},
        lambda z: plain_formulas.rectified(z, SMOOTHING),
    ),
}

every_case = pytest.mark.parametrize("case", CASES)


@pytest.fixture
def dictionary():
    words = Dictionary()
    for letter in "_abc":
        words.add_symbol(letter)
    return words


def make(case, *, input_size=C, dictionary=None, **options):
    cell, flags, _ = CASES[case]
    layer = RECURRENT_CELLS[cell](input_size, D, options=RECURRENT_CELLS[cell].Options(**flags, **options)).double()
    with torch.no_grad():
        for param in layer.parameters():
            param.uniform_(-0.7, 0.7)
    if dictionary is not None:
        layer.read_dictionary(dictionary)
    return layer


def scale_of(case):
    return CASES[case][1].get("recurrent_scale", 1)


def by_hand(case, layer, x, state, **skip):
    w_x = torch.eye(D, dtype=x.dtype) if layer.input is None else layer.input.weight
    w_h = (
        torch.diag(torch.tanh(layer.start + layer.connection_bias))
        if layer.recurrent is None
        else scale_of(case) * layer.recurrent.weight
    )
    outputs = plain_formulas.simple_recurrent(x, state["x"], w_x, w_h, CASES[case][2], **skip)
    return outputs, {"x": outputs[:, -1]}


@every_case
@pytest.mark.parametrize("input_matrix", ["on", "off"])
@pytest.mark.parametrize("num_known", [None, 0, 2, "all"])
def test_values_and_gradients_are_those_of_the_equations(case, input_matrix, num_known):
    size = C if input_matrix == "on" else D
    layer = make(case, input_size=size, input_matrix=input_matrix)
    x, state = torch.randn(B, T, size, dtype=torch.float64), {"x": torch.randn(B, D, dtype=torch.float64)}
    known = size if num_known == "all" else num_known
    assert_as_by_hand(layer, x, state, lambda: by_hand(case, layer, x, state), num_known=known)


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
        found, _ = layer(x, state, CellContext(stack_input=x, tokens=tokens))
    else:
        prepared, outputs = layer.prepare(x[..., :num_known], CellContext(stack_input=x, tokens=tokens)), []
        for t in range(T):
            output, state = layer.step(prepared, t, Late(x[:, t, num_known:], x[:, t]), state)
            outputs.append(output)
        found = torch.stack(outputs, dim=1)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(result.square().sum(), list(layer.parameters())) for result in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


@every_case
def test_words_that_two_windows_share_are_whole(case, dictionary):
    layer = make(case, word_skip="_", dictionary=dictionary)
    tokens = torch.tensor([[dictionary.index(letter) for letter in line] for line in ("ab_cab_ca", "_a_bca_bc")])
    x = torch.randn(2, T, C, dtype=torch.float64)
    whole, end = layer(x, layer.initial_state(x), CellContext(stack_input=x, tokens=tokens))
    for cut in range(1, T):
        outputs, state = [], layer.initial_state(x)
        for part in (slice(0, cut), slice(cut, T)):
            output, state = layer(x[:, part], state, CellContext(stack_input=x[:, part], tokens=tokens[:, part]))
            outputs.append(output)
        torch.testing.assert_close(torch.cat(outputs, dim=1), whole, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(state, end, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("symbol", ["_", "</s>"])
def test_end_marks_stand_between_words_too(symbol, dictionary):
    layer = make("rectifier", word_skip="_", dictionary=dictionary)
    tokens = torch.tensor([[dictionary.index(token) for token in ("a", "b", symbol, "c", "a")]])
    x = torch.randn(1, 5, C, dtype=torch.float64)
    first = layer(x[:, :1], layer.initial_state(x), CellContext(stack_input=x[:, :1], tokens=tokens[:, :1]))[1]
    last = layer(x, layer.initial_state(x), CellContext(stack_input=x, tokens=tokens))
    assert torch.equal(first["first_letter"], first["x"])
    assert torch.equal(last[1]["first_letter"], last[0][:, 3])


# the scale of recurrent matrices


def test_a_scale_makes_adagrads_steps_shorter():
    layers = [RectifierRNN(2, 3, options=SimpleRecurrentOptions(recurrent_scale=scale)) for scale in (1.0, 0.01)]
    starts = [layer.recurrent_matrices()[0].detach().clone() for layer in layers]
    steps = []
    for layer, start in zip(layers, starts):
        optimizer = torch.optim.Adagrad(layer.parameters(), lr=0.05)
        layer.recurrent_matrices()[0].sum().backward()
        optimizer.step()
        steps.append((layer.recurrent_matrices()[0].detach() - start).abs())
    torch.testing.assert_close(steps[0], torch.full((3, 3), 0.05))
    torch.testing.assert_close(steps[1], torch.full((3, 3), 0.0005))


def test_scaled_matrices_are_orthogonal_where_they_start_by_layer():
    layer = RectifierRNN(2, 5, options=SimpleRecurrentOptions(recurrent_scale=0.01, word_skip="_"))
    layer.start_by_layer()
    for matrix in layer.recurrent_matrices():
        torch.testing.assert_close(matrix @ matrix.t(), torch.eye(5))


def test_another_scale_than_the_checkpoints_is_refused():
    layer, other = (RectifierRNN(2, 3, options=SimpleRecurrentOptions(recurrent_scale=scale)) for scale in (1.0, 0.01))
    with pytest.raises(ValueError, match="trained with --recurrent-scale 0.01"):
        layer.load_state_dict(other.state_dict())


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_a_scale_that_is_not_above_zero_is_refused(scale):
    with pytest.raises(ValueError, match="--recurrent-scale"):
        RectifierRNN(2, 3, options=SimpleRecurrentOptions(recurrent_scale=scale))


def test_a_diagonal_is_not_scaled():
    layer, other = (make("diagonal", recurrent_scale=scale) for scale in (1.0, 0.1))
    assert other.recurrent_matrices() == []
    with torch.no_grad():
        other.connection_bias.copy_(layer.connection_bias)
    assert torch.equal(layer.self_connections(), other.self_connections())


# the smooth rectifier


def test_the_smooth_rectifier_comes_near_to_the_plain_one():
    z, distances = torch.linspace(-3, 3, 61, dtype=torch.float64), []
    for smoothing in (1.0, 0.1, 0.001):
        options = SmoothRectifierOptions(rectifier_smoothing=smoothing)
        distances.append((SmoothRectifierRNN(2, 3, options=options).activation(z) - z.clamp(min=0)).abs().max().item())
    assert distances == pytest.approx([1, 0.1, 0.001], rel=0.01)


def test_the_derivative_of_the_smooth_rectifier_is_zero_at_zero():
    z = torch.tensor([1e-4, -1e-4], dtype=torch.float64, requires_grad=True)
    make("smooth").activation(z).sum().backward()
    assert z.grad.abs().max() < 1e-6


@pytest.mark.parametrize("smoothing", [0.0, -1.0])
def test_a_smoothing_that_divides_by_nothing_is_refused(smoothing):
    with pytest.raises(ValueError, match="--rectifier-smoothing"):
        SmoothRectifierRNN(2, 3, options=SmoothRectifierOptions(rectifier_smoothing=smoothing))


def test_another_smoothing_than_the_checkpoints_is_refused():
    layer, other = (SmoothRectifierRNN(2, 3, options=SmoothRectifierOptions(rectifier_smoothing=a)) for a in (1.0, 2.0))
    with pytest.raises(ValueError, match="trained with --rectifier-smoothing 2"):
        layer.load_state_dict(other.state_dict())


# refusals and parameters


@pytest.mark.parametrize("other", ["full", "smooth"])
def test_another_cell_than_the_checkpoints_is_refused(other):
    with pytest.raises(ValueError, match="trained with --rnn-cell rectifier, this model has --rnn-cell"):
        make(other).load_state_dict(make("rectifier").state_dict())


@every_case
def test_an_input_of_another_width_needs_a_matrix(case):
    with pytest.raises(ValueError, match="--input-matrix off: the layer is 6 wide and its input 5"):
        make(case, input_matrix="off")


@every_case
def test_a_symbol_that_the_dictionary_lacks_is_refused(case, dictionary):
    with pytest.raises(ValueError, match="--word-skip %: dict.txt has no such symbol"):
        make(case, word_skip="%", dictionary=dictionary)


@pytest.mark.parametrize(
    "case, options, count",
    [
        ("diagonal", {}, C * D + D),
        ("full", {}, C * D + D * D),
        ("rectifier", {}, C * D + D * D),
        ("smooth", {"word_skip": "_"}, C * D + 2 * D * D),
    ],
)
def test_there_are_matrices_and_no_biases(case, options, count):
    assert sum(param.numel() for param in make(case, **options).parameters()) == count
