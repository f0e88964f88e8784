"""Linear interpolation of what is known of targets."""

import pytest
import torch

from fairseq_plugins.evaluation.test_time.component import ComponentScores
from fairseq_plugins.evaluation.test_time.interpolation import interpolate
from fairseq_plugins.evaluation.test_time.known_log_probs import KnownLogProbs


@pytest.fixture
def probs():
    return torch.rand(3, 2, 5, dtype=torch.float64)


def test_it_is_the_weighted_sum(probs):
    known = torch.rand(2, 2, 5) < 0.5
    components = [ComponentScores(one.log(), where) for one, where in zip(probs[1:], known)]
    found = interpolate(probs[0].log(), components, [0.2, 0.5]).exp()
    shares = known[0].double() * 0.2, known[1].double() * 0.5
    expected = (1 - shares[0] - shares[1]) * probs[0] + shares[0] * probs[1] + shares[1] * probs[2]
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    unknown = ~known.any(dim=0)
    assert unknown.any() and torch.equal(found[unknown], probs[0].log().exp()[unknown])


def test_what_has_no_weight_has_no_part(probs):
    model = probs[0].log()
    nothing = ComponentScores(torch.full_like(model, torch.nan), torch.ones_like(model, dtype=torch.bool))
    assert torch.equal(interpolate(model, [], []), model)
    assert torch.equal(interpolate(model, [nothing], [0.0]), model)


def test_zeros_of_a_component_and_what_it_does_not_know_are_no_error(probs):
    model = probs[0].log()
    zero = ComponentScores(torch.full_like(model, -torch.inf), torch.ones_like(model, dtype=torch.bool))
    torch.testing.assert_close(interpolate(model, [zero], [0.25]).exp(), 0.75 * probs[0])
    unknown = ComponentScores(torch.full_like(model, torch.nan), torch.zeros_like(model, dtype=torch.bool))
    assert torch.equal(interpolate(model, [unknown], [0.25]), model)


@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize("window", [1, 7, 1000])
def test_what_is_known_of_a_stream_meets_its_targets(num_rows, window, build_tiny_lm, tokens):
    from fairseq_plugins.evaluation.scored_windows import score_windows

    known = torch.arange(len(tokens)).double()  # at each place the place itself
    component, found = KnownLogProbs(known, num_rows=num_rows), []
    for one in score_windows([build_tiny_lm("tied")], tokens, num_rows=num_rows, window=window):
        scores = component.score(one)
        assert scores.known.all() and torch.equal(tokens[scores.log_probs.long()], one.target)
        found.append(scores.log_probs)
    places = torch.arange(len(tokens) // num_rows * num_rows).view(num_rows, -1)[:, 1:]
    assert torch.equal(torch.cat(found, dim=1).long(), places)
