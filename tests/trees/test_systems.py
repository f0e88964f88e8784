"""Which models choose together, and that each way to choose takes its own scores."""

import torch

from fairseq_plugins.trees.bracket_scores import BracketCounts
from fairseq_plugins.trees.hypotheses import Hypothesis
from fairseq_plugins.trees.hypothesis_scores import ModelScores
from fairseq_plugins.trees.parse_lists import CandidateTree
from fairseq_plugins.trees.sentences import Sentence
from fairseq_plugins.trees.systems import ensembles_of, score_systems


def test_models_of_a_name_choose_together_and_all_do():
    assert ensembles_of({"A": [0, 2], "B": [1], "C": [3, 4]}, combination="sum") == {
        "A (sum of 2)": [0, 2],
        "C (sum of 2)": [3, 4],
        "sum of 5": [0, 1, 2, 3, 4],
    }
    assert ensembles_of({"A": [0, 1]}, combination="mean") == {"A (mean of 2)": [0, 1]}
    assert ensembles_of({"A": [0]}, combination="sum") == {}
    assert ensembles_of({"A": [0], "B": [1]}, combination="sum") == {"sum of 2": [0, 1]}


def hypothesis(num_matched):
    counts = BracketCounts(num_matched, 9, 9, num_trees=1)
    return Hypothesis(CandidateTree("", 0.0, ""), 1, torch.zeros(1), counts, counts)


def nll(chosen):
    """Lowest at the place of the chosen hypothesis."""
    return [torch.arange(5).sub(chosen).abs().double()]


def test_each_way_to_choose_takes_its_own_scores():
    sentence = Sentence("a", [hypothesis(number) for number in range(5)], num_candidates=5)
    scores = ModelScores(alone=[nll(1), nll(2), nll(3)], together=[nll(4), nll(1)])
    systems = score_systems([sentence], scores, groups={"A": [0, 2], "B": [1]}, ensembles=["both", "all"])
    matched = {name: [run.counts.matched for run in runs] for name, runs in systems.items()}
    assert matched == {"parser": [0], "A": [1, 3], "B": [2], "both": [4], "all": [1], "oracle": [4]}
