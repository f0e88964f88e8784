"""--output-precision: where it applies, what auto chooses and a checkpoint keeps, and what is refused."""

import copy
from functools import partial

import pytest
import torch
from builders import build_output_layer, build_tiny_encdec, make_states
from nearness import assert_near
from test_output_layers import VOCAB_SIZE, WIDTHS, every_projected_layer

from fairseq_plugins.modules.dropout import DropsAtRandom
from fairseq_plugins.ops import native_bfloat16
from fairseq_plugins.output_layers import output_precision as module
from fairseq_plugins.output_layers.gate import OUTPUT_GATES
from fairseq_plugins.output_layers.output_precision import OutputPrecision

build = partial(build_output_layer, widths=WIDTHS, vocab_size=VOCAB_SIZE)
TARGET = torch.arange(12).view(3, 4)


@pytest.fixture(autouse=True)
def native(monkeypatch):
    """Processors have products in bfloat16, which take half the time."""
    monkeypatch.setattr(module, "has_native_bfloat16", lambda device: True)
    monkeypatch.setattr(module, "is_bfloat16_faster", lambda device: True)
    monkeypatch.setattr(module, "bfloat16_gain", lambda device: 2.0)


def missing(monkeypatch):
    monkeypatch.setattr(module, "has_native_bfloat16", lambda device: False)
    monkeypatch.setattr(module, "is_bfloat16_faster", lambda device: False)


def pair(name, **flags):
    """The same layer in float32 and in bfloat16."""
    layers = [build(name, output_precision=precision, **flags) for precision in ("float32", "bfloat16")]
    layers[1].load_state_dict(layers[0].state_dict())
    return layers


def loss(layer, states):
    torch.manual_seed(3)
    return layer(states, TARGET).loss


@every_projected_layer
def test_a_criterion_that_would_not_take_it_is_refused(name):
    layer, states = build(name, output_precision="bfloat16"), make_states(WIDTHS)
    with pytest.raises(ValueError, match="--output-precision bfloat16 is not for a criterion of the host, which"):
        layer.train()(states)
    assert layer.eval()(states).log_probs.isfinite().all()
    assert build(name, output_precision="auto").train()(states).log_probs.isfinite().all()


def test_the_plain_loss_has_no_chunks():
    with pytest.raises(ValueError, match="--output-loss plain has no --output-chunk 7: leave out one of them"):
        build("full", output_loss="plain", output_chunk=7)


@every_projected_layer
def test_training_takes_it(name):
    states = make_states(WIDTHS)
    exact, narrow = (loss(layer.train(), states) for layer in pair(name))
    assert exact.item() != narrow.item()
    torch.testing.assert_close(narrow, exact, rtol=1e-3, atol=0)


@pytest.mark.parametrize("gate", sorted(set(OUTPUT_GATES) - {"none"}))
@every_projected_layer
def test_training_under_a_gate_takes_it(name, gate):
    """Loss and gradients; each of those of the gate is a product of four tensors that are rounded by half a unit."""
    states = make_states(WIDTHS)
    layers = [layer.train() for layer in pair(name, output_gate=gate, gate_dim=4, gate_dropout=0.0)]
    exact, narrow = (loss(layer, states) for layer in layers)
    assert exact.item() != narrow.item()
    torch.testing.assert_close(narrow, exact, rtol=1e-3, atol=0)
    theirs, ours = (
        torch.autograd.grad(one, list(layer.gate.parameters())) for one, layer in zip((exact, narrow), layers)
    )
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


@every_projected_layer
@torch.no_grad()
def test_a_search_takes_it_where_it_is_native(name, monkeypatch):
    exact, narrow = (layer.eval() for layer in pair(name))
    states = make_states(WIDTHS)
    states.incremental = True
    assert not torch.equal(narrow(states).log_probs, exact(states).log_probs)
    missing(monkeypatch)
    assert torch.equal(narrow(states).log_probs, exact(states).log_probs)


@every_projected_layer
@torch.no_grad()
def test_a_search_takes_what_scores_were_asked_for(name):
    exact, narrow = (layer.eval() for layer in pair(name))
    states = make_states(WIDTHS)
    states.incremental = True
    narrow.precision.score_in("float32")
    assert torch.equal(narrow(states).log_probs, exact(states).log_probs)
    exact.precision.score_in("bfloat16")
    assert not torch.equal(narrow(states).log_probs, exact(states).log_probs)
    narrow.precision.score_in(None)
    assert torch.equal(narrow(states).log_probs, exact(states).log_probs)


@torch.no_grad()
def test_only_steps_of_a_decoder_are_a_search():
    models = [build_tiny_encdec("doc", output_precision=name).eval() for name in ("float32", "bfloat16")]
    source, lengths, tokens = torch.tensor([[5, 6, 2]]), torch.tensor([3]), torch.tensor([[2, 7]])
    results = []
    for model in models:
        encoded = model.encoder(source, src_lengths=lengths)
        results.append(
            [model.decoder(tokens, encoder_out=encoded, incremental_state=state)[0][:, -1] for state in (None, {})]
        )
    assert torch.equal(results[0][0], results[1][0])
    assert not torch.equal(results[0][1], results[1][1])


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
        if isinstance(part, DropsAtRandom):
            part.evaluation_scale = 1.0
    first, second = (layer.projection.label_matrix(torch.bfloat16) for _ in range(2))
    assert first.dtype == torch.bfloat16 and not torch.equal(first, second)


