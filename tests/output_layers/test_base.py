"""The contract of all output layers, and the precision of the output layer."""

import argparse
import logging
import math
from functools import partial

import pytest
import torch
from assertions import assert_near
from builders import build_output_layer, build_tiny_encdec, make_dictionary, make_states
from example_parts import OwnSoftmax
from operations import TensorSizes

from fairseq_plugins.modules.layers import DropoutModule
from fairseq_plugins.ops import matmul
from fairseq_plugins.options import UserError
from fairseq_plugins.output_layers import base as module
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS, OutputPrecision
from fairseq_plugins.output_layers.gates import OUTPUT_GATES
from fairseq_plugins.output_layers.projected import ProjectedOutput
from fairseq_plugins.output_layers.scores import Scores

WIDTHS = [8, 12, 8]
VOCAB_SIZE = 507

every_layer = pytest.mark.parametrize("name", sorted(OUTPUT_LAYERS))
every_projected_layer = pytest.mark.parametrize(
    "name", sorted(name for name, layer in OUTPUT_LAYERS.items() if issubclass(layer, ProjectedOutput))
)


build = partial(build_output_layer, widths=WIDTHS, vocab_size=VOCAB_SIZE)


@every_layer
def test_a_layer_in_half_precision_trains(name):
    layer, states = build(name).bfloat16().eval(), make_states(WIDTHS, dtype=torch.bfloat16)
    scores = layer(states, torch.zeros(3, 4, dtype=torch.long))
    assert layer(states).log_probs.dtype == scores.loss.dtype == scores.nll.dtype == torch.float32
    target = torch.randint(VOCAB_SIZE, (3, 4))
    loss = layer(states, target, label_smoothing=0.1).loss
    loss.backward()
    assert all(p.grad.dtype == torch.bfloat16 and p.grad.isfinite().all() for p in layer.parameters())
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    assert layer(states, target, label_smoothing=0.1).loss < loss


@every_layer
def test_a_layer_that_was_built_in_inference_mode_is_read_there(name):
    with torch.inference_mode():
        layer = build(name).eval()
        log_probs = layer(make_states(WIDTHS)).log_probs
    assert log_probs.isfinite().all()


def test_a_layer_whose_probabilities_do_not_sum_to_one_is_refused():
    parts = dict(dictionary=make_dictionary(VOCAB_SIZE), layer_widths=WIDTHS, shared_weight=None, options=None)
    states, target = make_states(WIDTHS), torch.randint(VOCAB_SIZE, (3, 4))
    OwnSoftmax(**parts)(states, target)
    layer = OwnSoftmax(**parts)
    scores = layer.log_probs(states)
    layer.log_probs = lambda *_: Scores(log_probs=scores.log_probs + math.log(2))
    with pytest.raises(UserError, match="--output-layer own: the probabilities of a position sum to 2, not 1: normali"):
        layer(states, target)


# layers whose logits are a matrix product


@every_projected_layer
def test_no_tensor_is_as_large_as_all_log_probabilities(name):
    states, target = make_states(WIDTHS, num_rows=2, num_steps=10), torch.randint(VOCAB_SIZE, (2, 10))
    largest = []
    for flags in ({"output_chunk": 2}, {"output_loss": "plain"}):
        layer = build(name, **flags)
        with TensorSizes() as training:
            layer(states, target, label_smoothing=0.1).loss.backward()
        with TensorSizes() as scoring, torch.no_grad():
            layer.eval()(states, target)
        largest.append((training.largest, scoring.largest))
    assert max(largest[0]) < 2 * 10 * VOCAB_SIZE <= min(largest[1])


# the values and flags of --output-layer


def test_flags_take_their_values_alone(capsys):
    parser = argparse.ArgumentParser()
    OUTPUT_LAYERS.add_args(parser)
    texts = "mask activation init residual layer-residual dropout-place encoder".split()
    for flag in ("--output-loss", *(f"--label-{text}" for text in texts)):
        with pytest.raises(SystemExit):
            parser.parse_args([flag, "swish"])
        assert f"argument {flag}: invalid choice: 'swish'" in capsys.readouterr().err


