"""The sample of the Wall Street Journal: bracket scores of a parser's lists as its README has them."""

import pytest
from corpora import corpus_folder

from fairseq_plugins.trees.bracket_scores import GoldTree, NotComparable, total
from fairseq_plugins.trees.gold_sentences import read_gold_sentences
from fairseq_plugins.trees.list_pairing import pair_lists
from fairseq_plugins.trees.parse_lists import read_parse_lists

COLUMNS = ("f1", "precision", "recall", "exact")
BY_GOLD = {  # the first candidates, then the best ones
    "valid": [(87.26, 86.81, 87.72, 27.4), (95.32, None, None, 64.9)],
    "test": [(86.10, 85.86, 86.35, 27.4), (94.94, None, None, 61.5)],
}
BY_EVALB = {
    "valid": [(87.26,), (95.32,)],
    "test": [(86.08,), (94.93,)],
}  # of the program, which skips a sentence of test


def scored(gold_tree, candidates):
    """Counts of each candidate, None where the tree cannot be compared."""
    for candidate in candidates:
        try:
            yield gold_tree.score(candidate.tree())
        except NotComparable:
            yield None


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("split", ["valid", "test"])
@pytest.mark.parametrize("punctuation_of, figures", [("gold", BY_GOLD), ("own", BY_EVALB)])
def test_figures_of_the_sample(punctuation_of, figures, split):
    folder = corpus_folder("wsj-sample")
    gold = read_gold_sentences(folder / f"gold.{split}.trees")
    lists = pair_lists(read_parse_lists(folder / f"nbest.{split}.txt.gz"), gold)
    firsts, bests = [], []
    for sentence, candidates in zip(gold, lists.values(), strict=True):
        first, *others = scored(GoldTree(sentence.tree, punctuation_of=punctuation_of), candidates)
        if first is not None:  # else EVALB leaves the sentence out
            firsts.append(first)
            bests.append(max([first, *filter(None, others)], key=lambda counts: counts.f1))
    assert len(gold) - len(firsts) == (1 if (punctuation_of, split) == ("own", "test") else 0)
    for counts, expected in zip((total(firsts), total(bests)), figures[split]):
        for column, value in zip(COLUMNS, expected):
            digits = 1 if column == "exact" else 2
            assert value is None or round(100 * getattr(counts, column), digits) == value, column
