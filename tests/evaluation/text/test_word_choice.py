"""Drawing a word from a distribution."""

import pytest
import torch

from fairseq_plugins.evaluation.text.word_choice import Sampling

PROBS = [0.1, 0.4, 0.05, 0.3, 0.15]


def shares(sampling, probs=PROBS, num_draws=20_000):
    """How often each word is chosen by evenly spread draws."""
    draws = (torch.arange(num_draws, dtype=torch.float64) + 0.5) / num_draws
    chosen = sampling.choose(torch.tensor(probs).double().log().expand(num_draws, -1), draws)
    return (torch.bincount(chosen, minlength=len(probs)) / num_draws).tolist()


def test_words_are_drawn_by_their_probabilities():
    assert shares(Sampling()) == pytest.approx(PROBS, abs=1e-3)


def test_what_is_left_out_is_never_drawn_and_the_rest_by_its_share():
    assert shares(Sampling(), [0.1, 0.4, 0.0, 0.3, 0.0]) == pytest.approx([0.125, 0.5, 0, 0.375, 0], abs=1e-3)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_is_a_power_of_the_probabilities(temperature):
    powers = [prob ** (1 / temperature) for prob in PROBS]
    expected = [power / sum(powers) for power in powers]
    assert shares(Sampling(temperature=temperature)) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("top_k, kept", [(1, [1]), (2, [1, 3]), (3, [1, 3, 4]), (9, [0, 1, 2, 3, 4])])
def test_the_most_probable_words(top_k, kept):
    total = sum(PROBS[word] for word in kept)
    expected = [prob / total if word in kept else 0 for word, prob in enumerate(PROBS)]
    assert shares(Sampling(top_k=top_k)) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("top_p, kept", [(0.01, [1]), (0.39, [1]), (0.5, [1, 3]), (0.71, [1, 3, 4]), (1.0, range(5))])
def test_the_fewest_words_that_sum_up_to_a_share(top_p, kept):
    total = sum(PROBS[word] for word in kept)
    expected = [prob / total if word in kept else 0 for word, prob in enumerate(PROBS)]
    assert shares(Sampling(top_p=top_p)) == pytest.approx(expected, abs=1e-3)


def test_words_that_sum_up_to_the_share_are_enough():
    assert shares(Sampling(top_p=0.5), [0.25, 0.5, 0.25]) == [0, 1, 0]


def test_both_limits_hold_and_the_share_is_of_the_tempered_distribution():
    assert shares(Sampling(top_k=2, top_p=0.99))[2] == 0 and shares(Sampling(top_k=4, top_p=0.3))[1] == 1
    assert shares(Sampling(temperature=0.1, top_p=0.9)) == [0, 1, 0, 0, 0]


@pytest.mark.parametrize("temperature", [1e-310, 5e-324])
def test_the_lowest_temperature_takes_the_most_probable_word(temperature):
    assert shares(Sampling(temperature=temperature)) == [0, 1, 0, 0, 0]


def test_a_search_uses_no_sampling():
    Sampling(temperature=1.0).check_unused(beam="beam")
    for options in (dict(temperature=0.9), dict(top_k=5), dict(top_p=0.9)):
        with pytest.raises(ValueError, match="--beam: a search draws nothing; leave out temperature, top-k and top-p"):
            Sampling(**options).check_unused(beam="--beam")


@pytest.mark.parametrize("sampling, first, last", [(Sampling(), 1, 2), (Sampling(top_k=4), 2, 1)])
def test_the_ends_of_the_draws_choose_words_that_have_a_probability(sampling, first, last):
    log_probs = torch.tensor([[0.0, 0.25, 0.75, 0.0]]).double().log()
    ends = torch.tensor([0.0, 1 - 2**-53]).double()
    assert sampling.choose(log_probs.expand(2, -1), ends).tolist() == [first, last]


@pytest.mark.parametrize(
    "options, told",
    [
        (dict(temperature=0), "temperature 0: give a value above 0"),
        (dict(top_k=0), "top-k 0: give at least 1"),
        (dict(top_p=0.0), "top-p 0.0: give a share above 0, at most 1"),
        (dict(top_p=1.1), "top-p 1.1"),
    ],
)
def test_values_that_do_not_fit_are_refused(options, told):
    with pytest.raises(ValueError, match=told):
        Sampling(**options)
