"""Attention and attentional stacks against their formulas, position by position."""

import plain_formulas
import pytest
import torch
from assertions import assert_near
from builders import randomise
from operations import TensorSizes

from fairseq_plugins.modules import attention
from fairseq_plugins.modules.attention import ATTENTIONS, AttentionalStack, Memory
from fairseq_plugins.modules.cell import state_tensors
from fairseq_plugins.modules.lstm import VariationalOptions
from fairseq_plugins.modules.major_minor_lstm import MajorMinorOptions
from fairseq_plugins.modules.stack import RecurrentStack

B, T, S, H = 3, 4, 6, 5
LENGTHS = [S, 1, 3]
every_attention = pytest.mark.parametrize("name", sorted(ATTENTIONS))


def make(name, dtype=torch.float64, scale=0.7):
    return randomise(ATTENTIONS[name](H).to(dtype), scale)


def make_inputs(dtype=torch.float64):
    """Queries, annotations with garbage at padding, and where padding is."""
    padding = torch.arange(S) >= torch.tensor(LENGTHS).unsqueeze(1)
    annotations = torch.randn(B, S, H, dtype=dtype)
    annotations[padding] *= 30
    return torch.randn(B, T, H, dtype=dtype), annotations, padding


def attend(attention, query, annotations, padding):
    return attention(query, Memory(annotations=annotations, keys=attention.keys(annotations), padding=padding))


@every_attention
def test_output_and_weights_are_those_of_the_formula_and_padding_has_no_weight_and_no_gradient(name):
    attention = make(name)
    query, annotations, padding = make_inputs()
    output, weights = attend(attention, query, annotations.requires_grad_(), padding)
    steps = [plain_formulas.attended(attention, h, annotations, padding) for h in query.unbind(1)]
    expected = [torch.stack(parts, dim=1) for parts in zip(*steps)]
    torch.testing.assert_close([output, weights], expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(weights == 0, padding.unsqueeze(1).expand_as(weights))
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, T).double(), rtol=0, atol=1e-12)
    output.pow(2).sum().backward()
    assert annotations.grad.isfinite().all() and not annotations.grad[padding].any()


@every_attention
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_near_double(name, dtype):
    attention = make(name, dtype)
    query, annotations, padding = make_inputs(dtype)
    annotations[padding] = 0  # as the encoder leaves it
    output, weights = attend(attention, query, annotations, padding)
    assert output.dtype == dtype and weights.dtype == torch.float32
    tolerance = 16 * torch.finfo(dtype).eps
    expected = attend(attention.double(), query.double(), annotations.double(), padding)
    torch.testing.assert_close((output.double(), weights.double()), expected, rtol=0, atol=tolerance)


@every_attention
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_large_scores_and_padding_bring_no_nan_in_half_precision(name, dtype):
    attention = make(name, dtype, scale=30)
    query, annotations, padding = make_inputs(dtype)
    annotations[padding] /= 30
    output, weights = attend(attention, 10 * query, annotations.requires_grad_(), padding)
    output.float().pow(2).sum().backward()
    assert weights.max() > 0.99
    assert all(x.isfinite().all() for x in (output, weights, annotations.grad))
    assert all(param.grad.isfinite().all() for param in attention.parameters())


STACK_B, STACK_T, STACK_S, C = 3, 6, 5, 4
STACK_WIDTHS = [6, 7]  # the last is the annotations' as well
CASES = [(name, feeding) for name in sorted(ATTENTIONS) for feeding in ("on", "off")] + [("none", "off")]

CELLS = {
    "lstm": None,
    "mmlstm": MajorMinorOptions(major_proportions="0.6"),
    "mmlstm, minors read the layer below": MajorMinorOptions(major_proportions="0.6", minor_input="previous"),
    "variational": VariationalOptions(rnn_biases="one"),
}

CELLS_AND_CASES = [("lstm", *case) for case in CASES] + [(cell, "general", "on") for cell in CELLS if cell != "lstm"]
every_cell_and_case = pytest.mark.parametrize("cell, attention, feeding", CELLS_AND_CASES)


def make_stack(attention, feeding, *, cell="lstm", widths=STACK_WIDTHS, dropout=0.0, output_dropout=None):
    built = None if attention == "none" else ATTENTIONS[attention](widths[-1])
    layers = RecurrentStack(
        C + (widths[-1] if feeding == "on" else 0),
        widths,
        cell=cell.split(",")[0],
        cell_options=CELLS[cell],
        hidden_dropout=dropout,
        output_dropout=dropout if output_dropout is None else output_dropout,
        masks="standard",
    )
    stack = AttentionalStack(layers, attention=built, feeds=feeding == "on")
    randomise(stack, 0.7)
    return stack.double()


