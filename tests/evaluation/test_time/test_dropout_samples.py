"""Dropout masks in evaluation: every cell, output layer and gate drops as in training, at a share of its rates."""

import pytest
import torch
from builders import build_tiny_gated_lm, tiny_base_flags

from fairseq_plugins.evaluation.test_time.dropout_samples import DropoutSamples, sampled_masks
from fairseq_plugins.flags.registry import option_names
from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS
from fairseq_plugins.output_layers.gate import OUTPUT_GATES

V, RATE = 23, 0.4
PARTS = [(layer, "lstm", "none") for layer in sorted(OUTPUT_LAYERS)]
PARTS += [("tied", cell, "none") for cell in sorted(set(RECURRENT_CELLS) - {"lstm"})]
PARTS += [("tied", "lstm", gate) for gate in sorted(set(OUTPUT_GATES) - {"none"})]

every_part = pytest.mark.parametrize("layer, cell, gate", PARTS)


def rates_of(*components):
    """Names of all dropout rates."""
    names = {name for component in components for name in option_names(component.Options)}
    return {name for name in names if name.startswith("dropout_") or name.endswith("_dropout")}


def build(build_tiny_lm, layer, cell, gate, *, rate, **flags):
    """A model with this rate at every place."""
    rates = {f"dropout_{place}" for place in ("embedding", "input", "hidden", "output")}
    rates |= rates_of(OUTPUT_LAYERS[layer], RECURRENT_CELLS[cell], OUTPUT_GATES[gate])
    if "label_encoder" in option_names(OUTPUT_LAYERS[layer].Options):
        flags["label_encoder"] = "drill"
    flags = {"hidden_sizes": "8 8", "output_gate": gate, **dict.fromkeys(rates, rate), **flags}
    return build_tiny_lm(layer, rnn_cell=cell, **flags)


@torch.no_grad()
def read(model, tokens, *, target=None):
    """Log-probabilities, or the NLL of targets, with the masks of one seed."""
    torch.manual_seed(3)
    output, extra = model(tokens, target=target)
    return output if target is None else extra["scores"].nll


@every_part
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_masks_are_those_of_a_training_at_scaled_rates(layer, cell, gate, scale, build_tiny_lm):
    tokens = torch.randint(V, (2, 9))
    evaluated = build(build_tiny_lm, layer, cell, gate, rate=RATE, embedding_noise=0.5).eval()
    trained = build(build_tiny_lm, layer, cell, gate, rate=RATE * scale).train()
    static, in_training = read(evaluated, tokens), read(trained, tokens)
    with sampled_masks([evaluated], scale=scale):
        found, again = read(evaluated, tokens), read(evaluated, tokens)
        assert not evaluated.training
    torch.testing.assert_close(found, in_training, rtol=1e-5, atol=1e-5)
    assert torch.equal(found, again) and not torch.allclose(found, static, atol=1e-3)
    assert torch.equal(read(evaluated, tokens), static)


@every_part
def test_scale_zero_is_static_evaluation(layer, cell, gate, build_tiny_lm, tokens, score_text):
    model = build(build_tiny_lm, layer, cell, gate, rate=RATE)
    assert torch.equal(score_text([model], tokens, dropout_samples=1, dropout_scale=0), score_text([model], tokens))


@pytest.mark.parametrize("flags", [{"word_masks": "row"}, {"dropout_masks": "standard"}])
def test_other_kinds_of_masks(flags, build_tiny_lm):
    tokens = torch.randint(V, (2, 9))
    evaluated, trained = (build(build_tiny_lm, "mos", "lstm", "none", rate=RATE, **flags) for _ in range(2))
    expected = read(trained.train(), tokens)
    with sampled_masks([evaluated.eval()], scale=1.0):
        torch.testing.assert_close(read(evaluated, tokens), expected, rtol=1e-5, atol=1e-5)


def test_margins_of_a_training_stay_away(build_tiny_lm):
    tokens = torch.randint(V, (2, 9))
    models = [
        build(build_tiny_lm, "tied", "lstm", "none", rate=RATE, adversarial_epsilon=epsilon).eval()
        for epsilon in (0.0, 0.5)
    ]
    with sampled_masks(models, scale=1.0):
        assert torch.equal(*(read(model, tokens, target=tokens.flip(0)) for model in models))


