"""Ways to choose the tree of a sentence: the parser's, a language model's, several models' together, the oracle's."""

from typing import Collection, Dict, List, Mapping, Sequence

from fairseq_plugins.trees.choices import SystemScore, best_by_gold, best_by_models, best_by_parser, score_choices
from fairseq_plugins.trees.hypothesis_scores import Combination, ModelScores
from fairseq_plugins.trees.sentences import Sentence

PARSER, ORACLE = "parser", "oracle"
"""Names of what chooses without a model."""

Systems = Mapping[str, Sequence[SystemScore]]
"""Scores of the runs of each system, by its name; all but groups of models have one run."""


def ensembles_of(groups: Mapping[str, Sequence[int]], *, combination: Combination) -> Dict[str, List[int]]:
    """Indices of the models that choose together, by the ensemble's name: those of each group, and all.

    Args:
        groups: indices of models that differ in their seed, by name.
        combination: see :func:`~fairseq_plugins.trees.hypothesis_scores.score_hypotheses`.
    """
    ensembles = {
        f"{name} ({combination} of {len(members)})": list(members)
        for name, members in groups.items()
        if len(members) > 1
    }
    if len(groups) > 1:
        every = sorted(index for members in groups.values() for index in members)
        ensembles[f"{combination} of {len(every)}"] = every
    return ensembles


def score_systems(
    sentences: Sequence[Sentence],
    scores: ModelScores,
    *,
    groups: Mapping[str, Sequence[int]],
    ensembles: Collection[str],
) -> Systems:
    """What each way to choose is worth.

    Args:
        sentences: of a split.
        scores: of their hypotheses.
        groups: indices of models that differ in their seed, by name.
        ensembles: names of those in the scores.
    """
    chosen = {
        PARSER: [best_by_parser(sentences)],
        **{name: [best_by_models(scores.alone[index]) for index in members] for name, members in groups.items()},
        **{name: [best_by_models(nll)] for name, nll in zip(ensembles, scores.together)},
    }
    systems = {name: [score_choices(sentences, run) for run in runs] for name, runs in chosen.items()}
    return {**systems, ORACLE: [score_choices(sentences, best_by_gold(sentences), counted="best")]}