TARGET = torch.arange(12).view(3, 4)


@pytest.fixture(autouse=True)
def native(monkeypatch):
    """``native(False)``: processors have no products in bfloat16; before, they have."""

    def native(is_native):
        monkeypatch.setattr(module, "has_native_bfloat16", lambda device: is_native)

    native(True)
    return native


def pair(name, **flags):
    """The same layer in float32 and in bfloat16."""
    layers = [build(name, output_precision=precision, **flags) for precision in ("float32", "bfloat16")]
    layers[1].load_state_dict(layers[0].state_dict())
    return layers


def loss(layer, states):
    torch.manual_seed(3)
    return layer(states, TARGET).loss


def test_a_criterion_that_would_not_take_it_is_refused():
    layer, states = build("doc", output_precision="bfloat16"), make_states(WIDTHS)
    with pytest.raises(ValueError, match="--output-precision bfloat16 is not for a criterion of fairseq, which"):
        layer.train()(states)
    assert layer.eval()(states).log_probs.isfinite().all()
    assert build("doc", output_precision="auto").train()(states).log_probs.isfinite().all()


@every_projected_layer
def test_training_takes_it(name):
    states = make_states(WIDTHS)
    exact, narrow = (loss(layer.train(), states) for layer in pair(name))
    assert exact.item() != narrow.item()
    torch.testing.assert_close(narrow, exact, rtol=1e-3, atol=0)


@pytest.mark.parametrize("gate", sorted(set(OUTPUT_GATES) - {"none"}))
def test_training_under_a_gate_takes_it(gate):
    """Loss and gradients; each of those of the gate is a product of four tensors that are rounded by half a unit."""
    states = make_states(WIDTHS)
    layers = [layer.train() for layer in pair("doc", output_gate=gate, gate_dim=4, gate_dropout=0.0)]
    exact, narrow = (loss(layer, states) for layer in layers)
    assert exact.item() != narrow.item()
    torch.testing.assert_close(narrow, exact, rtol=1e-3, atol=0)
    theirs, ours = map(torch.autograd.grad, (exact, narrow), (list(layer.gate.parameters()) for layer in layers))
    for their, our in zip(theirs, ours):
        assert (our - their).norm() <= 4 * torch.finfo(torch.bfloat16).eps / 2 * their.norm()


@every_projected_layer
@torch.no_grad()
def test_scores_are_in_float32_unless_asked(name):
    exact, narrow = (layer.eval() for layer in pair(name))
    states = make_states(WIDTHS)
    for score in (lambda layer: layer(states).log_probs, lambda layer: layer(states, TARGET).nll):
        assert torch.equal(score(narrow), score(exact))
        narrow.precision.score_in("bfloat16")
        assert not torch.equal(score(narrow), score(exact))
        assert_near(score(narrow), score(exact))
        narrow.precision.score_in("float32")


@torch.no_grad()
def test_a_search_is_in_float32_on_every_processor():
    models = [build_tiny_encdec("doc", output_precision=name).eval() for name in ("float32", "bfloat16")]
    source, lengths, tokens = torch.tensor([[5, 6, 2]]), torch.tensor([3]), torch.tensor([[2, 7]])
    exact, narrow = (
        model.decoder(tokens, encoder_out=model.encoder(source, src_lengths=lengths), incremental_state={})[0]
        for model in models
    )
    assert torch.equal(narrow, exact)


def test_a_matrix_in_16_bits_is_kept_between_steps_and_made_again_when_weights_change():
    layer = build("doc", output_precision="bfloat16").eval()
    with torch.no_grad():
        kept = layer.projection.label_matrix(torch.bfloat16)
        assert kept.dtype == torch.bfloat16 and layer.projection.label_matrix(torch.bfloat16) is kept
        assert layer.projection.label_matrix() is layer.projection.weight
        layer.projection.weight.mul_(2)
        assert torch.equal(layer.projection.label_matrix(torch.bfloat16), 2 * kept)


