"""The prior of a mixture's experts, word by word and over a text."""

import math

import pytest
import torch
from builders import build_tiny_gated_lm, build_tiny_lm
from single_experts import only_expert

from fairseq_plugins.evaluation.analyses import experts as experts_module
from fairseq_plugins.evaluation.analyses.experts import (
    ExpertUse,
    default_threshold,
    expert_layers,
    expert_use,
    rank,
    singular_values,
    word_experts,
)
from fairseq_plugins.evaluation.scoring import score_lines, score_pairs, score_windows
from fairseq_plugins.options import UserError

END = 2


def test_the_balance_is_the_deviation_of_the_summed_prior_by_its_mean():
    sums = dict(total_entropy=torch.tensor([9.0, 18.0, 0.0]).double(), num_words=9, vocab_size=23)
    use = ExpertUse(layers=[2, 3, 3], mass=torch.tensor([1.0, 2.0, 6.0]).double(), **sums)
    assert use.shares == pytest.approx([1 / 9, 2 / 9, 6 / 9])
    assert use.balance == pytest.approx(math.sqrt((4 + 1 + 9) / 3) / 3)
    assert use.sample_balance == pytest.approx(math.sqrt((4 + 1 + 9) / 2) / 3)
    assert use.entropies == pytest.approx([1, 2, 0])
    alone = ExpertUse(layers=[3], mass=torch.tensor([9.0]).double(), **sums)
    assert alone.balance == 0 and math.isnan(alone.sample_balance)


@torch.no_grad()
def prior_by_hand(model, inputs):
    """softmax(W h^N) of a language model that reads inputs (n,) from a fresh state, (n, J)."""
    states = model.eval()(inputs[None])[1]["states"]
    return torch.softmax(states.layers[-1][0] @ model.decoder.output.prior.weight.t(), dim=-1)


@torch.no_grad()
def entropies_by_hand(model, batch):
    """Of every expert by itself, (T, J), of a batch of one row."""
    output, entropies = model.decoder.output, []
    for expert in range(output.num_experts):
        with only_expert(output, expert):
            log_probs = model.eval()(*batch)[0][0].double()
        entropies.append(-(log_probs.exp() * log_probs).sum(-1))
    return torch.stack(entropies, dim=-1)


@pytest.mark.parametrize(
    "flags", [{}, {"output_gate": "iog"}, {"output_gate": "iog-lstm"}, {"label_encoder": "drill"}], ids=str
)
def test_the_entropies_of_a_stream_are_those_of_each_expert_alone(flags):
    model, tokens = build_tiny_lm("doc", experts_per_layer="1 0 2", **flags).double(), torch.randint(4, 23, (2100,))
    windows = score_windows([model], tokens)  # three, between which a gate's state is carried
    use = expert_use(model, windows)
    expected = entropies_by_hand(model, [tokens[None, :-1]])
    torch.testing.assert_close(use.total_entropy, expected.sum(0))
    assert use.vocab_size == 23 and use.entropies == pytest.approx(expected.mean(0).tolist())


def test_the_use_of_a_stream_is_the_sum_of_the_prior_before_every_word():
    model, tokens = build_tiny_lm("doc", experts_per_layer="1 0 2").double(), torch.randint(4, 23, (41,))
    use = expert_use(model, score_windows([model], tokens))
    expected = prior_by_hand(model, tokens[:-1]).sum(0)
    assert use.layers == [0, 2, 2] and use.num_words == 40
    torch.testing.assert_close(use.mass, expected)
    assert sum(use.shares) == pytest.approx(1)
    by_rows = expert_use(model, score_windows([model], tokens, num_rows=2))
    halves = [prior_by_hand(model, half[:-1]).sum(0) for half in tokens[:40].split(20)]
    torch.testing.assert_close(by_rows.mass, sum(halves))


