"""Test-time methods: interpolation, caches, temperature and dropout samples against plain formulas."""

import pytest
import torch
from builders import build_tiny_gated_lm, build_tiny_lm, make_dictionary, tiny_base_flags
from example_parts import OwnSoftmax

from fairseq_plugins.commands.method_flags import read_methods
from fairseq_plugins.evaluation import methods
from fairseq_plugins.evaluation.methods import (
    ComponentScores,
    DropoutSamples,
    EvaluatedText,
    interpolate,
    sampled_masks,
    softmax_temperature,
)
from fairseq_plugins.evaluation.scoring import score_windows
from fairseq_plugins.modules.cell import RECURRENT_CELLS
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS
from fairseq_plugins.output_layers.gates import OUTPUT_GATES
from fairseq_plugins.parts import option_names


@pytest.fixture
def probs():
    return torch.rand(3, 2, 5, dtype=torch.float64)


def test_an_interpolation_is_the_weighted_sum(probs):
    known = torch.rand(2, 2, 5) < 0.5
    components = [ComponentScores(one.log(), where) for one, where in zip(probs[1:], known)]
    found = interpolate(probs[0].log(), components, [0.2, 0.5]).exp()
    shares = known[0].double() * 0.2, known[1].double() * 0.5
    expected = (1 - shares[0] - shares[1]) * probs[0] + shares[0] * probs[1] + shares[1] * probs[2]
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    unknown = ~known.any(dim=0)
    assert unknown.any() and torch.equal(found[unknown], probs[0].log().exp()[unknown])


def test_zeros_are_no_error_and_what_has_no_weight_or_is_unknown_has_no_part(probs):
    model = probs[0].log()
    everywhere = torch.ones_like(model, dtype=torch.bool)
    zero = ComponentScores(torch.full_like(model, -torch.inf), everywhere)
    torch.testing.assert_close(interpolate(model, [zero], [0.25]).exp(), 0.75 * probs[0])
    undefined = torch.full_like(model, torch.nan)
    assert torch.equal(interpolate(model, [], []), model)
    assert torch.equal(interpolate(model, [ComponentScores(undefined, everywhere)], [0.0]), model)
    assert torch.equal(interpolate(model, [ComponentScores(undefined, ~everywhere)], [0.25]), model)


V = 23


def by_hand(layer, states, temperature, gate=1.0):
    """Probabilities (B, T, V): sum_j pi_j softmax(g (L k_j + b) / T)."""
    latents, log_prior = layer.mixture(states)
    logits = layer.projection(latents) * gate / temperature
    return (torch.softmax(logits, dim=-1) * log_prior.exp().unsqueeze(-1)).sum(dim=-2)


