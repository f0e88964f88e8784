"""Dynamic evaluation against a loop written from the published rule, in float64."""

import errno
import hashlib
import os
import tracemalloc
from pathlib import Path

import pytest
import torch
from builders import build_tiny_gated_lm, build_tiny_lm
from torch.utils._pytree import tree_map

from fairseq_plugins.evaluation import dynamic_evaluation
from fairseq_plugins.evaluation.dynamic_evaluation import (
    every_parameter_learns,
    kept_gradient_statistics,
    mean_squared_gradients,
)
from fairseq_plugins.evaluation.scoring import prepare_to_score, score_windows
from fairseq_plugins.output_layers import base

SEGMENT, RATE, DECAY, EPSILON = 4, 0.05, 0.3, 0.02
FLAGS = {"dynamic": "rms", "dynamic_rate": RATE, "dynamic_decay": DECAY, "dynamic_epsilon": EPSILON}
SGD = {"dynamic": "sgd", "dynamic_rate": RATE, "dynamic_decay": DECAY}
SPEED = {"dynamic_segment": SEGMENT}


def statistics(model, tokens):
    return mean_squared_gradients(model, tokens, num_rows=4, segment=3)


def adapted_by_hand(model, tokens, *, num_rows, pull, step):
    """Log-probabilities (B, n): each segment is scored, then theta <- theta + pull (theta_0 - theta) - step grad.

    The model reads each segment from the state that it left the one before with.

    Args:
        pull, step: a tensor for each parameter, by name.
    """
    rows = tokens[: len(tokens) // num_rows * num_rows].view(num_rows, -1)
    parameters = dict(model.named_parameters())
    trained = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    state, scored = model.decoder.initial_state(num_rows), []
    for first in range(0, rows.size(1) - 1, SEGMENT):
        inputs, target = rows[:, first : first + SEGMENT], rows[:, first + 1 : first + SEGMENT + 1]
        inputs = inputs[:, : target.size(1)]
        _, scores, after = model.eval().decoder.score(inputs, state, incremental=False)
        state = tree_map(lambda part: part.detach() if isinstance(part, torch.Tensor) else part, after)
        log_probs = scores.log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        scored.append(log_probs.detach())
        gradients = torch.autograd.grad(-log_probs.mean(), list(parameters.values()))
        with torch.no_grad():
            for (name, parameter), gradient in zip(parameters.items(), gradients):
                back = trained[name] - parameter
                parameter += pull[name] * back - step[name] * gradient
    model.load_state_dict(trained, strict=False)
    return torch.cat(scored, dim=1)


def rms_rule(mean_squares):
    """Pull and step of each parameter."""
    rms = {name: one.sqrt() for name, one in mean_squares.items()}
    mean = sum(one.mean() for one in rms.values()) / len(rms)
    pull = {name: DECAY * (one / mean).clamp(max=1 / DECAY) for name, one in rms.items()}
    assert any((one > 0.999).any() for one in pull.values()) and any((one < 0.9).any() for one in pull.values())
    return {"pull": pull, "step": {name: RATE / (one + EPSILON) for name, one in rms.items()}}


@pytest.fixture
def train():
    return torch.randint(23, (90,))


@pytest.mark.parametrize(
    "num_rows, name, flags",
    [
        (3, "doc", {"experts_per_layer": "1 0 2"}),
        (3, "drill", {}),
        (1, "tied", {"rnn_cell": "mogrifier"}),
        (3, "full", {"rnn_cell": "diagonal", "output_bias": "off"}),
    ],
)
def test_dynamic_evaluation_is_that_of_the_loop(num_rows, name, flags, tokens, train, score_text):
    model = build_tiny_lm(name, dropout_output=0.5, dropout_hidden=0.5, **flags).double()
    squares = statistics(model, train)
    expected = adapted_by_hand(model, tokens, num_rows=num_rows, **rms_rule(squares))
    found = score_text([model], tokens, num_rows=num_rows, mean_squares=[squares], **FLAGS, **SPEED)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    static = score_text([model], tokens, num_rows=num_rows)
    assert torch.allclose(found[:, :SEGMENT], static[:, :SEGMENT]) and not torch.allclose(found, static, atol=1e-3)


def test_plain_gradients_are_those_of_the_loop(tokens, score_text):
    model = build_tiny_lm("mos").double()
    names = [name for name, _ in model.named_parameters()]
    pull, step = dict.fromkeys(names, DECAY), dict.fromkeys(names, RATE)
    expected = adapted_by_hand(model, tokens, num_rows=1, pull=pull, step=step)
    torch.testing.assert_close(score_text([model], tokens, **SGD, **SPEED), expected, rtol=1e-9, atol=1e-9)


def test_models_of_an_ensemble_each_follow_their_own_loss(tokens, train, score_text):
    models = [build_tiny_lm("tied", seed=1).double(), build_tiny_lm("mos", seed=2).double()]
    squares = [statistics(model, train) for model in models]
    alone = [adapted_by_hand(model, tokens, num_rows=1, **rms_rule(one)) for model, one in zip(models, squares)]
    found = score_text(models, tokens, mean_squares=squares, **FLAGS, **SPEED)
    torch.testing.assert_close(found.exp(), (alone[0].exp() + alone[1].exp()) / 2, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("gate", ["iog", pytest.param("iog-lstm", marks=pytest.mark.slow)])
def test_a_gated_model_and_its_frozen_base_adapt(gate, tokens, train, score_text):
    model = build_tiny_gated_lm("tied", output_gate=gate).double()
    learned = [parameter.requires_grad for parameter in model.parameters()]
    with every_parameter_learns(model):
        squares = statistics(model, train)
        expected = adapted_by_hand(model, tokens, num_rows=1, **rms_rule(squares))
    found = score_text([model], tokens, mean_squares=[squares], **FLAGS, **SPEED)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert learned == [parameter.requires_grad for parameter in model.parameters()] and not all(learned)


def test_weights_that_diverge_are_told_by_their_rate_and_restored(tokens, score_text):
    model = build_tiny_lm("tied")
    weights = {name: one.clone() for name, one in model.state_dict().items()}
    with pytest.raises(ValueError, match="--dynamic-rate 3e\\+38: the weights diverged; give a lower one"):
        score_text([model], tokens, dynamic="sgd", dynamic_rate=3e38)
    torch.testing.assert_close(model.state_dict(), weights, rtol=0, atol=0)
    model.decoder.output.projection.bias.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="its training diverged or its checkpoint is damaged"):
        score_text([model], tokens, dynamic="sgd", dynamic_rate=0.1)


@pytest.mark.parametrize("name, flags", [("tied", FLAGS), ("doc", SGD)])
def test_with_rate_zero_it_is_static_evaluation_without_statistics(name, flags, tokens, score_text):
    model = build_tiny_lm(name)
    found = score_text([model], tokens, **{**flags, "dynamic_rate": 0}, **SPEED)
    assert torch.equal(found, score_text([model], tokens, window=SEGMENT))


def test_mean_squares_of_gradients_are_those_of_segments(train):
    model = build_tiny_lm("tied").double()
    found = statistics(model, train)
    expected = {name: torch.zeros_like(one) for name, one in model.named_parameters()}
    segments = list(score_windows([model], train, num_rows=4, window=3, with_gradients=True))
    assert [one.target.numel() for one in segments] == [12] * 7
    for one in segments:
        model.zero_grad()
        (one.scores[0].loss / one.target.numel()).backward()
        for name, parameter in model.named_parameters():
            expected[name] += parameter.grad**2 / len(segments)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """``kept(tokens, **options)``: the statistics, and whether they were computed; the checkpoint is a stand-in."""
    checkpoint = tmp_path / "checkpoint_best.pt"
    checkpoint.write_bytes(b"a checkpoint")
    computed = []
    compute = dynamic_evaluation.mean_squared_gradients

    def note(*args, **options):
        computed.append(options)
        return compute(*args, **options)

    monkeypatch.setattr(dynamic_evaluation, "mean_squared_gradients", note)

    def read(tokens, *, model=None, num_rows=4, segment=3):
        before = len(computed)
        statistics = kept_gradient_statistics(
            model or build_tiny_lm("tied"),
            tokens,
            checkpoint=checkpoint,
            num_rows=num_rows,
            segment=segment,
        )
        return statistics, len(computed) > before

    return read


def file_in(folder):
    (path,) = folder.glob("*gradients-4x3.pt")
    return path


def test_statistics_are_computed_once_for_each_number_of_rows_and_segment(kept, tokens, tmp_path):
    cuts = ({}, {"num_rows": 2}, {"segment": 5})
    found = [kept(tokens, **cut) for cut in cuts]
    again = [kept(tokens, **cut) for cut in cuts]
    assert [computed for _, computed in found + again] == [True] * 3 + [False] * 3
    torch.testing.assert_close([one for one, _ in again], [one for one, _ in found], rtol=0, atol=0)
    names = [f"checkpoint_best.gradients-{cut}.pt" for cut in ("2x3", "4x3", "4x5")]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names, "checkpoint_best.pt"]