def test_a_line_has_the_prior_before_each_of_its_words():
    model, line = build_tiny_lm("mos", experts_per_layer="0 0 3").double(), torch.tensor([7, 11, 3, END])
    (found,) = (word_experts(model, scored) for scored in score_lines(model, [line]))
    torch.testing.assert_close(found.weights, prior_by_hand(model, torch.tensor([END, 7, 11, 3])))
    assert found.words == [model.decoder.dictionary[word] for word in line.tolist()] and found.layers == [2, 2, 2]
    assert found.words[-1] == "</s>"


def test_the_use_of_pairs_is_the_sum_over_their_targets(doc_translator):
    model = doc_translator
    sources = [torch.tensor([5, 6, END]), torch.tensor([7, END]), torch.tensor([8, 9, 10, END])]
    targets = [torch.tensor([9, END]), torch.tensor([4, 5, 6, 7, END]), torch.tensor([END])]
    use = expert_use(model, score_pairs(model, sources, targets))
    alone = [
        word_experts(model, scored)
        for source, target in zip(sources, targets)
        for scored in score_pairs(model, [source], [target])
    ]
    entropies = [
        entropies_by_hand(model, [source[None], torch.tensor([len(source)]), target.roll(1)[None]]).sum(0)
        for source, target in zip(sources, targets)
    ]
    torch.testing.assert_close(use.total_entropy, sum(entropies))
    assert use.num_words == 8 and len(use.layers) == 3
    torch.testing.assert_close(use.mass, sum(one.weights.sum(0) for one in alone))
    for one, target in zip(alone, targets):
        torch.testing.assert_close(one.weights.sum(1), torch.ones(len(target)).double())
        assert one.layers == use.layers == expert_layers(model)


def test_models_without_a_mixture_are_told():
    for model in (build_tiny_lm("tied"), torch.nn.Linear(1, 1)):
        with pytest.raises(ValueError, match="the model has no mixture of softmaxes: give one with --output-layer mos"):
            expert_layers(model)
    with pytest.raises(ValueError, match="a gated model has no experts itself: give the checkpoint of its base model"):
        expert_layers(build_tiny_gated_lm("mos"))


V = 61


@pytest.mark.parametrize("window", [7, 1000])
@pytest.mark.parametrize("name", ["tied", "drill", "mos"])
def test_singular_values_are_those_of_the_whole_matrix(name, window, monkeypatch):
    model, tokens = build_tiny_lm(name, vocab_size=V).double(), torch.randint(V, (141,))
    with torch.no_grad():
        log_probs, _ = model.eval()(tokens[None, :-1])
    monkeypatch.setattr(experts_module, "WINDOW", window)
    values = singular_values(model, tokens)
    torch.testing.assert_close(values, torch.linalg.svdvals(log_probs[0]), rtol=1e-6, atol=1e-4)


def test_one_softmax_has_the_rank_of_its_features_and_a_mixture_more():
    tokens = torch.randint(V, (400,))
    ranks = {
        name: rank(singular_values(build_tiny_lm(name, vocab_size=V).double(), tokens), threshold=1e-3)
        for name in ("tied", "drill", "mos")
    }
    assert ranks["tied"] == ranks["drill"] == 8 + 2 and ranks["mos"] > 30


def test_there_are_no_more_values_than_positions():
    values = singular_values(build_tiny_lm("mos", vocab_size=V).double(), torch.randint(V, (4,)))
    assert rank(values, threshold=0) == 3 and len(values) == V


@pytest.mark.parametrize("num_positions, longer", [(3, 10), (90, 90)])
def test_the_default_threshold_is_the_rounding_error_of_float32(num_positions, longer):
    values = torch.linspace(4, 1, 10).double()
    assert default_threshold(values, num_positions=num_positions) == pytest.approx(longer * 2**-23 * 4, rel=1e-12)


def test_a_vocabulary_that_is_too_large_for_the_matrix_is_refused_in_a_line(monkeypatch):
    def refuse(*_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(torch.Tensor, "new_zeros", refuse)
    with pytest.raises(UserError, match="^267,735 words: .* takes 573 GB, .*: give a model with a smaller vocabulary$"):
        experts_module._square_matrix(torch.empty(0, 267_735))
