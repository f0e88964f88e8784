"""Methods together: what is scored never knows what follows, and nothing stays behind."""

import pytest
import torch
from builders import build_tiny_gated_lm, tiny_base_flags

from fairseq_plugins.evaluation.scored_windows import score_windows

METHODS = {
    "cache": {"cache": "9,0.2,0.5", "cache_start": "first"},
    "unigram cache": {"unigram_cache": "9,0.2"},
    "dynamic": {"dynamic": "sgd", "dynamic_rate": 0.1, "dynamic_decay": 0.1},
    "dynamic, rms": {"dynamic": "rms", "dynamic_rate": 0.05, "dynamic_segment": 3},
    "dropout": {"dropout_samples": 2},
    "temperature": {"temperature": 0.8},
}
ALL = {name: value for flags in METHODS.values() for name, value in flags.items()}
CASES = [pytest.param(flags, id=name) for name, flags in {**METHODS, "all": ALL}.items()]


@pytest.fixture(
    params=[
        "one",
        pytest.param("ensemble", marks=pytest.mark.slow),
        "iog",
        pytest.param("iog-hidden", marks=pytest.mark.slow),
        pytest.param("iog-lstm", marks=pytest.mark.slow),
    ]
)
def models(request, build_tiny_lm):
    rates = {"dropout_output": 0.4, "dropout_weight": 0.4}
    if request.param.startswith("iog"):
        return [build_tiny_gated_lm(tiny_base_flags("mos", **rates), output_gate=request.param, gate_dropout=0.4)]
    names = ["doc", "tied"] if request.param == "ensemble" else ["doc"]
    return [build_tiny_lm(name, seed=seed, **rates) for seed, name in enumerate(names)]


@pytest.fixture
def score_text(score_text):
    """Scores of texts, with mean squares as a training text would give them to dynamic evaluation."""

    def score(models, tokens, **flags):
        squares = [{name: torch.full_like(one, 1e-4) for name, one in model.named_parameters()} for model in models]
        return score_text(models, tokens, mean_squares=squares, **flags)

    return score


@pytest.mark.parametrize("flags", CASES)
def test_scores_before_a_change_of_the_text_are_the_same_to_the_bit(flags, models, tokens, score_text):
    changed_from = 33
    other = tokens.clone()
    other[changed_from:] = (other[changed_from:] + 1) % 23
    found, changed = (score_text(models, text, **flags)[0] for text in (tokens, other))
    # log-probability t is that of token t + 1
    assert torch.equal(found[: changed_from - 1], changed[: changed_from - 1])
    assert (found[changed_from - 1 :] != changed[changed_from - 1 :]).any()


@pytest.mark.parametrize("flags", CASES)
def test_every_method_says_something_and_leaves_nothing_behind(flags, models, tokens, score_text):
    static = score_text(models, tokens)
    found = score_text(models, tokens, **flags)
    assert found.isfinite().all() and not torch.allclose(found, static, atol=1e-3)
    assert torch.equal(score_text(models, tokens), static)
    assert torch.equal(score_text(models, tokens, **flags), found)
    assert not any(model.decoder.carried_state._streams for model in models)


def test_without_methods_it_is_static_evaluation(models, tokens, score_text):
    expected = torch.cat([-window.nll for window in score_windows(models, tokens, window=7)], dim=1)
    assert torch.equal(score_text(models, tokens), expected)


def test_caches_keep_states_without_dropout(build_tiny_lm, tokens, score_text):
    model = build_tiny_lm("tied", dropout_output=0.5, dropout_weight=0.5, dropout_hidden=0.5).double()
    flags = {"cache_start": "first", "cache": "9,0.5,0.5"}
    clean = score_text([model], tokens, **flags).exp() - 0.5 * score_text([model], tokens).exp()
    sampled = score_text([model], tokens, dropout_samples=2)
    found = score_text([model], tokens, dropout_samples=2, **flags)
    expected = clean + 0.5 * sampled.exp()
    torch.testing.assert_close(found[:, 1:].exp(), expected[:, 1:], rtol=1e-10, atol=1e-12)
