"""Decoder layers, attention and input feeding against the equations, step by step."""

import plain_formulas
import pytest
import torch

from fairseq_plugins.modules.attention import ATTENTIONS, Memory
from fairseq_plugins.modules.attentional_stack import AttentionalStack
from fairseq_plugins.modules.major_minor_lstm import MajorMinorOptions
from fairseq_plugins.modules.recurrent_state import state_tensors
from fairseq_plugins.modules.variational_lstm import VariationalOptions

B, T, S, C = 3, 6, 5, 4
WIDTHS = [6, 7]  # the last is the annotations' as well
CASES = [(name, feeding) for name in sorted(ATTENTIONS) for feeding in ("on", "off")] + [("none", "off")]

CELLS = {
    "lstm": None,
    "mmlstm": MajorMinorOptions(major_proportions="0.6"),
    "mmlstm, minors read the layer below": MajorMinorOptions(major_proportions="0.6", minor_input="previous"),
    "variational": VariationalOptions(rnn_biases="one"),
}

every_cell = pytest.mark.parametrize("cell", CELLS)
every_case = pytest.mark.parametrize("attention, feeding", CASES)


def make(attention, feeding, *, cell="lstm", widths=WIDTHS, dropout=0.0, output_dropout=None):
    built = None if attention == "none" else ATTENTIONS[attention](widths[-1], widths[-1])
    stack = AttentionalStack(
        C,
        widths,
        cell=cell.split(",")[0],
        cell_options=CELLS[cell],
        attention=built,
        input_feeding=feeding,
        hidden_dropout=dropout,
        output_dropout=dropout if output_dropout is None else output_dropout,
    )
    with torch.no_grad():
        for param in stack.parameters():
            param.uniform_(-0.7, 0.7)
    return stack.double()


@pytest.fixture
def x():
    return torch.randn(B, T, C, dtype=torch.float64)


def make_memory(stack, width=WIDTHS[-1]):
    if stack.attention is None:
        return None
    annotations = torch.randn(B, S, width, dtype=torch.float64)
    padding = torch.arange(S) < torch.tensor([[0], [S - 1], [2]])
    annotations[padding] = 0
    return Memory(annotations=annotations, keys=stack.attention.keys(annotations), padding=padding)


def make_state(stack, widths=WIDTHS):
    return stack.initial_state([dict(zip("hc", torch.randn(2, B, width, dtype=torch.float64))) for width in widths])


def attend_by_hand(attention, h, memory):
    """h~ (B, H) and the weights (B, S) for h (B, H)."""
    weights, e = attention.state_dict(keep_vars=True), memory.annotations
    if "score.weight" in weights:
        hidden = torch.tanh((h @ weights["query.weight"].T)[:, None] + e @ weights["key.weight"].T)
        scores = hidden @ weights["score.weight"][0]
    else:
        query = h @ weights["query.weight"].T if "query.weight" in weights else h
        scores = torch.einsum("bm,bsm->bs", query, e)
    a = plain_formulas.softmax(scores - 1e9 * memory.padding)
    context = torch.einsum("bs,bsm->bm", a, e)
    return torch.tanh(torch.cat([h, context], dim=1) @ weights["combine.weight"].T), a


def by_hand(stack, x, memory, state, feeding, masks=None):
    """All layers' outputs, h~ before dropout, weights, final states; ``masks`` multiply the layers' outputs."""
    states, num_layers = list(state["layers"]), len(state["layers"])
    fed = torch.zeros_like(states[-1]["h"])
    outputs, tops, weights = [[] for _ in range(num_layers + 1)], [], []
    for t in range(T):
        below = first = torch.cat([x[:, t], fed], dim=1) if feeding == "on" else x[:, t]
        for n, layer in enumerate(stack.stack.layers):
            output, states[n] = plain_formulas.recurrent(layer, below.unsqueeze(1), states[n], first.unsqueeze(1))
            h = output.squeeze(1)
            below = h if masks is None else h * masks[n][:, t]
            outputs[n].append(below)
        top = h
        if memory is not None:
            top, a = attend_by_hand(stack.attention, h, memory)
            outputs[-1].append(top if masks is None else top * masks[-1][:, t])
            weights.append(a)
        tops.append(top)
        fed = top
    layers = [torch.stack(steps, dim=1) for steps in outputs if steps]
    return layers, torch.stack(tops, dim=1), torch.stack(weights, dim=1) if weights else None, states


