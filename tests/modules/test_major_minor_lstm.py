"""Major-Minor LSTM against the recurrences written out (Shuang et al. 2020, section IV-C)."""

import plain_formulas
import pytest
import torch

from fairseq_plugins.modules.cell import CellContext
from fairseq_plugins.modules.lstm import WeightDropOptions
from fairseq_plugins.modules.major_minor_lstm import MINOR_INPUTS, MajorMinorLSTM, MajorMinorOptions
from fairseq_plugins.modules.stack import RecurrentStack

B, T, C = 3, 6, 5
WIDTHS, PROPORTIONS = [10, 8, 5], "0.7 0.5 0.6"
SIZES = [(7, 3), (4, 4), (3, 2)]

every_minor_input = pytest.mark.parametrize("minor_input", MINOR_INPUTS)


def make(proportions=PROPORTIONS, minor_input="embedding", *, widths=WIDTHS, **rates):
    options = MajorMinorOptions(major_proportions=proportions, minor_input=minor_input)
    return RecurrentStack(C, widths, cell="mmlstm", cell_options=options, **rates).double()


def make_layer(input_size=C, sizes=(7, 3), *, minor_input_size=C, **options):
    return MajorMinorLSTM(input_size, sizes, minor_input_size=minor_input_size, options=MajorMinorOptions(**options))


def run(layer, x, state=None):
    """Output of one layer that is the first of its stack."""
    return layer(x, layer.initial_state(x) if state is None else state, CellContext(stack_input=x))[0]


@pytest.fixture
def x():
    return torch.randn(B, T, C, dtype=torch.float64)


@pytest.fixture
def state():
    return [dict(zip("hc", torch.randn(2, B, width, dtype=torch.float64))) for width in WIDTHS]


def by_hand(stack, x, state, minor_input):
    """Outputs and states from the equations: majors read the layer below, minors the stack's input or that layer."""
    below, outputs, states = x, [], []
    for layer, (major_size, _), before in zip(stack.layers, SIZES, state):
        (h_ma, h_mi), (c_ma, c_mi) = ((before[name][:, :major_size], before[name][:, major_size:]) for name in "hc")
        major = plain_formulas.lstm(below, h_ma, c_ma, *layer.major.parameters())
        minor = plain_formulas.lstm(x if minor_input == "embedding" else below, h_mi, c_mi, *layer.minor.parameters())
        below, h, c = (torch.cat(parts, dim=-1) for parts in zip(major, minor))
        outputs.append(below)
        states.append({"h": h, "c": c})
    return outputs, states


@every_minor_input
def test_gradients_are_those_of_the_equations(minor_input, x, state):
    stack = make(minor_input=minor_input)
    wanted = [x.requires_grad_(), *stack.parameters()]
    ours = torch.autograd.grad(stack(x, state).top.pow(2).sum(), wanted)
    expected = torch.autograd.grad(by_hand(stack, x, state, minor_input)[0][-1].pow(2).sum(), wanted)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)
    assert all(gradient.abs().sum() > 0 for gradient in ours)


def test_a_proportion_is_the_majors_share_of_the_width():
    assert [layer.sizes for layer in make().layers] == SIZES
    assert [layer.sizes for layer in make("0.6").layers] == [(6, 4), (5, 3), (3, 2)]
    assert [(layer.major.input_size, layer.minor.input_size) for layer in make().layers] == [(5, 5), (10, 5), (8, 5)]
    previous = make(minor_input="previous").layers
    assert [(layer.major.input_size, layer.minor.input_size) for layer in previous] == [(5, 5), (10, 10), (8, 8)]


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
        gradients = {name: param.grad for name, param in stack.named_parameters()}
        results.append(
            [*outputs.layers, *(part for layer in outputs.state for part in layer.values()), *gradients.values()]
        )
        names = list(stack.state_dict())
    assert all(torch.equal(*pair) for pair in zip(*results))
    assert names == list(RecurrentStack(C, WIDTHS).state_dict())


def test_weight_drop_masks_both_recurrent_matrices_and_nothing_else(x):
    layer, undropped = make_layer(dropout_weight=0.5).double(), make_layer().double()
    undropped.load_state_dict(layer.state_dict())
    outputs = [run(layer, x) for _ in range(2)]
    expected = run(undropped, x)
    for part in (slice(None, 7), slice(7, None)):
        assert not torch.allclose(outputs[0][..., part], outputs[1][..., part])
        torch.testing.assert_close(outputs[0][:, 0, part], expected[:, 0, part])  # h_0 = 0 knows no recurrent matrix
    assert torch.equal(run(layer.eval(), x), expected)


def test_the_parts_are_named():
    assert [layer.feature_groups for layer in make("0.7 1 0.6").layers] == [
        {"major": slice(0, 7), "minor": slice(7, 10)},
        {},
        {"major": slice(0, 3), "minor": slice(3, 5)},
    ]


# what does not fit


@pytest.mark.parametrize(
    "proportions, message",
    [
        ("0", "--major-proportions 0: a share is above 0 and at most 1"),
        ("-0.5", "--major-proportions -0.5: a share"),
        ("1.1", "--major-proportions 1.1: a share"),
        ("nan", "--major-proportions nan: a share"),
        ("0.9 0.9 90", "--major-proportions 90: a share"),
        ("0.97", "--major-proportions 0.97 leaves no minor LSTM in a layer of width 10: .* 1 for none"),
        ("0.04", "--major-proportions 0.04 leaves no major LSTM in a layer of width 10"),
        ("0.7 0.95 0.6", "--major-proportions 0.95 leaves no minor LSTM in a layer of width 8"),
        ("0.9 0.9", '--major-proportions "0.9 0.9" has 2 values for 3 layers'),
        ("0.9 0.9 0.9 0.9", '--major-proportions "0.9 0.9 0.9 0.9" has 4 values for 3 layers'),
        ("", '--major-proportions "": give numbers'),
        ("0.9 x 0.9", '--major-proportions "0.9 x 0.9": give numbers'),
    ],
)
def test_proportions_that_do_not_fit_are_refused(proportions, message):
    with pytest.raises(ValueError, match=message):
        make(proportions)