def test_a_text_is_known_by_its_tokens_without_a_copy_of_them(kept, tmp_path):
    stream, cut = torch.randint(23, (100_000,)), dict(num_rows=1000, segment=100)
    kept(stream, **cut)
    (path,) = tmp_path.glob("*gradients-*.pt")
    assert torch.load(path, weights_only=True)["tokens"] == hashlib.sha256(stream.numpy().tobytes()).hexdigest()
    assert not kept(stream.repeat_interleave(2)[::2], **cut)[1]
    tracemalloc.start()
    assert not kept(stream, **cut)[1]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < stream.nbytes


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    first = next(iter(torch.load(path, weights_only=True)["mean_squares"].values()))
    content[content.index(first.numpy().tobytes())] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "other checkpoint": lambda path: (path.parent / "checkpoint_best.pt").write_bytes(b"another checkpoint"),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "a flipped bit": flip_a_bit,
    "no file of torch": lambda path: path.write_text("nothing"),
    "other keys": lambda path: torch.save({"mean": 1}, path),
    "a list": lambda path: torch.save([1], path),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_does_not_belong_is_replaced(damage, kept, tokens, tmp_path):
    expected, _ = kept(tokens)
    DAMAGES[damage](file_in(tmp_path))
    found, again = kept(tokens), kept(tokens)
    assert (found[1], again[1]) == (True, False)
    torch.testing.assert_close([found[0], again[0]], [expected] * 2, rtol=0, atol=0)


