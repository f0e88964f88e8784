"""What every registered output layer must satisfy, and the values and flags of ``--output-layer``."""

import argparse
from dataclasses import fields
from functools import partial

import pytest
import torch
from builders import build_lm, build_output_layer, make_states, randomise
from single_experts import mean_log_probs
from tensor_sizes import TensorSizes

from fairseq_plugins.output_layers.base import OUTPUT_LAYERS
from fairseq_plugins.output_layers.projected import ProjectedOutput

WIDTHS = [8, 12, 8]
VOCAB_SIZE = 507

every_layer = pytest.mark.parametrize("name", sorted(OUTPUT_LAYERS))
every_projected_layer = pytest.mark.parametrize(
    "name", sorted(name for name, layer in OUTPUT_LAYERS.items() if issubclass(layer, ProjectedOutput))
)


build = partial(build_output_layer, widths=WIDTHS, vocab_size=VOCAB_SIZE)


def twice(layer, *calls):
    """Results of the calls, each with the same random masks."""
    results = []
    for call in calls:
        torch.manual_seed(7)
        results.append(layer(*call[0], **call[1]))
    return results


@every_layer
@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_log_probs_are_the_same_without_gradients(name, scale):
    layer, states = build(name).eval(), make_states(WIDTHS, scale=scale)
    with_gradients = layer(states).log_probs
    with torch.no_grad():
        torch.testing.assert_close(layer(states).log_probs, with_gradients, rtol=1e-5, atol=1e-5)


@every_layer
@pytest.mark.parametrize("scale", [1.0, 50.0])
@pytest.mark.parametrize("training", [True, False])
def test_probabilities_sum_to_one(name, scale, training):
    layer = build(name).train(training)
    log_probs = layer(make_states(WIDTHS, scale=scale)).log_probs
    assert log_probs.shape == (3, 4, VOCAB_SIZE) and log_probs.dtype == torch.float32
    sums = log_probs.exp().double().sum(dim=-1)
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-5)


