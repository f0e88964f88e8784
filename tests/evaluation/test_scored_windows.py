"""Scored windows: what they hold, their gradients, and that generators leave each other alone."""

import pytest
import torch
from builders import CELLS_AND_LAYERS

from fairseq_plugins.evaluation.scored_windows import score_windows
from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS

V = 23


@pytest.fixture
def tokens():
    return torch.randint(V, (60,))


@pytest.fixture
def whole(tokens):
    """``whole(model, num_rows)``: inputs, target, log-probabilities and layers' outputs, read at once."""

    @torch.no_grad()
    def read(model, num_rows):
        rows = tokens[: len(tokens) // num_rows * num_rows].view(num_rows, -1)
        log_probs, extra = model.eval()(rows[:, :-1])
        return rows[:, :-1], rows[:, 1:], log_probs, extra["states"].layers

    return read


@pytest.mark.parametrize("words", ["targets", "all"])
@pytest.mark.parametrize("num_rows, window", [(1, 7), (4, 5), (4, 1000)])
def test_windows_hold_what_one_pass_gives(num_rows, window, words, build_tiny_lm, tokens, whole):
    model = build_tiny_lm("doc", experts_per_layer="1 0 2", dropout_output=0.5).double().train()
    windows = list(score_windows([model], tokens, num_rows=num_rows, window=window, words=words))
    inputs, target, log_probs, layers = whole(model, num_rows)
    assert torch.equal(torch.cat([one.inputs for one in windows], dim=1), inputs)
    assert torch.equal(torch.cat([one.target for one in windows], dim=1), target)
    nll = -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(torch.cat([one.nll for one in windows], dim=1), nll, rtol=1e-11, atol=1e-11)
    for n, layer in enumerate(layers):
        joined = torch.cat([one.states[0].layers[n] for one in windows], dim=1)
        torch.testing.assert_close(joined, layer, rtol=1e-11, atol=1e-11)
    assert all(one.scores[0].mixture_weights.shape == (num_rows, one.target.size(1), 3) for one in windows)
    if words == "targets":
        assert all(one.log_probs is None for one in windows)
        assert all(one.scores[0].loss.item() == pytest.approx(one.nll.sum().item()) for one in windows)
    else:
        joined = torch.cat([one.log_probs for one in windows], dim=1)
        torch.testing.assert_close(joined, log_probs, rtol=1e-11, atol=1e-11)


def test_log_probabilities_of_all_words_are_averaged_too(build_tiny_lm, tokens, whole):
    models = [build_tiny_lm("tied", seed=1), build_tiny_lm("mos", seed=2).double()]
    (window,) = score_windows(models, tokens, words="all")
    mean = sum(whole(model, 1)[2].double().exp() for model in models) / 2
    torch.testing.assert_close(window.log_probs.exp(), mean, rtol=1e-6, atol=1e-6)
    at_target = window.log_probs.gather(-1, window.target.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(window.nll, -at_target)
    assert len(window.states) == len(window.scores) == 2 and window.nll.dtype == torch.float64


def test_generators_that_run_by_turns_and_a_training_between_do_not_disturb_each_other(build_tiny_lm, tokens):
    model, others = build_tiny_lm("tied", dropout_output=0.5), tokens.flip(0)
    expected = [[one.nll for one in score_windows([model], text, window=7)] for text in (tokens, others)]
    undisturbed = build_tiny_lm("tied", dropout_output=0.5).train()
    first, second = tokens.view(6, 10)[:, :5], tokens.view(6, 10)[:, 5:]
    model.train()(first, stream="train", position=0)
    undisturbed(first, stream="train", position=0)
    found = [[], []]
    for windows in zip(score_windows([model], tokens, window=7), score_windows([model], others, window=7)):
        model.train()
        for one, nlls in zip(windows, found):
            nlls.append(one.nll)
    for nlls, expected_nlls in zip(found, expected):
        torch.testing.assert_close(nlls, expected_nlls, rtol=0, atol=0)
    outputs = [lm.eval()(second, stream="train", position=5)[1]["states"].layers[1] for lm in (model, undisturbed)]
    torch.testing.assert_close(*outputs, rtol=0, atol=0)


@pytest.mark.parametrize("num_read", [1, 3, 1000])
def test_the_state_is_forgotten_at_the_end_and_where_the_reader_stops(num_read, build_tiny_lm, tokens):
    model, streams = build_tiny_lm("tied"), set()
    model.register_forward_pre_hook(lambda _, __, options: streams.add(options["stream"]), with_kwargs=True)
    windows, carried_state = score_windows([model], tokens, window=7), model.decoder.carried_state
    for _ in zip(range(num_read), windows):
        pass
    (stream,) = streams
    if num_read < 1000:
        carried_state.get(stream, 7 * num_read)
    windows.close()
    with pytest.raises(ValueError, match="cannot go on"):
        carried_state.get(stream, 7 * num_read if num_read < 1000 else len(tokens) - 1)


def test_gradients_are_off_unless_asked_for_and_the_readers_setting_stays(build_tiny_lm, tokens):
    model = build_tiny_lm("tied")
    for mode in (True, False):
        with torch.set_grad_enabled(mode):
            for asked in (True, False):
                for window in score_windows([model], tokens, window=20, with_gradients=asked):
                    assert torch.is_grad_enabled() == mode
                    assert window.scores[0].loss.requires_grad == window.states[0].top.requires_grad == asked
                    assert not window.nll.requires_grad


@pytest.mark.parametrize("cell, name", CELLS_AND_LAYERS)
def test_gradients_of_a_window_are_finite_differences_from_the_state_before_it(cell, name, build_tiny_lm, tokens):
    # weights that are not beside a kink: the Mogrifier caps its input gate by min(i, 1 - f)
    model = build_tiny_lm(name, rnn_cell=cell, dropout_output=0.5, seed=1).double()
    windows = score_windows([model], tokens, num_rows=3, window=6, with_gradients=True)
    before, window = next(windows), next(windows)
    assert not model.training
    window.scores[0].loss.backward()
    model(before.inputs, stream="reference", position=0)

    @torch.no_grad()
    def loss():
        # the state before the window stays as it was with the first weights
        log_probs, _ = model(window.inputs, stream="reference", position=6)
        return -log_probs.gather(-1, window.target.unsqueeze(-1)).sum()

    step, found, expected = 1e-6, {}, {}
    for parameter_name, parameter in model.named_parameters():
        direction, value = torch.randn_like(parameter), parameter.data.clone()
        losses = []
        for sign in (1, -1):
            parameter.data = value + sign * step * direction
            losses.append(loss())
        parameter.data = value
        found[parameter_name] = (parameter.grad * direction).sum()
        expected[parameter_name] = (losses[0] - losses[1]) / (2 * step)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cell", sorted(RECURRENT_CELLS))
def test_gradients_of_all_log_probabilities_are_those_of_the_loss(cell, build_tiny_lm, tokens):
    model, gradients = build_tiny_lm("tied", rnn_cell=cell).double(), []
    for words in ("targets", "all"):
        model.zero_grad()
        for window in score_windows([model], tokens, window=20, words=words, with_gradients=True):
            loss = window.scores[0].loss
            if words == "all":
                loss = -window.log_probs.gather(-1, window.target.unsqueeze(-1)).sum()
            loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["tied", "drill"])
def test_weights_may_change_between_windows(name, build_tiny_lm, tokens):
    model, same = build_tiny_lm(name).double(), build_tiny_lm(name).double()
    second = None
    for number, window in enumerate(score_windows([model], tokens, window=30, with_gradients=True)):
        second = window.nll
        if number == 0:
            window.scores[0].loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.05 * parameter.grad
    same.eval()(tokens[None, :30], stream="reference", position=0)
    same.load_state_dict(model.state_dict())
    log_probs, _ = same(tokens[None, 30:-1], stream="reference", position=30)
    expected = -log_probs.gather(-1, tokens[None, 31:, None]).squeeze(-1).detach()
    torch.testing.assert_close(second, expected, rtol=1e-10, atol=1e-10)