@pytest.mark.parametrize("name", sorted(OUTPUT_LAYERS))
@pytest.mark.parametrize("with_gradients, bias", [(True, "on"), (False, "off")])
def test_every_layer_divides_its_logits(name, with_gradients, bias):
    model, tokens = build_tiny_lm(name, output_bias=bias).double().eval(), torch.randint(V, (2, 9))
    target = tokens.flip(1)
    with torch.set_grad_enabled(with_gradients), softmax_temperature([model], temperature=0.7):
        log_probs, extra = model(tokens)
        loss, of_targets = model(tokens, target=target)
    with torch.no_grad():
        expected = by_hand(model.decoder.output, extra["states"], 0.7)
        plain = model(tokens)[0]
    torch.testing.assert_close(log_probs.exp(), expected, rtol=1e-10, atol=1e-12)
    nll = -expected.log().gather(-1, target.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(of_targets["scores"].nll, nll, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(loss.detach(), nll.sum(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(plain.exp(), by_hand(model.decoder.output, extra["states"], 1).detach())


@pytest.mark.parametrize("num_bases", [1, 2])
def test_a_gate_multiplies_before_it(num_bases, tokens, score_text):
    model = build_tiny_gated_lm(*["mos", "tied"][:num_bases]).double().eval()
    found = score_text([model], tokens, temperature=1.3)
    with torch.no_grad():
        inputs, target = tokens[None, :-1], tokens[None, 1:]
        decoder = model.decoder
        read = [
            member.read(inputs, layers, incremental=False)[0]
            for member, layers in zip(decoder.members, decoder.initial_state(1)["members"])
        ]
        gate = decoder.gate(model(inputs)[1]["states"], {})[0]
        values = torch.sigmoid(gate.features @ gate.weight.T + gate.bias).unsqueeze(-2)
        probs = sum(by_hand(member.output, states, 1.3, values) for member, states in zip(decoder.members, read))
    expected = (probs / num_bases).log().gather(-1, target.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_gradients_are_those_of_the_divided_logits():
    model, tokens = build_tiny_lm("doc", experts_per_layer="1 0 2").double().eval(), torch.randint(V, (2, 9))
    target = tokens.flip(1)
    with softmax_temperature([model], temperature=0.7):
        fused, extra = model(tokens, target=target)
        plain = -model(tokens)[0].gather(-1, target.unsqueeze(-1)).sum()
    ours, theirs = (torch.autograd.grad(one, list(model.parameters())) for one in (fused, plain))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_a_layer_without_logits_is_refused(tokens, score_text):
    model = build_tiny_lm("full")
    model.decoder.output = OwnSoftmax(
        dictionary=make_dictionary(V), layer_widths=[8, 12, 8], shared_weight=None, options=None
    )
    with pytest.raises(ValueError, match="--temperature 0.9: --output-layer own has no logits to divide"):
        score_text([model], tokens, temperature=0.9)
    assert score_text([model], tokens, temperature=1).isfinite().all()


RATE = 0.4
PARTS = [(layer, "lstm", "none", {}) for layer in sorted(OUTPUT_LAYERS)]
PARTS += [("tied", cell, "none", {}) for cell in sorted(set(RECURRENT_CELLS) - {"lstm"})]
PARTS += [("tied", "lstm", gate, {}) for gate in sorted(set(OUTPUT_GATES) - {"none"})]
PARTS += [("mos", "lstm", "none", masks) for masks in ({"word_masks": "row"}, {"dropout_masks": "standard"})]


def build(layer, cell, gate, *, rate, **flags):
    """A model with this rate at every place."""
    rates = {f"dropout_{place}" for place in ("embedding", "input", "hidden", "output")}
    for part in (OUTPUT_LAYERS[layer], RECURRENT_CELLS[cell], OUTPUT_GATES[gate]):
        names = option_names(part.Options)
        rates |= {name for name in names if name.startswith("dropout_") or name.endswith("_dropout")}
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


@pytest.mark.parametrize("layer, cell, gate, masks", PARTS)
def test_masks_are_those_of_a_training_at_scaled_rates(layer, cell, gate, masks, scale=0.5):
    tokens = torch.randint(V, (2, 9))
    evaluated = build(layer, cell, gate, rate=RATE, **masks).eval()
    trained = build(layer, cell, gate, rate=RATE * scale, **masks).train()
    static, in_training = read(evaluated, tokens), read(trained, tokens)
    with sampled_masks([evaluated], scale=scale):
        found, again = read(evaluated, tokens), read(evaluated, tokens)
        assert not evaluated.training
    torch.testing.assert_close(found, in_training, rtol=1e-5, atol=1e-5)
    assert torch.equal(found, again) and not torch.allclose(found, static, atol=1e-3)
    with sampled_masks([evaluated], scale=0):
        assert torch.equal(read(evaluated, tokens), static)
    assert torch.equal(read(evaluated, tokens), static)


def test_margins_of_a_training_stay_away():
    tokens = torch.randint(V, (2, 9))
    models = [build("tied", "lstm", "none", rate=RATE, adversarial_epsilon=epsilon).eval() for epsilon in (0.0, 0.5)]
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


def test_probabilities_are_averaged_over_passes_with_states_of_their_own(tokens, score_text, monkeypatch):
    model = build_tiny_lm("tied", dropout_output=0.4, dropout_weight=0.4)
    windows, streams = [[], [], []], set()
    one_pass = DropoutSamples._sample

    def note(samples, window, number):
        windows[number].append(one_pass(samples, window, number))
        return windows[number][-1]

    monkeypatch.setattr(DropoutSamples, "_sample", note)
    model.register_forward_pre_hook(lambda _, __, options: streams.add(options["stream"]), with_kwargs=True)
    found = score_text([model], tokens, window=20, dropout_samples=3, dropout_scale=0.5, seed=7)
    passes = torch.stack([-torch.cat(parts, dim=1) for parts in windows]).double()
    torch.testing.assert_close(found, passes.exp().mean(0).log(), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(passes[0], passes[1]) and not torch.allclose(passes[1], passes[2])
    assert len(streams) == 4  # one is read without masks


def test_the_first_pass_by_hand(tokens, score_text):
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


def test_the_seed_sets_the_masks_which_differ_between_equal_models(tokens, score_text):
    models = [build_tiny_lm("tied", dropout_output=0.5) for _ in range(2)]
    flags = {"dropout_samples": 2, "dropout_scale": 1}
    first = score_text(models, tokens, seed=1, **flags)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert torch.equal(score_text(models, tokens, seed=1, **flags), first)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.allclose(score_text(models, tokens, seed=2, **flags), first)
    assert not torch.allclose(score_text(models[:1], tokens, seed=1, **flags), first, atol=1e-3)


def cache_by_hand(states, words, *, length, theta, first):
    """p_cache of each word of a row, or None: states h_t (n, D), words x_{t+1} (n)."""
    probs = []
    for t in range(len(words)):
        pairs = range(max(0, t - length), t)
        if len(range(t)) < first:
            probs.append(None)
            continue
        scores = {i: torch.exp(theta * states[i] @ states[t]) for i in pairs}
        at_word = sum(score for i, score in scores.items() if words[i] == words[t])
        probs.append(at_word / sum(scores.values()))
    return probs


def mixed_by_hand(static, caches, weight):
    """log((1 - w) p + w mean_m p_m) of a row; ``caches`` holds the probabilities of each model's cache."""
    mixed = []
    for log_prob, *others in zip(static, *caches):
        known = others[0] is not None
        cached = sum(others) / len(others) if known else 0.0
        mixed.append(torch.log((1 - weight) * log_prob.exp() + weight * cached) if known else log_prob)
    return torch.stack(mixed)


def read_static(models, tokens, num_rows):
    """Log-probabilities (B, n), the models' last layers (B, n, D), and what is predicted (B, n)."""
    (window,) = score_windows(models, tokens, num_rows=num_rows)
    return -window.nll, [one.top for one in window.states], window.target


@pytest.mark.parametrize(
    "start, needed, length, theta, num_rows, num_models, window",
    [
        ("first", 1, 1, 1.0, 3, 2, 7),
        ("first", 1, 9, 0.3, 1, 2, 1),
        ("first", 1, 1000, 1.5, 1, 1, 1000),
        ("full", None, 1, 1.0, 1, 1, 1000),
        ("full", None, 9, 0.0, 3, 2, 7),
        ("full", None, 1000, 1.5, 1, 2, 1),
    ],
)
def test_the_cache_is_that_of_a_loop(start, needed, length, theta, num_rows, num_models, window, tokens, score_text):
    models = [build_tiny_lm("tied", seed=seed, dropout_output=0.5).double() for seed in range(num_models)]
    found = score_text(
        models, tokens, num_rows=num_rows, window=window, cache=f"{length},0.3,{theta}", cache_start=start
    )
    static, states, words = read_static(models, tokens, num_rows)
    for row in range(num_rows):
        caches = [
            cache_by_hand(one[row], words[row], length=length, theta=theta, first=needed or length + 1)
            for one in states
        ]
        torch.testing.assert_close(found[row], mixed_by_hand(static[row], caches, 0.3), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    "flags, elements",
    [
        ({"cache": "3,0.5,0.7", "cache_start": "first"}, 1500),
        ({"cache": "200,0.5,0.7", "cache_start": "first"}, 2**20),
        ({"cache": "400,0.5,0.7", "cache_start": "first"}, 1500),
        ({"unigram_cache": "200,0.4"}, 2**20),
    ],
)
def test_caches_do_not_depend_on_the_cut_into_windows_and_chunks(flags, elements, score_text, monkeypatch):
    monkeypatch.setattr(methods, "CHUNK_ELEMENTS", elements)
    model, tokens = build_tiny_lm("mos").double(), torch.randint(V, (601,))
    found = [score_text([model], tokens, num_rows=2, window=window, **flags) for window in (1000, 150, 5)]
    torch.testing.assert_close(found[1:], [found[0]] * 2, rtol=1e-10, atol=1e-10)


def test_a_gated_model_caches_the_states_of_its_base_models(tokens, score_text):
    model = build_tiny_gated_lm("tied", "mos").double()
    found = score_text([model], tokens, cache="9,0.3,0.5")
    static, (states,), words = read_static([model], tokens, 1)
    assert states.size(-1) == 16  # two last layers of width 8
    cache = cache_by_hand(states[0], words[0], length=9, theta=0.5, first=10)
    torch.testing.assert_close(found[0], mixed_by_hand(static[0], [cache], 0.3), rtol=1e-11, atol=1e-11)


def test_large_products_do_not_overflow(tokens, score_text):
    found = score_text([build_tiny_lm("tied")], tokens, cache="30,0.5,1e6", cache_start="first")
    assert found.isfinite().all()
    in_double = score_text([build_tiny_lm("tied").double()], tokens, cache="30,0.5,1e3", cache_start="first")
    in_single = score_text([build_tiny_lm("tied")], tokens, cache="30,0.5,1e3", cache_start="first")
    torch.testing.assert_close(in_single, in_double, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("length, is_told, num_rows", [(37, False, 1), (37, False, 3), (38, True, 3), (40, True, 1)])
def test_a_cache_that_is_never_full_is_told(num_rows, length, is_told, score_text, capsys):
    model, tokens = build_tiny_lm("tied"), torch.randint(V, (40 * num_rows,))
    found = score_text([model], tokens, num_rows=num_rows, cache=f"{length},0.3,1")
    message = f"--cache {length}: a row has 40 tokens, so that the cache is never full and changes nothing: take a"
    assert (message in capsys.readouterr().err) == is_told
    assert torch.equal(found, score_text([model], tokens, num_rows=num_rows)) == is_told


@pytest.mark.parametrize("length, num_rows, window", [(1, 3, 7), (8, 1, 1000), (8, 2, 1), (500, 3, 7)])
def test_the_unigram_cache_is_the_count_over_the_last_words(length, num_rows, window, tokens, score_text):
    model = build_tiny_lm("tied").double()
    static = score_text([model], tokens, num_rows=num_rows)
    found = score_text([model], tokens, num_rows=num_rows, window=window, unigram_cache=f"{length},0.4")
    for row, words in enumerate(tokens[: len(tokens) // num_rows * num_rows].view(num_rows, -1).tolist()):
        for t in range(1, len(words)):
            last = words[max(0, t - length) : t]
            share = last.count(words[t]) / len(last)
            expected = torch.log(0.6 * static[row, t - 1].exp() + 0.4 * share)
            torch.testing.assert_close(found[row, t - 1], expected, rtol=1e-12, atol=1e-12)


def test_a_cache_makes_room_for_a_row(monkeypatch):
    lengths = []
    monkeypatch.setattr(methods, "RecentValues", lengths.append)
    text = EvaluatedText(torch.zeros(1000, dtype=torch.long), dictionary=make_dictionary(9), num_rows=10)
    for flags in ({"unigram-cache": "1000000,0.1"}, {"cache": "1000000,0.1,1"}):
        (cache,) = read_methods(flags).mixed
        cache.reader(text)
    assert lengths == [100, 100]


METHODS = {
    "cache": {"cache": "9,0.2,0.5", "cache_start": "first"},
    "unigram cache": {"unigram_cache": "9,0.2"},
    "dynamic": {"dynamic": "sgd", "dynamic_rate": 0.1, "dynamic_decay": 0.1},
    "dynamic, rms": {"dynamic": "rms", "dynamic_rate": 0.05, "dynamic_segment": 3},
    "dropout": {"dropout_samples": 2},
    "temperature": {"temperature": 0.8},
}
ALL = {name: value for flags in METHODS.values() for name, value in flags.items()}
MODELS_AND_METHODS = [("one", flags) for flags in METHODS.values()]
MODELS_AND_METHODS += [(kind, ALL) for kind in ("ensemble", "iog", "iog-lstm")]


def build_models(kind):
    rates = {"dropout_output": 0.4, "dropout_weight": 0.4}
    if kind.startswith("iog"):
        return [build_tiny_gated_lm(tiny_base_flags("mos", **rates), output_gate=kind, gate_dropout=0.4)]
    names = ["doc", "tied"] if kind == "ensemble" else ["doc"]
    return [build_tiny_lm(name, seed=seed, **rates) for seed, name in enumerate(names)]


@pytest.fixture
def score_text(score_text):
    """Scores of texts, with mean squares as a training text would give them to dynamic evaluation."""

    def score(models, tokens, **flags):
        squares = [{name: torch.full_like(one, 1e-4) for name, one in model.named_parameters()} for model in models]
        return score_text(models, tokens, mean_squares=squares, **flags)

    return score


@pytest.mark.parametrize("kind, flags", MODELS_AND_METHODS)
def test_every_method_says_something_reads_the_past_alone_and_leaves_nothing_behind(kind, flags, tokens, score_text):
    models, changed_from, other = build_models(kind), 33, tokens.clone()
    other[changed_from:] = (other[changed_from:] + 1) % 23
    static = torch.cat([-window.nll for window in score_windows(models, tokens, window=7)], dim=1)
    assert torch.equal(score_text(models, tokens), static)
    found, changed = (score_text(models, text, **flags) for text in (tokens, other))
    assert found.isfinite().all() and not torch.allclose(found, static, atol=1e-3)
    # log-probability t is that of token t + 1
    assert torch.equal(found[:, : changed_from - 1], changed[:, : changed_from - 1])
    assert (found[:, changed_from - 1 :] != changed[:, changed_from - 1 :]).any()
    assert torch.equal(score_text(models, tokens), static)
    assert torch.equal(score_text(models, tokens, **flags), found)
    assert not any(model.decoder.carried_state._streams for model in models)


def test_caches_keep_states_without_dropout(tokens, score_text):
    model = build_tiny_lm("tied", dropout_output=0.5, dropout_weight=0.5, dropout_hidden=0.5).double()
    flags = {"cache_start": "first", "cache": "9,0.5,0.5"}
    clean = score_text([model], tokens, **flags).exp() - 0.5 * score_text([model], tokens).exp()
    sampled = score_text([model], tokens, dropout_samples=2)
    found = score_text([model], tokens, dropout_samples=2, **flags)
    expected = clean + 0.5 * sampled.exp()
    torch.testing.assert_close(found[:, 1:].exp(), expected[:, 1:], rtol=1e-10, atol=1e-12)