@torch.no_grad()
def test_a_matrix_whose_masks_are_sampled_has_the_type_too():
    layer = build("drill", output_precision="bfloat16", label_dropout=0.5).eval()
    for part in layer.modules():
        if isinstance(part, DropoutModule):
            part.evaluation_scale = 1.0
    first, second = (layer.projection.label_matrix(torch.bfloat16) for _ in range(2))
    assert first.dtype == torch.bfloat16 and not torch.equal(first, second)


@pytest.mark.parametrize(
    "flags, named",
    [
        (dict(output_chunk=2.5), "--output-chunk 2.5: give a whole number"),
        (dict(output_loss="plain", output_chunk=7), "--output-chunk 7"),
        (dict(output_loss="plain", output_precision="bfloat16"), "--output-precision bfloat16"),
        (dict(output_loss="plain", adversarial_epsilon=0.1), "--adversarial-epsilon 0.1"),
        *((dict(adversarial_epsilon=x), f"--adversarial-epsilon {x}") for x in (-0.1, 1.0, float("nan"))),
        *((dict(output_precision=name), "--output-precision") for name in ("float16", "", "AUTO")),
        (dict(expert_warmup=10, experts_per_layer="1 2 0"), "--expert-warmup"),
        (dict(expert_warmup=-1), "--expert-warmup -1"),
    ],
)
def test_flags_that_do_not_fit_are_refused(flags, named):
    with pytest.raises(ValueError, match=named):
        build("doc", **flags)


@pytest.mark.parametrize("is_native, dtype, told", [(True, torch.bfloat16, "bfloat16"), (False, None, "float32")])
def test_auto_is_bfloat16_where_it_is_native_and_says_so_once(is_native, dtype, told, native, caplog):
    native(is_native)
    precision = OutputPrecision("auto")
    with caplog.at_level(logging.INFO):
        assert precision.for_loss() == precision.for_loss() == dtype
    assert [record.message.partition(" (")[0] for record in caplog.records] == [f"--output-precision auto: {told}"]
    assert precision.eval().for_loss() is None and precision.for_scores() is None
    precision.score_in("auto")
    assert precision.for_scores() == dtype and not precision.state_dict()


def test_a_model_in_bfloat16_is_slow_where_the_processor_has_none_and_training_says_so_once(native, caplog):
    native(False)
    precision = OutputPrecision("auto").bfloat16()
    assert precision.for_loss() is precision.for_loss() is None
    (record,) = caplog.records
    assert record.levelname == "WARNING" and record.message.startswith("--bf16: this cpu has no matrix products")


def test_bfloat16_needs_a_processor_with_it(native):
    native(False)
    refused = pytest.raises(ValueError, match="this cpu has no matrix products in bfloat16; give --output-precision f")
    with refused:
        OutputPrecision("bfloat16").for_loss()
    precision = OutputPrecision("float32")
    with refused:
        precision.score_in("bfloat16")
    precision.score_in("auto")
    assert precision.for_scores() is None


@pytest.mark.parametrize(
    "text, native",
    [
        ("flags\t\t: fpu avx512_bf16 sse\n", True),
        ("flags\t\t: fpu amx_bf16\n", True),
        ("Features\t: fp asimd bf16\n", True),
        ("flags\t\t: fpu avx512f avx512_bf16x\n", False),
        ("model name : bf16\nflags : fpu\n", False),
        ("", False),
    ],
)
def test_the_processor_tells_what_it_has(text, native, tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(matmul, "Path", lambda path: tmp_path / "cpuinfo")
    assert matmul.has_native_bfloat16.__wrapped__(torch.device("cpu")) == native
    monkeypatch.setattr(matmul, "Path", lambda path: tmp_path / "absent")
    assert not matmul.has_native_bfloat16.__wrapped__(torch.device("cpu"))


@pytest.mark.parametrize("capability, is_native", [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_a_gpu_has_it_from_ampere_on(capability, is_native, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert matmul.has_native_bfloat16.__wrapped__(torch.device("cuda")) == is_native