def test_a_gated_model_drops_in_its_base_model_too(tokens, score_text):
    base = tiny_base_flags("mos", latent_dropout=0.0, **dict.fromkeys(["dropout_input", "dropout_embedding"], 0.0))
    rates = dict.fromkeys(["dropout_hidden", "dropout_weight"], 0.0)
    static = score_text([build_tiny_gated_lm({**base, **rates, "dropout_output": 0.0})], tokens)
    for flags, gate in [({"dropout_output": 0.5}, 0.0), ({"dropout_output": 0.0}, 0.5)]:
        model = build_tiny_gated_lm({**base, **rates, **flags}, gate_dropout=gate)
        assert torch.equal(score_text([model], tokens), static)
        assert not torch.allclose(score_text([model], tokens, dropout_samples=1), static, atol=1e-3)


def test_probabilities_are_averaged_over_passes_with_states_of_their_own(
    build_tiny_lm, tokens, score_text, monkeypatch
):
    model = build_tiny_lm("tied", dropout_output=0.4, dropout_weight=0.4)
    windows, inputs = [[], [], []], []
    one_pass = DropoutSamples._sample

    def note(samples, window, number):
        windows[number].append(one_pass(samples, window, number))
        return windows[number][-1]

    monkeypatch.setattr(DropoutSamples, "_sample", note)
    model.register_forward_pre_hook(
        lambda _, args, options: inputs.append((options["stream"], options["position"])), with_kwargs=True
    )
    found = score_text([model], tokens, window=20, dropout_samples=3, dropout_scale=0.5, seed=7)
    passes = torch.stack([-torch.cat(parts, dim=1) for parts in windows]).double()
    torch.testing.assert_close(found, passes.exp().mean(0).log(), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(passes[0], passes[1]) and not torch.allclose(passes[1], passes[2])
    assert {position for _, position in inputs} == {0, 20, 40}
    assert len({stream for stream, _ in inputs}) == 4  # one is read without masks
    carried = model.decoder.carried_state
    for stream, _ in inputs:
        with pytest.raises(ValueError, match="cannot go on"):
            carried.get(stream, 60)


def test_the_first_pass_by_hand(build_tiny_lm, tokens, score_text):
    model = build_tiny_lm("tied", dropout_output=0.5).double().eval()
    drawn, rand = [], torch.rand

    def note(*size, **options):
        drawn.append(rand(*size, **options))
        return drawn[-1].clone()  # the mask is formed in its place

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "rand", note)
        found = score_text([model], tokens, window=25, dropout_samples=1, dropout_scale=0.6)
    assert [mask.shape for mask in drawn] == [(1, 1, 8)] * 3
    expected = []
    for first, mask in zip((0, 25, 50), drawn):
        factors = mask.lt(0.7).double() / 0.7
        inputs, target = tokens[None, first : first + 25][:, : 60 - first], tokens[None, first + 1 : first + 26]
        top = model(inputs, stream="by hand", position=first)[1]["states"].top
        log_probs = torch.log_softmax(
            (top * factors) @ model.decoder.embedding.weight.T + model.decoder.output.projection.bias, dim=-1
        )
        expected.append(log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1))
    torch.testing.assert_close(found, torch.cat(expected, dim=1).detach(), rtol=1e-10, atol=1e-10)


def test_the_seed_alone_sets_the_masks(build_tiny_lm, tokens, score_text):
    models = [build_tiny_lm("tied", seed=seed, dropout_output=0.5) for seed in (1, 2)]
    flags = {"dropout_samples": 2, "dropout_scale": 1}
    first = score_text(models, tokens, seed=1, **flags)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert torch.equal(score_text(models, tokens, seed=1, **flags), first)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.allclose(score_text(models, tokens, seed=2, **flags), first)


def test_each_model_of_an_ensemble_has_masks_of_its_own(build_tiny_lm, tokens, score_text):
    models = [build_tiny_lm("tied", dropout_output=0.5).double() for _ in range(2)]
    alone, together = (score_text(several, tokens, dropout_samples=1) for several in (models[:1], models))
    assert (alone - together).abs().max() > 1e-3


def test_a_rate_that_leaves_nothing_is_refused(build_tiny_lm, tokens, score_text):
    model = build_tiny_lm("tied", dropout_output=0.5)
    with pytest.raises(ValueError, match="--dropout-scale 2: the model has a dropout rate of 0.5"):
        score_text([model], tokens, dropout_samples=1, dropout_scale=2)
    assert torch.equal(score_text([model], tokens, dropout_samples=1, dropout_scale=0), score_text([model], tokens))
