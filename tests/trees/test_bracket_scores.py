"""Bracket scores of trees that were worked by hand, and of random ones that the program EVALB has scored."""

import csv
from pathlib import Path

import pytest

from fairseq_plugins.trees.bracket_scores import BracketCounts, GoldTree, NotComparable, total
from fairseq_plugins.trees.tree import read_tree

EVALB = Path(__file__).parents[1] / "fixtures" / "evalb.tsv"
GOLD = "(S1 (S (NP (DT the) (NN dog)) (VP (VBD saw) (NP (NP (DT a) (NN man)) (PP (IN in) (NP (NN x))))) (. .)))"


def score(gold, tree, **options):
    return GoldTree(read_tree(gold), **options).score(read_tree(tree))


def figures(counts):
    return counts.matched, counts.gold, counts.test, counts.num_exact


@pytest.mark.parametrize(
    "gold, tree, expected",
    [
        (GOLD, GOLD, (7, 7, 7, 1)),
        # the prepositional phrase under the verb: the larger noun phrase is lost
        (
            GOLD,
            "(S1 (S (NP (DT the) (NN dog)) (VP (VBD saw) (NP (DT a) (NN man)) (PP (IN in) (NP (NN x)))) (. .)))",
            (6, 7, 6, 0),
        ),
        # one label and the parts of speech are wrong, which are not counted
        ("(S1 (S (NP (NN a)) (VP (VB b))))", "(S1 (FRAG (NP (JJ a)) (VP (NN b))))", (2, 3, 3, 0)),
        # function tags of either are not compared
        ("(TOP (S (NP-SBJ (NN a)) (VP (VB b))))", "( (S-1 (NP=2 (NN a)) (VP (VB b))))", (3, 3, 3, 1)),
        # PRT counts as ADVP
        ("(S1 (S (VB b) (PRT (RP up))))", "(S1 (S (VB b) (ADVP (RB up))))", (2, 2, 2, 1)),
        # a comma may hang anywhere, and a phrase of punctuation alone is no bracket
        ("(S1 (S (NP (NN a) (, ,)) (VP (VB b))))", "(S1 (S (NP (NN a)) (PRN (, ,)) (VP (VB b))))", (3, 3, 3, 1)),
        # a repeated bracket is matched as often as gold has it
        ("(S1 (S (NP (NP (NN a))) (VP (VB b))))", "(S1 (S (NP (NN a)) (VP (VB b))))", (3, 4, 3, 0)),
        ("(S1 (S (NP (NN a)) (VP (VB b))))", "(S1 (S (NP (NP (NP (NN a)))) (VP (VB b))))", (3, 3, 5, 0)),
        # -LRB- and $ are words; traces are not
        ("(S1 (X (-LRB- -LRB-) (Y ($ $) (-NONE- *))))", "(S1 (X (-LRB- -LRB-) (Y ($ $))))", (2, 2, 2, 1)),
        # a sentence of a word has no bracket and is right
        ("(S1 (NN a))", "(S1 (NN a))", (0, 0, 0, 1)),
    ],
)
@pytest.mark.parametrize("punctuation_of", ["gold", "own"])
def test_trees_by_hand(gold, tree, expected, punctuation_of):
    assert figures(score(gold, tree, punctuation_of=punctuation_of)) == expected


def test_punctuation_by_the_gold_tree_or_by_each_tree():
    gold, tree = "(S1 (S (NP (NN a)) (: --) (VP (VB b))))", "(S1 (S (NP (NN a)) (NP (NN --)) (VP (VB b))))"
    assert figures(score(gold, tree)) == (3, 3, 3, 1)
    with pytest.raises(NotComparable, match="3 words where the gold tree has 2"):
        score(gold, tree, punctuation_of="own")


@pytest.mark.parametrize("punctuation_of", ["gold", "own"])
def test_trees_of_other_words_are_not_compared(punctuation_of):
    for words, message in (
        ("(NN a)", "1 words where .* 2"),
        ("(NN a) (NN c)", "word 2 is c where the gold tree has b"),
    ):
        with pytest.raises(NotComparable, match=message):
            score("(S1 (S (NN a) (NN b)))", f"(S1 (S {words}))", punctuation_of=punctuation_of)
    with pytest.raises(NotComparable, match="no word but punctuation"):
        score("(S1 (S (. .)))", "(S1 (S (. .)))", punctuation_of=punctuation_of)


def test_rates_are_of_brackets_of_the_corpus():
    counts = total([BracketCounts(3, 4, 6, 1, 0), BracketCounts(2, 2, 2, 1, 1), BracketCounts(0, 2, 1, 1, 0)])
    assert figures(counts) == (5, 8, 9, 1) and counts.num_trees == 3
    assert (counts.recall, counts.precision, counts.f1, counts.exact) == (5 / 8, 5 / 9, 10 / 17, 1 / 3)
    assert counts.f1 == pytest.approx(2 / (1 / counts.recall + 1 / counts.precision))


def test_rates_of_nothing():
    empty = total([])
    assert (empty.recall, empty.precision, empty.f1, empty.exact, empty.num_trees) == (0, 0, 0, 0, 0)
    without_brackets = BracketCounts(num_trees=1, num_exact=1)
    assert (without_brackets.f1, without_brackets.exact) == (1, 1)


def test_counts_are_those_of_evalb():
    """Random trees with punctuation, function tags and other words, by EVALB with COLLINS.prm and S1 deleted."""
    with EVALB.open(encoding="utf-8", newline="") as file:
        cases = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert len(cases) == 60 and {case["status"] for case in cases} == {"0", "1", "2"}
    for case in cases:
        try:
            counts = score(case["gold"], case["tree"], punctuation_of="own")
        except NotComparable:
            assert case["status"] != "0", case
            continue
        expected = [int(case[name]) for name in ("matched", "gold brackets", "tree brackets")]
        assert (case["status"], [counts.matched, counts.gold, counts.test]) == ("0", expected), case