@pytest.fixture
def x():
    return torch.randn(STACK_B, STACK_T, C, dtype=torch.float64)


def make_memory(stack):
    if stack.attention is None:
        return None
    annotations = torch.randn(STACK_B, STACK_S, STACK_WIDTHS[-1], dtype=torch.float64)
    padding = torch.arange(STACK_S) < torch.tensor([[0], [STACK_S - 1], [2]])
    annotations[padding] = 0
    return Memory(annotations=annotations, keys=stack.attention.keys(annotations), padding=padding)


def make_state(stack, widths=STACK_WIDTHS):
    return stack.initial_state(
        [dict(zip("hc", torch.randn(2, STACK_B, width, dtype=torch.float64))) for width in widths]
    )


def stack_by_hand(stack, x, memory, state, feeding, masks=None):
    return plain_formulas.attentional_stack(stack, x, memory, state["layers"], feeds=feeding == "on", masks=masks)


def weights_of(outputs):
    return [] if outputs.attention is None else [outputs.attention]


def assert_as_by_hand(outputs, expected):
    """Values are those of the equations; returns both."""
    layers, top, weights, states = expected
    found = [*outputs.layers, outputs.top, *state_tensors(outputs.state["layers"]), *weights_of(outputs)]
    expected = [*layers, top, *state_tensors(states), *([] if weights is None else [weights])]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    return found, expected


@every_cell_and_case
def test_dropout_is_standard_and_spares_the_states_the_query_and_what_is_fed(cell, attention, feeding, x):
    stack = make_stack(attention, feeding, cell=cell, dropout=0.5, output_dropout=0.25)
    memory, state = make_memory(stack), make_state(stack)
    outputs = stack(x, memory, state)
    rates = [0.5, 0.25, 0.25][: len(outputs.layers)]  # what the output layer alone reads has a rate of its own
    masks = [layer.ne(0).double() / (1 - rate) for layer, rate in zip(outputs.layers, rates)]
    assert_as_by_hand(outputs, stack_by_hand(stack, x, memory, state, feeding, masks))
    for mask, rate in zip(masks, rates):
        assert rate - 0.2 < mask.eq(0).double().mean() < rate + 0.2
        assert all(len({tuple(step.tolist()) for step in row}) > STACK_T // 2 for row in mask)
        assert len({tuple(row.flatten().tolist()) for row in mask}) == STACK_B
    assert len({tuple(mask[..., :6].flatten().tolist()) for mask in masks}) == len(masks)


@pytest.mark.parametrize(
    "cell, attention, feeding, widths",
    [
        *((*case, STACK_WIDTHS) for case in CELLS_AND_CASES),
        ("lstm", "mlp", "on", [7]),
        ("lstm", "mlp", "off", [3, 5, 7]),
    ],
)
def test_values_and_gradients_are_those_of_the_equations(cell, attention, feeding, widths, x):
    stack = make_stack(attention, feeding, cell=cell, widths=widths)
    memory, state = make_memory(stack), make_state(stack, widths)
    wanted = [x, *state_tensors(state["layers"]), *stack.parameters()]
    if memory is not None:
        wanted.append(memory.annotations)
    for tensor in wanted:
        tensor.requires_grad_()
    if memory is not None:
        memory.keys = stack.attention.keys(memory.annotations)
    outputs = stack(x, memory, state)
    assert len(outputs.layers) == len(widths) + (memory is not None)
    found, expected = assert_as_by_hand(outputs, stack_by_hand(stack, x, memory, state, feeding))
    factors = [torch.randn_like(part) for part in expected]
    for chosen in ([len(outputs.layers) - 1], range(len(factors))):
        losses = (sum((parts[n] * factors[n]).sum() for n in chosen) for parts in (found, expected))
        ours, gradients = (torch.autograd.grad(loss, wanted, retain_graph=True) for loss in losses)
        torch.testing.assert_close(ours, gradients, rtol=1e-9, atol=1e-12)
        assert all(gradient.abs().sum() > 0 for gradient in ours)


# all steps as one function


def run_both_ways(stack, x, memory, state, monkeypatch):
    """Outputs of the function, and of the steps with the same random numbers."""
    results = []
    for steps in (False, True):
        torch.manual_seed(1)
        with monkeypatch.context() as patch:
            if steps:
                patch.setattr(attention, "WeightDropLSTM", object)
            outputs = stack(x, memory, state)
        assert ("_AttentionalLSTM" in repr(outputs.attention.grad_fn.next_functions)) != steps
        results.append([*outputs.layers, outputs.top, outputs.attention, *state_tensors(outputs.state)])
    return results


def make_learning(name, dtype=torch.float64, padded=True, **options):
    """A stack, its arguments, and all tensors that have gradients."""
    stack = make_stack(name, "on", **options).to(dtype)
    x, memory = torch.randn(STACK_B, STACK_T, C, dtype=dtype), make_memory(stack)
    memory.annotations = memory.keys = memory.annotations.to(dtype)
    memory.padding = memory.padding if padded else None
    state = stack.initial_state(
        [dict(zip("hc", torch.randn(2, STACK_B, width, dtype=dtype))) for width in STACK_WIDTHS]
    )
    wanted = [x, memory.annotations, *state_tensors(state["layers"]), *stack.parameters()]
    return stack, (x, memory, state), [tensor.requires_grad_() for tensor in wanted]


every_fused = pytest.mark.parametrize("name", ["dot", "general"])


@every_fused
@pytest.mark.parametrize("padded", [True, False])
def test_the_function_is_the_steps_with_the_same_masks(name, padded, monkeypatch):
    stack, arguments, wanted = make_learning(name, padded=padded, dropout=0.4)
    for layer in stack.stack.layers:
        layer.rate = 0.3
    results = run_both_ways(stack, *arguments, monkeypatch)
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)
    factors = [torch.randn_like(part) for part in results[0]]
    gradients = [
        torch.autograd.grad(sum(map(torch.vdot, map(torch.ravel, parts), map(torch.ravel, factors))), wanted)
        for parts in results
    ]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