@pytest.mark.parametrize("faster, dtype", [(True, torch.bfloat16), (False, None)])
def test_auto_takes_what_is_faster_and_the_checkpoint_keeps_it(faster, dtype, monkeypatch):
    monkeypatch.setattr(module, "is_bfloat16_faster", lambda device: faster)
    monkeypatch.setattr(module, "bfloat16_gain", lambda device: 2.0)
    first = OutputPrecision("auto")
    assert first.for_search() is None
    assert first.for_training() == dtype
    monkeypatch.setattr(module, "is_bfloat16_faster", lambda device: not faster)
    resumed = OutputPrecision("auto")
    resumed.load_state_dict(copy.deepcopy(first.state_dict()))
    assert resumed.for_training() == resumed.for_search() == dtype
    assert OutputPrecision("auto").for_training() != dtype


def test_the_choice_survives_half_precision():
    first = OutputPrecision("auto")
    first.for_training()
    assert first.half().for_training() == torch.bfloat16


@pytest.mark.parametrize("trained, given", [("bfloat16", "float32"), ("float32", "bfloat16"), ("auto", "float32")])
def test_the_flag_wins_over_the_checkpoint(trained, given):
    first, second = OutputPrecision(trained), OutputPrecision(given)
    first.for_training()
    second.load_state_dict(first.state_dict())
    assert second.for_training() == (torch.bfloat16 if given == "bfloat16" else None)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "auto"])
def test_checkpoints_from_before_the_flag_are_loaded(name):
    layer = build("doc", output_precision=name)
    state = build("doc").state_dict()
    del state["precision.chosen"]
    layer.load_state_dict(state)
    assert layer.train().precision.for_training() == (None if name == "float32" else torch.bfloat16)


@pytest.mark.parametrize("name", ["float16", "", "AUTO"])
def test_other_names_are_refused(name):
    for take in (OutputPrecision, OutputPrecision("auto").score_in):
        with pytest.raises(ValueError, match="--output-precision .*: choose one of float32, bfloat16, auto"):
            take(name)


def test_scores_in_bfloat16_need_a_processor_with_it(monkeypatch):
    missing(monkeypatch)
    precision = OutputPrecision("float32")
    with pytest.raises(ValueError, match="this cpu has no matrix products in bfloat16"):
        precision.score_in("bfloat16")
    precision.score_in("auto")
    assert precision.for_scores() is None


@pytest.mark.parametrize("faster", [True, False])
def test_an_average_that_began_before_the_choice_has_the_choice(faster, monkeypatch):
    monkeypatch.setattr(module, "is_bfloat16_faster", lambda device: faster)
    precision, average = OutputPrecision("auto"), OutputPrecision("auto")
    precision.for_training()
    average.load_state_dict({"chosen": 0.9999 * average.chosen + 0.0001 * precision.chosen})
    assert average.for_search() == precision.for_search() == (torch.bfloat16 if faster else None)


def test_the_self_test_draws_no_random_number():
    state = torch.get_rng_state()
    native_bfloat16.bfloat16_gain.__wrapped__(torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), state)


def test_training_under_autocast():
    for name in ("dual", "drill", "doc"):
        layer = build(name, output_precision="bfloat16").train()
        with torch.autocast("cpu", torch.bfloat16):
            assert loss(layer, make_states(WIDTHS)).isfinite()


def test_a_processor_without_it_is_named_before_the_first_update(monkeypatch):
    missing(monkeypatch)
    layer = build("tied", output_precision="bfloat16").train()
    with pytest.raises(
        ValueError, match="this cpu has no matrix products in bfloat16; give --output-precision float32"
    ):
        loss(layer, make_states(WIDTHS))
    monkeypatch.setattr(module, "bfloat16_gain", lambda device: pytest.fail("nothing is measured"))
    assert OutputPrecision("auto").for_training() is None


def test_the_plain_loss_has_no_other_precision():
    with pytest.raises(ValueError, match="--output-loss plain has no --output-precision bfloat16: leave out one"):
        build("doc", output_loss="plain", output_precision="bfloat16")


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
    monkeypatch.setattr(native_bfloat16, "Path", lambda path: tmp_path / "cpuinfo")
    assert native_bfloat16.has_native_bfloat16.__wrapped__(torch.device("cpu")) == native
    monkeypatch.setattr(native_bfloat16, "Path", lambda path: tmp_path / "absent")
    assert not native_bfloat16.has_native_bfloat16.__wrapped__(torch.device("cpu"))


@pytest.mark.parametrize("gain, faster", [(1.1, False), (1.3, True)])
def test_a_small_gain_is_not_worth_the_rounding(gain, faster, monkeypatch):
    monkeypatch.setattr(native_bfloat16, "has_native_bfloat16", lambda device: True)
    monkeypatch.setattr(native_bfloat16, "bfloat16_gain", lambda device: gain)
    assert native_bfloat16.is_bfloat16_faster(torch.device("cpu")) == faster


def test_the_gain_is_measured():
    assert native_bfloat16.bfloat16_gain.__wrapped__(torch.device("cpu")) > 0
