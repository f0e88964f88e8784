"""Trees of the treebank without traces and function tags."""

import pytest

from fairseq_plugins.trees.cleaning import clean_tree, plain_label
from fairseq_plugins.trees.tree import read_tree


def cleaned(text):
    return str(clean_tree(read_tree(text)))


@pytest.mark.parametrize(
    "label, plain",
    [
        ("NP", "NP"),
        ("NP-SBJ-1", "NP"),
        ("NP=2", "NP"),
        ("PP-LOC=3", "PP"),
        ("ADVP|PRT", "ADVP"),
        ("-LRB-", "-LRB-"),
        ("-NONE-", "-NONE-"),
        ("PRP$", "PRP$"),
        (",", ","),
        ("", ""),
    ],
)
def test_labels_lose_function_tags_and_indices(label, plain):
    assert plain_label(label) == plain


@pytest.mark.parametrize(
    "raw, expected",
    [
        ("( (S (NP-SBJ (NN a)) (VP (VB b))) )", "(S1 (S (NP (NN a)) (VP (VB b))))"),
        ("(S (NP (NN a)))", "(S1 (S (NP (NN a))))"),
        ("(TOP (S (NN a)) (. .))", "(S1 (S (NN a)) (. .))"),
        ("( (S (NP-1 (-NONE- *)) (VP (VB b) (NP (-NONE- *-1)))))", "(S1 (S (VP (VB b))))"),
        ("( (S (SBAR (-NONE- 0) (S (-NONE- *T*-1))) (NN a)))", "(S1 (S (NN a)))"),
        ("( (S (S-TPC (NP (NP (NN|JJ a))))))", "(S1 (S (NP (NN a))))"),
        ("( (NP (NP (NN a)) (-NONE- *)))", "(S1 (NP (NN a)))"),
        ("( (NN NN))", "(S1 (NN NN))"),
        ("( (NN (NN a)))", "(S1 (NN (NN a)))"),
        ("(NN a)", "(S1 (NN a))"),
        ("( (PRN (-LRB- -LRB-) (X (NN a)) (-RRB- -RRB-)))", "(S1 (PRN (-LRB- -LRB-) (X (NN a)) (-RRB- -RRB-)))"),
    ],
)
def test_trees_by_hand(raw, expected):
    assert cleaned(raw) == expected
    assert cleaned(expected) == expected


def test_nothing_is_left_of_traces_alone():
    assert clean_tree(read_tree("( (S (NP (-NONE- *)) (VP (-NONE- *?*))))")) is None