def assert_as_by_hand(outputs, expected):
    layers, top, weights, states = expected
    torch.testing.assert_close(outputs.layers, layers, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(outputs.top, top, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(outputs.state["layers"], states, rtol=1e-12, atol=1e-12)
    if weights is None:
        assert outputs.attention is None
    else:
        torch.testing.assert_close(outputs.attention, weights, rtol=1e-12, atol=1e-12)


@every_case
@pytest.mark.parametrize("widths", [WIDTHS, [7], [3, 5, 7]])
@every_cell
def test_outputs_weights_and_state_are_those_of_the_equations(cell, attention, feeding, widths, x):
    stack = make(attention, feeding, cell=cell, widths=widths)
    memory, state = make_memory(stack), make_state(stack, widths)
    outputs = stack(x, memory, state)
    assert [layer.shape for layer in outputs.layers] == [
        (B, T, width) for width in (*widths, *([] if memory is None else widths[-1:]))
    ]
    assert_as_by_hand(outputs, by_hand(stack, x, memory, state, feeding))


@every_case
@every_cell
def test_two_calls_with_the_state_handed_on_are_one(cell, attention, feeding, x):
    stack = make(attention, feeding, cell=cell)
    memory, state = make_memory(stack), make_state(stack)
    whole, first = stack(x, memory, state), stack(x[:, :2], memory, state)
    second = stack(x[:, 2:], memory, first.state)
    for layer, *halves in zip(whole.layers, first.layers, second.layers):
        torch.testing.assert_close(torch.cat(halves, dim=1), layer, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(second.state, whole.state, rtol=1e-12, atol=1e-12)


@every_case
@every_cell
def test_one_step_a_call_is_all_steps_in_one_call(cell, attention, feeding, x):
    stack = make(attention, feeding, cell=cell)
    memory, state = make_memory(stack), make_state(stack)
    whole, steps = stack(x, memory, state), []
    for t in range(T):
        steps.append(stack(x[:, t : t + 1], memory, state))
        state = steps[-1].state
    found = [torch.cat(parts, dim=1) for parts in zip(*([*step.layers, step.top] for step in steps))]
    torch.testing.assert_close(found, [*whole.layers, whole.top], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state, whole.state, rtol=1e-12, atol=1e-12)
    if memory is not None:
        weights = torch.cat([step.attention for step in steps], dim=1)
        torch.testing.assert_close(weights, whole.attention, rtol=1e-12, atol=1e-12)


def test_the_first_layer_reads_the_embedding_first_and_then_what_is_fed(x):
    stack, plain = make("general", "on"), make("general", "off")
    weight = stack.stack.layers[0].weight_ih_l0
    assert weight.size(1) == C + WIDTHS[-1]
    with torch.no_grad():
        weight[:, C:] = 0
    shared = {name: param for name, param in stack.state_dict().items() if name != "stack.layers.0.weight_ih_l0"}
    plain.load_state_dict({**shared, "stack.layers.0.weight_ih_l0": weight[:, :C]})
    memory, state = make_memory(stack), make_state(stack)
    torch.testing.assert_close(stack(x, memory, state).layers, plain(x, memory, state).layers, rtol=1e-12, atol=1e-12)


def test_what_is_fed_starts_at_zero_and_is_the_attentions_output_of_the_last_step(x):
    stack = make("general", "on", dropout=0.5)
    state = make_state(stack)
    assert state["fed"].shape == (B, WIDTHS[-1]) and not state["fed"].any()
    outputs = stack(x, make_memory(stack), state)
    fed = outputs.state["fed"]
    assert torch.equal(fed, outputs.top[:, -1]) and (fed != 0).all()


@pytest.mark.parametrize("attention", ["general", "none"])
def test_without_feeding_there_is_nothing_fed(attention, x):
    stack = make(attention, "off")
    state = make_state(stack)
    assert list(state) == list(stack(x, make_memory(stack), state).state) == ["layers"]


@every_case
@every_cell
def test_dropout_is_standard_and_spares_the_states_the_query_and_what_is_fed(cell, attention, feeding, x):
    stack = make(attention, feeding, cell=cell, dropout=0.5)
    memory, state = make_memory(stack), make_state(stack)
    outputs = stack(x, memory, state)
    masks = [2.0 * layer.ne(0) for layer in outputs.layers]
    assert_as_by_hand(outputs, by_hand(stack, x, memory, state, feeding, masks))
    for mask in masks:
        assert 0.3 < mask.eq(0).double().mean() < 0.7
        assert all(len({tuple(step.tolist()) for step in row}) > T // 2 for row in mask)
        assert len({tuple(row.flatten().tolist()) for row in mask}) == B
    assert len({tuple(mask[..., :6].flatten().tolist()) for mask in masks}) == len(masks)


@every_case
def test_the_dropout_rate_is_that_of_every_layer(attention, feeding):
    stack = make(attention, feeding, dropout=0.2)
    outputs = stack(torch.randn(B, 400, C, dtype=torch.float64), make_memory(stack), make_state(stack))
    for layer in outputs.layers:
        n = layer.numel()
        assert layer.eq(0).double().mean().item() == pytest.approx(0.2, abs=4 * (0.16 / n) ** 0.5)


@every_case
def test_what_the_output_layer_alone_reads_has_a_rate_of_its_own(attention, feeding, x):
    stack = make(attention, feeding, dropout=0.5, output_dropout=0.0)
    outputs = stack(x, make_memory(stack), make_state(stack))
    num_between = len(WIDTHS) - 1
    assert all(layer.eq(0).any() for layer in outputs.layers[:num_between])
    assert outputs.layers[num_between:] and all(layer.ne(0).all() for layer in outputs.layers[num_between:])


@every_case
def test_every_call_draws_fresh_masks_and_evaluation_none(attention, feeding, x):
    stack, plain = make(attention, feeding, dropout=0.5), make(attention, feeding)
    plain.load_state_dict(stack.state_dict())
    memory, state = make_memory(stack), make_state(stack)
    assert not torch.equal(stack(x, memory, state).layers[0], stack(x, memory, state).layers[0])
    found, expected = stack.eval()(x, memory, state), plain(x, memory, state)
    torch.testing.assert_close(found.layers, expected.layers, rtol=0, atol=0)


@every_case
@every_cell
def test_gradients_are_those_of_the_equations(cell, attention, feeding, x):
    stack = make(attention, feeding, cell=cell)
    memory, state = make_memory(stack), make_state(stack)
    wanted = [x, *state_tensors(state["layers"]), *stack.parameters()]
    if memory is not None:
        wanted.append(memory.annotations)
    for tensor in wanted:
        tensor.requires_grad_()
    if memory is not None:
        memory.keys = stack.attention.keys(memory.annotations)
    ours = torch.autograd.grad(stack(x, memory, state).layers[-1].pow(2).sum(), wanted)
    layers, _, _, _ = by_hand(stack, x, memory, state, feeding)
    expected = torch.autograd.grad(layers[-1].pow(2).sum(), wanted)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)
    assert all(gradient.abs().sum() > 0 for gradient in ours)


def test_feeding_without_attention_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match="--input-feeding on .*--attention, or off"):
        make("none", "on")