def test_other_texts_and_models_of_other_shapes_have_others(kept, tokens):
    kept(tokens)
    assert kept(tokens.flip(0))[1]
    other = build_tiny_lm("tied", embed_dim=6, hidden_sizes="6")
    statistics, computed = kept(tokens.flip(0), model=other)
    shapes = {name: one.shape for name, one in statistics.items()}
    assert computed and shapes == {name: one.shape for name, one in other.named_parameters()}


def test_a_full_disk_leaves_what_was_there_and_loses_no_result(kept, tokens, tmp_path, monkeypatch, capsys):
    kept(tokens)
    path = file_in(tmp_path)
    before = path.read_bytes()

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", fail)
    statistics, computed = kept(tokens.flip(0))
    assert computed and statistics
    assert f"gradient statistics are not kept: {path}: No space left" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert {one.name for one in tmp_path.iterdir()} == {path.name, "checkpoint_best.pt"}


def test_gradient_statistics_are_those_of_float32_whatever_the_evaluation_asks_for(kept, tokens, monkeypatch):
    monkeypatch.setattr(base, "has_native_bfloat16", lambda device: True)
    model = build_tiny_lm("doc")
    found = {}
    for precision in ("bfloat16", "float32"):
        prepare_to_score([model], device="cpu", precision=precision)
        found[precision] = dynamic_evaluation.mean_squared_gradients(model, tokens, num_rows=4, segment=3)
        assert model.decoder.output.precision.scores_in == precision
    torch.testing.assert_close(found["bfloat16"], found["float32"], rtol=0, atol=0)
