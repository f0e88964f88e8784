"""The continuous cache against a loop over tokens in float64."""

import pytest
import torch

from fairseq_plugins.evaluation.scored_windows import score_windows
from fairseq_plugins.evaluation.test_time import recent_tokens

V = 23


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


@pytest.mark.parametrize("start, needed", [("first", 1), ("full", None)])
@pytest.mark.parametrize("length, theta", [(1, 1.0), (9, 0.3), (9, 0.0), (1000, 1.5)])
@pytest.mark.parametrize("num_rows, num_models, window", [(1, 1, 1000), (3, 2, 7), (1, 2, 1)])
def test_it_is_that_of_a_loop(
    start, needed, length, theta, num_rows, num_models, window, build_tiny_lm, tokens, score_text
):
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


@pytest.mark.parametrize("length", [3, 70, 128, 200, 400])
@pytest.mark.parametrize("elements", [2**20, 1500])
def test_it_does_not_depend_on_the_cut_into_windows_and_chunks(
    length, elements, build_tiny_lm, score_text, monkeypatch
):
    monkeypatch.setattr(recent_tokens, "CHUNK_ELEMENTS", elements)
    model, tokens = build_tiny_lm("mos").double(), torch.randint(V, (601,))
    whole, *others = [
        score_text([model], tokens, num_rows=2, window=window, cache=f"{length},0.5,0.7", cache_start="first")
        for window in (1000, 150, 5)
    ]
    for other in others:
        torch.testing.assert_close(other, whole, rtol=1e-10, atol=1e-10)


def test_a_gated_model_caches_the_states_of_its_base_models(tokens, score_text):
    from builders import build_tiny_gated_lm, tiny_base_flags

    model = build_tiny_gated_lm(tiny_base_flags("tied"), tiny_base_flags("mos")).double()
    found = score_text([model], tokens, cache="9,0.3,0.5")
    static, (states,), words = read_static([model], tokens, 1)
    assert states.size(-1) == 16  # two last layers of width 8
    cache = cache_by_hand(states[0], words[0], length=9, theta=0.5, first=10)
    torch.testing.assert_close(found[0], mixed_by_hand(static[0], [cache], 0.3), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("num_models", [1, 2])
def test_with_weight_zero_it_is_static_evaluation(num_models, build_tiny_lm, tokens, score_text):
    models = [build_tiny_lm("doc", seed=seed) for seed in range(num_models)]
    static = score_text(models, tokens)
    found = score_text(models, tokens, cache="9,0,1", cache_start="first", unigram_cache="5,0")
    assert torch.equal(found, static)


def test_large_products_do_not_overflow(build_tiny_lm, tokens, score_text):
    found = score_text([build_tiny_lm("tied")], tokens, cache="30,0.5,1e6", cache_start="first")
    assert found.isfinite().all()
    in_double = score_text([build_tiny_lm("tied").double()], tokens, cache="30,0.5,1e3", cache_start="first")
    in_single = score_text([build_tiny_lm("tied")], tokens, cache="30,0.5,1e3", cache_start="first")
    torch.testing.assert_close(in_single, in_double, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("length, is_told", [(37, False), (38, True), (39, True), (40, True), (41, True)])
def test_a_cache_that_is_never_full_is_told(num_rows, length, is_told, build_tiny_lm, score_text, capsys):
    model, tokens = build_tiny_lm("tied"), torch.randint(V, (40 * num_rows,))
    found = score_text([model], tokens, num_rows=num_rows, cache=f"{length},0.3,1")
    told = f"--cache {length}: a row has 40 tokens, so that the cache is never full and changes nothing: take a"
    assert (told in capsys.readouterr().err) == is_told
    assert torch.equal(found, score_text([model], tokens, num_rows=num_rows)) == is_told


def test_before_it_is_full_the_model_speaks_alone(build_tiny_lm, tokens, score_text):
    model = build_tiny_lm("tied")
    static, found = score_text([model], tokens), score_text([model], tokens, cache="20,0.3,1", cache_start="full")
    assert torch.equal(found[:, :21], static[:, :21])
    assert (found[:, 21:] != static[:, 21:]).all()
