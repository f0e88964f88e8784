"""Bracketed trees: reading, walking and writing."""

import sys

import pytest

from fairseq_plugins.trees.bracket_scores import GoldTree
from fairseq_plugins.trees.cleaning import clean_tree
from fairseq_plugins.trees.linearisation import Linearisation
from fairseq_plugins.trees.tree import Visit, leaves, read_tree, read_trees, walk

DOGS = "(S1 (S (NP (NNS dogs)) (VP (VBP bark)) (. .)))"


@pytest.mark.parametrize("text", [DOGS, "( (S (NP (NN x))))", "(NN x)", "(X (-LRB- -LRB-) (Y (: --)))"])
def test_what_is_read_is_written_again(text):
    assert str(read_tree(text)) == text
    assert str(read_tree(f"  {text.replace(' (', '(')}\t")) == text


def test_nodes_of_a_tree():
    tree = read_tree(DOGS)
    assert (tree.label, tree.word, len(tree.children)) == ("S1", None, 1)
    assert [(leaf.label, leaf.word) for leaf in leaves(tree)] == [("NNS", "dogs"), ("VBP", "bark"), (".", ".")]
    assert [(visit, node.label) for visit, node in walk(tree.children[0])] == [
        (Visit.OPEN, "S"),
        *[(Visit.OPEN, "NP"), (Visit.WORD, "NNS"), (Visit.CLOSE, "NP")],
        *[(Visit.OPEN, "VP"), (Visit.WORD, "VBP"), (Visit.CLOSE, "VP")],
        *[(Visit.WORD, "."), (Visit.CLOSE, "S")],
    ]


def test_trees_go_on_over_lines_and_several_may_stand_in_one():
    lines = ["", "( (S", "    (NP (NN a))", "(VP (VB b)) ))(X (NN c)) (Y", " (NN d))"]
    assert [str(tree) for tree in read_trees(lines, name="f")] == [
        "( (S (NP (NN a)) (VP (VB b))))",
        "(X (NN c))",
        "(Y (NN d))",
    ]


def test_a_tree_may_be_deeper_than_python_recurses():
    depth = 3 * sys.getrecursionlimit()
    text = "(S1 " + "(X (Y " * depth + "(NN x)" + "))" * depth + ")"
    tree = read_tree(text)
    assert str(tree) == str(clean_tree(tree)) == text and [leaf.word for leaf in leaves(tree)] == ["x"]
    assert Linearisation(["x"]).symbols(tree) == ["(X", "(Y"] * depth + ["x"] + [")Y", ")X"] * depth
    assert GoldTree(tree).score(tree).matched == 2 * depth


@pytest.mark.parametrize(
    "text, message",
    [
        ("(S (NN a)", r"the text ends within a tree, 1 '\)' are missing"),
        ("(S (NN a)))", r"'\)' without '\('"),
        ("dog", "'dog' outside of brackets"),
        ("(S ())", r"\(\) is empty"),
        ("(S (NN))", r"\(NN\) is empty"),
        ("(NN a b)", "'b' has no part of speech"),
        ("(S (NN a) b)", "'b' has no part of speech"),
        ("(S a (NN b))", r"'\(' after the word a"),
        ("(NN a) (NN b)", "2 trees where one is expected"),
        ("", "0 trees where one is expected"),
    ],
)
def test_what_is_no_tree_is_refused_with_its_place(text, message):
    with pytest.raises(ValueError, match=f"^some file.*{message}"):
        read_tree(text, name="some file")


def test_the_line_of_a_mistake_is_told():
    with pytest.raises(ValueError, match=r"^x\.mrg, line 3: '\)' without"):
        list(read_trees(["(S", "(NN a))", ")"], name="x.mrg"))