@every_fused
def test_a_kept_graph_of_the_function_gives_the_same_gradients_again(name):
    stack, arguments, wanted = make_learning(name, dropout=0.4)
    outputs = stack(*arguments)
    losses = [outputs.layers[-1].square().sum(), outputs.attention.square().sum()]
    first = torch.autograd.grad(losses[0], wanted, retain_graph=True)
    torch.autograd.grad(losses[1], wanted, retain_graph=True, allow_unused=True)
    assert all(map(torch.equal, first, torch.autograd.grad(losses[0], wanted, create_graph=True)))


@every_fused
def test_the_function_gives_the_same_where_nothing_learns_and_keeps_no_gates(name):
    stack, arguments, wanted = make_learning(name)
    expected, peaks = stack(*arguments).top, []
    for learns, enabled in ((True, True), (True, False), (False, True)):
        for tensor in wanted:
            tensor.requires_grad_(learns)
        with torch.set_grad_enabled(enabled), TensorSizes() as sizes:
            # products with and without a gradient may round differently, as on AMD's processors
            torch.testing.assert_close(stack(*arguments).top, expected, rtol=1e-13, atol=1e-13)
        peaks.append(sizes.peak)
    gates_and_cells = STACK_T * STACK_B * 5 * sum(STACK_WIDTHS)
    assert peaks[1] == peaks[2] < peaks[0] - 0.8 * gates_and_cells


@every_fused
@pytest.mark.parametrize("automatic", [True, False])
def test_the_function_in_16_bits_is_near_the_steps(name, automatic, monkeypatch):
    stack, arguments, wanted = make_learning(name, torch.float32 if automatic else torch.bfloat16, dropout=0.4)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=automatic):
        results = run_both_ways(stack, *arguments, monkeypatch)
    for found, expected in zip(*results):
        assert_near(found, expected)
    assert results[0][-1].dtype == torch.bfloat16 and results[0][3].dtype == torch.bfloat16
    gradients = torch.autograd.grad(results[0][2].float().square().sum(), wanted)
    assert all(x.dtype == tensor.dtype and x.isfinite().all() for x, tensor in zip(gradients, wanted))


@pytest.mark.parametrize("cell, name", [("variational", "dot"), ("mmlstm", "general"), ("lstm", "mlp")])
def test_other_cells_and_scores_keep_the_steps(cell, name, x, monkeypatch):
    stack, calls = make_stack(name, "on", cell=cell), []
    monkeypatch.setattr(stack, "_step_by_step", lambda *arguments, **options: calls.append(arguments))
    stack(x, make_memory(stack), make_state(stack))
    assert len(calls) == 1
