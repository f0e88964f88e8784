"""The contract of every recurrent cell, alone and in a stack. modules/test_cell.py names the tested cells."""

import copy

import pytest
import torch
from assertions import assert_near
from builders import randomise

from fairseq_plugins.modules.cell import (
    RECURRENT_CELLS,
    CellContext,
    RecurrentCell,
    map_state,
    named_tensors,
    select_rows,
    state_tensors,
)
from fairseq_plugins.modules.stack import RecurrentStack
from fairseq_plugins.parts import option_names

B, T, C = 3, 8, 5
WIDTHS = [9, 8]
RATE = 0.5

every_precision = pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-6)])


def make_stack(cell, flags, *, rate=0.0, dtype=torch.float64):
    """A stack of the cell, with one rate for all dropouts of the cell's own."""
    options = RECURRENT_CELLS[cell].Options
    rates = {name: rate for name in option_names(options) if name.startswith("dropout_")}
    stack = RecurrentStack(C, WIDTHS, cell=cell, cell_options=options(**{**rates, **flags})).to(dtype)
    return randomise(stack, 0.5)


def random_state(stack, x):
    return map_state(torch.randn_like, stack.initial_state(x))


def loss(outputs, state):
    """A scalar that every value of both enters."""
    return outputs.pow(2).sum() + sum(part.pow(2).sum() + part.sum() for part in state_tensors(state))


def steps_of_layer(layer, x, state, context, *, num_known, num_stack_known):
    """A layer step by step, with so many columns of its input and of the stack's known in advance."""
    own, first = x.split([num_known, x.size(-1) - num_known], dim=-1), context.stack_input
    known_first, late_first = first[..., :num_stack_known], first[..., num_stack_known:]
    step = layer.steps(own[0], CellContext(stack_input=known_first, tokens=context.tokens))
    outputs = []
    for t in range(x.size(1)):
        late = (part[:, t] if part.size(-1) else None for part in (own[1], late_first))
        output, state = step(t, state, *late)
        outputs.append(output)
    return torch.stack(outputs, dim=1), state