@every_layer
@pytest.mark.parametrize("training", [True, False])
def test_the_loss_is_the_sum_of_log_probabilities(name, training):
    layer, states = build(name).train(training), make_states(WIDTHS)
    target = torch.randint(VOCAB_SIZE, (3, 4))
    distribution, scores = twice(layer, ((states,), {}), ((states, target), {}))
    expected = -distribution.log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    assert scores.loss.shape == () and not scores.nll.requires_grad
    torch.testing.assert_close(scores.nll, expected.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(scores.loss, expected.sum(), rtol=1e-6, atol=1e-6)


@every_layer
@pytest.mark.parametrize("smoothing", [0.1, 0.5])
def test_label_smoothing_spreads_a_share_of_the_target(name, smoothing):
    layer, states = build(name), make_states(WIDTHS)
    target = torch.randint(VOCAB_SIZE, (3, 4))
    (scores,) = twice(layer, ((states, target), {"label_smoothing": smoothing}))
    log_probs, mean = mean_log_probs(layer, lambda: twice(layer, ((states,), {}))[0])
    nll = -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(scores.loss, ((1 - smoothing) * nll - smoothing * mean).sum(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(scores.nll, nll.detach(), rtol=1e-6, atol=1e-6)


@every_layer
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_token_weights_are_factors_of_the_loss(name, smoothing):
    layer, states = build(name).eval().double(), make_states(WIDTHS, dtype=torch.float64)
    target, weights = torch.randint(VOCAB_SIZE, (3, 4)), torch.rand(3, 4).double()
    losses = [
        layer(states, target, token_weights=one_hot, label_smoothing=smoothing).loss
        for one_hot in torch.eye(12).view(12, 3, 4)
    ]
    scores = layer(states, target, token_weights=weights, label_smoothing=smoothing)
    torch.testing.assert_close(scores.loss, (torch.stack(losses) * weights.flatten()).sum(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(scores.nll, layer(states, target).nll, rtol=1e-10, atol=1e-10)


@every_layer
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_padding_has_neither_nll_nor_gradient(name, smoothing):
    layer, states = build(name), make_states(WIDTHS)
    for h in states.layers:
        h.requires_grad_()
    mask = torch.arange(4) < torch.tensor([[4], [2], [0]])
    scores = layer(states, torch.randint(VOCAB_SIZE, (3, 4)), token_weights=mask, label_smoothing=smoothing)
    gradients = [g for g in torch.autograd.grad(scores.loss, states.layers, allow_unused=True) if g is not None]
    assert torch.equal(scores.nll != 0, mask)
    assert gradients and all(torch.equal(g.abs().sum(-1) != 0, mask) for g in gradients)


@every_layer
def test_every_parameter_gets_a_gradient_from_the_loss(name):
    layer = build(name)
    layer(make_states(WIDTHS), torch.randint(VOCAB_SIZE, (3, 4))).loss.backward()
    assert [n for n, p in layer.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


@every_layer
def test_half_precision_gives_log_probs_in_float32(name):
    layer = build(name).bfloat16().eval()
    states = make_states(WIDTHS, dtype=torch.bfloat16)
    log_probs = layer(states).log_probs
    scores = layer(states, torch.zeros(3, 4, dtype=torch.long))
    assert log_probs.dtype == scores.loss.dtype == scores.nll.dtype == torch.float32


@every_layer
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_layer_in_half_precision_trains(name, smoothing):
    layer, states = build(name).bfloat16().eval(), make_states(WIDTHS, dtype=torch.bfloat16)
    target = torch.randint(VOCAB_SIZE, (3, 4))
    loss = layer(states, target, label_smoothing=smoothing).loss
    loss.backward()
    assert all(p.grad.dtype == torch.bfloat16 and p.grad.isfinite().all() for p in layer.parameters())
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    assert layer(states, target, label_smoothing=smoothing).loss < loss


@every_layer
def test_evaluation_is_deterministic(name):
    layer, states = build(name).eval(), make_states(WIDTHS)
    assert torch.equal(layer(states).log_probs, layer(states).log_probs)


@every_layer
def test_losses_and_gradients_need_no_operation_that_differs_from_run_to_run(name):
    layer, states, target = build(name), make_states(WIDTHS), torch.randint(VOCAB_SIZE, (3, 4))
    torch.use_deterministic_algorithms(True)
    try:
        layer(states, target, label_smoothing=0.1).loss.backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(p.grad is not None for p in layer.parameters())


@every_layer
def test_a_layer_that_was_built_in_inference_mode_is_read_there(name):
    with torch.inference_mode():
        layer = build(name).eval()
        log_probs = layer(make_states(WIDTHS)).log_probs
    assert log_probs.isfinite().all()


# layers whose logits are a matrix product


@every_projected_layer
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("training", [True, False])
def test_the_fused_loss_is_the_plain_loss(name, training, smoothing):
    target, states = torch.randint(VOCAB_SIZE, (3, 4)), make_states(WIDTHS, dtype=torch.float64)
    weights = torch.rand(3, 4).double().masked_fill(torch.rand(3, 4) < 0.3, 0)
    assert 0 < weights.count_nonzero() < 12
    fused, plain = build(name, output_loss="fused").double(), build(name, output_loss="plain").double()
    randomise(fused)
    plain.load_state_dict(fused.state_dict())
    results = []
    for layer in (fused, plain):
        torch.manual_seed(7)
        scores = layer.train(training)(states, target, token_weights=weights, label_smoothing=smoothing)
        results.append([scores.loss.detach(), scores.nll, *torch.autograd.grad(scores.loss, list(layer.parameters()))])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)


@every_projected_layer
@pytest.mark.parametrize("chunk", [1, 5])
def test_the_chunk_is_no_part_of_the_result(name, chunk):
    target, states = torch.randint(VOCAB_SIZE, (3, 4)), make_states(WIDTHS, dtype=torch.float64)
    default, chunked = build(name).double().eval(), build(name, output_chunk=chunk).double().eval()
    chunked.load_state_dict(default.state_dict())
    results = []
    for layer in (default, chunked):
        scores = layer(states, target, label_smoothing=0.1)
        results.append([scores.loss.detach(), scores.nll, *torch.autograd.grad(scores.loss, list(layer.parameters()))])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


@every_projected_layer
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_no_tensor_is_as_large_as_all_log_probabilities(name, smoothing):
    num_rows, num_steps = 5, 20
    states, target = make_states(WIDTHS, num_rows, num_steps), torch.randint(VOCAB_SIZE, (num_rows, num_steps))
    largest = {}
    for output_loss, flags in (("fused", {"output_chunk": 2}), ("plain", {})):
        layer = build(name, output_loss=output_loss, **flags)
        with TensorSizes() as training:
            layer(states, target, label_smoothing=smoothing).loss.backward()
        with TensorSizes() as scoring, torch.no_grad():
            layer.eval()(states, target)
        largest[output_loss] = (training.largest, scoring.largest)
    assert max(largest["fused"]) < num_rows * num_steps * VOCAB_SIZE <= min(largest["plain"])


@every_projected_layer
@pytest.mark.parametrize("chunk", [0, -1])
def test_a_chunk_of_no_token_is_refused_with_its_flag(name, chunk):
    with pytest.raises(ValueError, match=f"--output-chunk {chunk}"):
        build(name, output_chunk=chunk)


def test_the_loss_is_fused_unless_the_flag_says_plain():
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    OUTPUT_LAYERS.add_args(parser)
    plain, in_chunks = (vars(parser.parse_args(flag)) for flag in (["--output-loss", "plain"], ["--output-chunk", "7"]))
    assert (plain, in_chunks) == ({"output_loss": "plain"}, {"output_chunk": 7})
    assert build("tied", **plain).output_loss == "plain" and build("tied", **in_chunks).output_chunk == 7
    assert build("tied").output_loss == "fused" and build("tied").output_chunk is None
    with pytest.raises(SystemExit):
        parser.parse_args(["--output-loss", "slow"])


# the values and flags of --output-layer


def test_the_layers_of_the_papers_are_registered():
    assert {"full", "tied", "bilinear", "dual", "drill", "mos", "doc"} <= set(OUTPUT_LAYERS)
    assert all(OUTPUT_LAYERS[name].name == name for name in OUTPUT_LAYERS)


def test_flags_of_all_layers_are_added_without_defaults():
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)  # as the host's model group
    OUTPUT_LAYERS.add_args(parser)
    assert vars(parser.parse_args([])) == {}
    declared = {field.name for layer in OUTPUT_LAYERS.values() for field in fields(layer.Options)} - {"_name"}
    assert declared <= {action.dest for action in parser._actions}


@every_layer
def test_every_layer_is_a_choice(name):
    parser = argparse.ArgumentParser()
    OUTPUT_LAYERS.add_args(parser)
    assert parser.parse_args(["--output-layer", name]).output_layer == name


def test_an_unknown_layer_is_refused():
    with pytest.raises(ValueError, match="--output-layer soft: choose one of .*doc"):
        build("soft")


def test_flags_of_another_layer_are_refused():
    with pytest.raises(ValueError, match="--experts-per-layer: not a flag of --output-layer tied"):
        build_lm("lstm_lm_awd", 23, experts_per_layer="0 0 0 4")


def test_another_layer_than_the_preset_names_drops_the_options_it_does_not_have():
    with torch.device("meta"):
        model = build_lm("lstm_lm_doc_ptb", 23, output_layer="full")
    assert type(model.decoder.output).__name__ == "FullSoftmax"
