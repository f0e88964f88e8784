"""Major-Minor LSTM against the recurrences written out (Shuang et al. 2020, section IV-C)."""

import plain_formulas
import pytest
import torch

from fairseq_plugins.modules.cell import CellContext, state_tensors
from fairseq_plugins.modules.lstm import WeightDropOptions
from fairseq_plugins.modules.major_minor_lstm import MINOR_INPUTS, MajorMinorLSTM, MajorMinorOptions
from fairseq_plugins.modules.stack import RecurrentStack

B, T, C = 3, 6, 5
WIDTHS = [10, 8, 5]


def make(proportions="0.7 0.5 0.6", minor_input="embedding"):
    options = MajorMinorOptions(major_proportions=proportions, minor_input=minor_input)
    return RecurrentStack(C, WIDTHS, cell="mmlstm", cell_options=options).double()


def make_layer(**options):
    return MajorMinorLSTM(C, (7, 3), minor_input_size=C, options=MajorMinorOptions(**options)).double()


def run(layer, x):
    """Output of one layer that is the first of its stack."""
    return layer(x, layer.initial_state(x), CellContext(stack_input=x))[0]


@pytest.fixture
def x():
    return torch.randn(B, T, C, dtype=torch.float64)


@pytest.mark.parametrize("minor_input", MINOR_INPUTS)
def test_gradients_are_those_of_the_equations(minor_input, x):
    stack = make(minor_input=minor_input)
    state = [dict(zip("hc", torch.randn(2, B, width, dtype=torch.float64))) for width in WIDTHS]
    expected = x.requires_grad_()
    for layer, before in zip(stack.layers, state):
        assert layer.minor_reads_stack_input == (minor_input == "embedding")
        expected, _ = plain_formulas.recurrent(layer, expected, before, x)
    tops, wanted = (stack(x, state).top, expected), [x, *stack.parameters()]
    ours, gradients = (torch.autograd.grad(top.pow(2).sum(), wanted) for top in tops)
    torch.testing.assert_close(ours, gradients, rtol=1e-9, atol=1e-12)
    assert all(gradient.abs().sum() > 0 for gradient in ours)


@pytest.mark.parametrize(
    "proportions, sizes",
    [
        ("0.7 0.5 0.6", [(7, 3), (4, 4), (3, 2)]),
        ("0.6", [(6, 4), (5, 3), (3, 2)]),
        ("0.7 1 0.6", [(7, 3), (8, 0), (3, 2)]),
    ],
)
def test_a_proportion_is_the_majors_share_of_the_width(proportions, sizes):
    assert [layer.feature_groups for layer in make(proportions).layers] == [
        {"major": slice(0, major), "minor": slice(major, major + minor)} if minor else {} for major, minor in sizes
    ]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_proportion_one_is_the_plain_lstm_bit_for_bit(training, dtype, x):
    results = []
    rates = dict(hidden_dropout=0.3, output_dropout=0.2)
    cells = {
        "lstm": WeightDropOptions(dropout_weight=0.5),
        "mmlstm": MajorMinorOptions(dropout_weight=0.5, major_proportions="1"),
    }
    for cell, options in cells.items():
        torch.manual_seed(3)
        stack = RecurrentStack(C, WIDTHS, cell=cell, cell_options=options, **rates).to(dtype).train(training)
        outputs = stack(x.to(dtype))
        outputs.layers[-1].sum().backward()
        gradients = [param.grad for param in stack.parameters()]
        results.append([*outputs.layers, *state_tensors(outputs.state), *gradients])
        names = list(stack.state_dict())
    assert all(torch.equal(*pair) for pair in zip(*results))
    assert names == list(RecurrentStack(C, WIDTHS).state_dict())


def test_weight_drop_masks_both_recurrent_matrices_and_nothing_else(x):
    layer, undropped = make_layer(dropout_weight=0.5), make_layer()
    undropped.load_state_dict(layer.state_dict())
    outputs = [run(layer, x) for _ in range(2)]
    expected = run(undropped, x)
    for part in (slice(None, 7), slice(7, None)):
        assert not torch.allclose(outputs[0][..., part], outputs[1][..., part])
        torch.testing.assert_close(outputs[0][:, 0, part], expected[:, 0, part])  # h_0 = 0 knows no recurrent matrix
    assert torch.equal(run(layer.eval(), x), expected)


# what does not fit


@pytest.mark.parametrize(
    "proportions, message",
    [
        ("0", "--major-proportions 0: a share is above 0 and at most 1"),
        ("1.1", "--major-proportions 1.1: a share"),
        ("nan", "--major-proportions nan: a share"),
        ("0.9 0.9 90", "--major-proportions 90: a share"),
        ("0.97", "--major-proportions 0.97 leaves no minor LSTM in a layer of width 10: .* 1 for none"),
        ("0.04", "--major-proportions 0.04 leaves no major LSTM in a layer of width 10"),
        ("0.7 0.95 0.6", "--major-proportions 0.95 leaves no minor LSTM in a layer of width 8"),
        ("0.9 0.9", '--major-proportions "0.9 0.9" has 2 values for 3 layers'),
        ("", '--major-proportions "": give numbers'),
        ("0.9 x 0.9", '--major-proportions "0.9 x 0.9": give numbers'),
    ],
)
def test_proportions_that_do_not_fit_are_refused(proportions, message):
    with pytest.raises(ValueError, match=message):
        make(proportions)