def some(num_columns):
    """None, some and all of the columns."""
    return {"none": 0, "some": num_columns // 2, "all": num_columns}


class CellContract:
    """Tests of a cell; a subclass gives the fixture ``case``, the cell's name and its flags."""

    @pytest.fixture
    def case(self):
        raise NotImplementedError

    @pytest.fixture
    def make(self, case):
        """``make(rate, dtype)``: a stack of the cell."""
        return lambda **options: make_stack(*case, **options)

    @pytest.fixture
    def x(self):
        return torch.randn(B, T, C, dtype=torch.float64)

    @pytest.fixture
    def tokens(self):
        return torch.randint(20, (B, T))

    @pytest.fixture
    def run_layers(self, make, x, tokens, mode):
        """``run_layers(function)``: results for each layer, alone; the same masks are drawn at every call."""
        stack = make(rate=0.0 if mode == "evaluation" else RATE).train(mode == "training")
        context = CellContext(stack_input=x, tokens=tokens)
        inputs = [x, *(torch.randn(B, T, width, dtype=torch.float64) for width in WIDTHS[:-1])]
        states = random_state(stack, x)

        def run(function):
            results = []
            for layer, layer_input, state in zip(stack.layers, inputs, states):
                torch.manual_seed(5)
                wanted = [layer_input.requires_grad_(), *state_tensors(state), *layer.parameters()]
                for part in state_tensors(state):
                    part.requires_grad_()
                found = function(layer, layer_input, state, context)
                results.append((found, torch.autograd.grad(loss(*found), wanted)))
            return results

        return run

    # a layer

    @pytest.mark.parametrize(
        "num_known, num_stack_known, mode",
        [
            ("none", "some", "training"),
            ("some", "all", "evaluation"),
            ("all", "none", "training"),
            ("all", "all", "evaluation"),
        ],
    )
    def test_steps_are_the_whole_run(self, num_known, num_stack_known, run_layers):
        def steps(layer, x, state, context):
            num_columns = {"num_known": some(x.size(-1))[num_known], "num_stack_known": some(C)[num_stack_known]}
            return steps_of_layer(layer, x, state, context, **num_columns)

        whole = run_layers(lambda layer, *arguments: layer(*arguments))
        torch.testing.assert_close(run_layers(steps), whole, rtol=1e-10, atol=1e-12)

    @every_precision
    def test_a_padded_run_of_the_base_class_is_the_cells_own(self, make, x, tokens, dtype, tolerance):
        padding = torch.arange(T) < torch.tensor([[0], [5], [T]])
        x = x.to(dtype)
        for n, layer in enumerate(make(rate=RATE, dtype=dtype).layers):
            layer_input = x if n == 0 else torch.randn(B, T, WIDTHS[n - 1], dtype=dtype)
            context, results = CellContext(stack_input=x, tokens=tokens, leading_padding=padding), []
            for run in (layer, lambda *arguments, layer=layer: RecurrentCell.forward(layer, *arguments)):
                torch.manual_seed(5)
                results.append(run(layer_input, layer.initial_state(x), context))
            torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)

    def test_the_parts_of_the_output_cover_it(self, make):
        for layer, width in zip(make().layers, WIDTHS):
            assert layer.hidden_size == width
            parts = [range(width)[part] for part in layer.feature_groups.values()] or [range(width)]
            assert [feature for part in parts for feature in part] == list(range(width))

    # a stack

    @pytest.mark.parametrize(
        "num_known, mode, dtype, tolerance",
        [(0, "evaluation", torch.float32, 1e-6), (2, "training", torch.float64, 1e-12)],
    )
    def test_steps_of_a_stack_are_the_whole_run(self, make, x, tokens, num_known, mode, dtype, tolerance):
        stack, x = make(rate=RATE, dtype=dtype).train(mode == "training"), x.to(dtype)
        start = state = random_state(stack, x)
        torch.manual_seed(5)
        steps, outputs = stack.steps(x[..., :num_known], tokens=tokens), []
        for t in range(T):
            outputs.append(steps(t, x[:, t, num_known:], state))
            state = outputs[-1].state
        torch.manual_seed(5)
        whole = stack(x, start, tokens=tokens)
        layers = [torch.stack(steps, dim=1) for steps in zip(*(step.layers for step in outputs))]
        torch.testing.assert_close(layers, whole.layers, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(state, whole.state, rtol=tolerance, atol=tolerance)

    def test_states_have_a_row_for_each_batch_row_and_start_at_zero(self, make, x, tokens):
        stack = make()
        start, end = stack.initial_state(x), stack(x, tokens=tokens).state
        assert len(start) == len(end) == len(WIDTHS)
        shapes = [{name: part.shape for name, part in named_tensors(state).items()} for state in (start, end)]
        assert shapes[0] == shapes[1] and all(shape[0] == B for shape in shapes[0].values())
        assert all(part.dtype == torch.float64 and not part.any() for part in state_tensors(start))
        assert all(part.dtype == torch.float32 for part in state_tensors(stack.initial_state(x.float())))

    def test_rows_do_not_see_each_other_and_travel_with_their_state(self, make, x, tokens):
        stack, rows = make(), torch.tensor([2, 0, 0, 1])
        state = random_state(stack, x)
        together = stack(x, state, tokens=tokens)
        chosen = stack(x[rows], select_rows(state, rows), tokens=tokens[rows])
        torch.testing.assert_close(chosen.top, together.top[rows], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(chosen.state, select_rows(together.state, rows), rtol=1e-12, atol=1e-12)

    def test_what_comes_later_is_not_seen(self, make, x, tokens):
        stack, changed, other = make(), x.clone(), tokens.clone()
        changed[:, 5:] += 1
        other[:, 5:] += 1
        first, second = stack(x, tokens=tokens).top, stack(changed, tokens=other).top
        torch.testing.assert_close(first[:, :5], second[:, :5], rtol=1e-12, atol=1e-12)
        assert (first[:, 5] != second[:, 5]).any(dim=-1).all()

    @every_precision
    def test_leading_padding_keeps_the_state_of_all_layers_zero(self, case, make, x, tokens, dtype, tolerance):
        stack, x = make(dtype=dtype), x.to(dtype)
        lengths = [T, 3, 1, 0]
        x, tokens = torch.cat([x, x[:1]]), torch.cat([tokens, tokens[:1]])
        padding = torch.arange(T) < T - torch.tensor(lengths).unsqueeze(1)
        x[padding] *= 50
        outputs = stack(x, tokens=tokens, leading_padding=padding)

        def is_read(output):
            return (output > 0).any(dim=-1).all() if "rectifier" in case[0] else (output != 0).all()

        assert all(not output[padding].any() and is_read(output[~padding]) for output in outputs.layers)
        for row, length in enumerate(lengths[:-1]):
            rows, kept = slice(row, row + 1), slice(T - length, T)
            alone = stack(x[rows, kept], tokens=tokens[rows, kept])
            found = [layer[rows, kept] for layer in outputs.layers]
            torch.testing.assert_close(found, alone.layers, rtol=tolerance, atol=tolerance)
            torch.testing.assert_close(select_rows(outputs.state, rows), alone.state, rtol=tolerance, atol=tolerance)
        assert not any(part[-1].any() for part in state_tensors(outputs.state))

    def test_states_are_contiguous_as_a_gpus_kernel_demands(self, make, x, tokens, monkeypatch):
        stack, library, found = make(), torch.lstm, []

        def spy(x, state, *arguments):
            found.extend(part.is_contiguous() for part in state)
            return library(x, state, *arguments)

        monkeypatch.setattr(torch, "lstm", spy)
        outputs = stack(x, stack(x, tokens=tokens).state, tokens=tokens)
        steps = stack.steps(x[..., :2], tokens=tokens)(0, x[:, 0, 2:], outputs.state)
        assert all(found)
        assert all(part.is_contiguous() for state in (outputs.state, steps.state) for part in state_tensors(state))

    @pytest.mark.parametrize("dtype, mode", [(torch.float32, "training"), (torch.float64, "evaluation")])
    def test_gradients_reach_every_parameter_the_input_and_the_state(self, make, x, tokens, mode, dtype):
        stack = make(dtype=dtype).train(mode == "training")
        x = x.to(dtype).requires_grad_()
        state = map_state(torch.Tensor.requires_grad_, random_state(stack, x))
        loss(stack(x, state, tokens=tokens).top, []).backward()
        found = {**dict(stack.named_parameters()), **named_tensors(state), "x": x}
        assert [name for name, part in found.items() if part.grad is None or not part.grad.any()] == []

    def test_gradients_in_evaluation_are_those_of_training_without_dropout(self, make, x, tokens):
        stack, gradients = make(), []
        for training in (True, False):
            outputs = stack.train(training)(x, tokens=tokens)
            gradients.append(torch.autograd.grad(loss(outputs.top, outputs.state), list(stack.parameters())))
        torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)

    @pytest.mark.parametrize("precision", ["bfloat16", "autocast"])
    def test_results_in_16_bits_are_near_those_in_32(self, make, x, tokens, precision):
        stack, x = make(dtype=torch.float32), x.float()
        state = random_state(stack, x)
        expected = stack(x, state, tokens=tokens)
        if precision == "bfloat16":
            stack, x = stack.bfloat16(), x.bfloat16()
            state = map_state(torch.Tensor.bfloat16, state)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            whole = stack(x, state, tokens=tokens)
            step = stack.steps(x[..., :2], tokens=tokens)(0, x[:, 0, 2:], state)
            total = loss(whole.top.float(), whole.state)
        assert_near(whole.top, expected.top)
        assert_near(step.top, expected.top[:, 0])
        total.backward()
        assert all(param.grad.dtype == param.dtype and param.grad.isfinite().all() for param in stack.parameters())

    def test_every_call_draws_fresh_masks_and_evaluation_none(self, make, case, x, tokens):
        stack, plain = make(rate=RATE), make()
        plain.load_state_dict(stack.state_dict())
        if any(name.startswith("dropout_") for name in option_names(RECURRENT_CELLS[case[0]].Options)):
            assert not torch.equal(stack(x, tokens=tokens).top, stack(x, tokens=tokens).top)
        found, expected = stack.eval()(x, tokens=tokens), plain(x, tokens=tokens)
        torch.testing.assert_close((found.layers, found.state), (expected.layers, expected.state), rtol=0, atol=0)

    def test_a_stack_is_saved_loaded_and_copied(self, make, x, tokens, tmp_path):
        stack, other = make(), make()
        expected = stack(x, tokens=tokens).top
        assert not torch.equal(other(x, tokens=tokens).top, expected)
        torch.save(stack.state_dict(), tmp_path / "stack.pt")
        other.load_state_dict(torch.load(tmp_path / "stack.pt", weights_only=True))
        for same in (other, copy.deepcopy(stack)):
            assert torch.equal(same(x, tokens=tokens).top, expected)
        torch.testing.assert_close(stack.float().double()(x, tokens=tokens).top, expected, rtol=1e-5, atol=1e-5)
