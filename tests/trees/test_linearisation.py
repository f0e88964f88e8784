"""Trees as symbols: brackets, kept words and unknown classes, each by the published rules."""

import itertools
import re
from collections import Counter

import pytest

from fairseq_plugins.trees.linearisation import (
    Linearisation,
    count_words,
    frequent_words,
    read_linearisation,
    unknown_class,
)
from fairseq_plugins.trees.tree import read_tree


def test_the_published_example():
    tree = read_tree("(S1 (S (NP (NNS dogs)) (VP (VBP bark)) (. .)))")
    symbols = Linearisation(["dogs", "bark", "."]).symbols(tree)
    assert symbols == "(S (NP dogs )NP (VP bark )VP . )S".split()


@pytest.mark.parametrize("top", ["", "S1", "TOP", "ROOT"])
def test_the_top_node_and_function_tags_are_left_out(top):
    tree = read_tree(f"({top} (S (NP-SBJ-1 (DT The) (NN X)) (VP (VB go))) (. .))")
    expected = "(S (NP the <cunk> )NP (VP go )VP )S .".split()
    assert Linearisation(["the", "go", "."]).symbols(tree) == expected


def test_a_tree_without_a_top_node_keeps_all():
    assert Linearisation([]).symbols(read_tree("(S (NP (NN S1)))")) == ["(S", "(NP", "<cunk>", ")NP", ")S"]


def test_words_are_in_lower_case_if_that_form_is_kept():
    linearisation = Linearisation(["the", "u.s."])
    assert [linearisation.word(word) for word in ("The", "THE", "the", "U.S.", "Them")] == ["the"] * 3 + [
        "u.s.",
        "<cunk>",
    ]


@pytest.mark.parametrize(
    "word, expected",
    [
        *[("1990", "<unkn>"), ("7", "<unkn>"), ("1,000.5", "<unkn>"), ("3rd", "<unk>"), ("90-day", "<unk->")],
        *[("cat", "<unk>"), ("IBM", "<cunk>"), ("Ed", "<cunk>"), ("ing", "<unk>"), ("as", "<unk>"), ("-", "<unk>")],
        *[("running", "<unking>"), ("Running", "<cunking>"), ("RUNNING", "<cunk>"), ("walked", "<unked>")],
        *[("quickly", "<unkly>"), ("houses", "<unks>"), ("Jones", "<cunks>"), ("largest", "<unkest>")],
        *[("player", "<unkER>"), ("Miller", "<cunkER>"), ("nation", "<unkion>"), ("history", "<unkory>")],
        *[("unseen", "<ununk>"), ("unhappily", "<unkly>"), ("Unseen", "<cunk>"), ("tribal", "<unkal>")],
        *[("unnatural", "<ununk>"), ("National", "<cunkal>")],
        *[("well-known", "<unk->"), ("Coca-Cola", "<cunk->"), ("N.J", "<cunk>"), ("N.V.", "<cunk.>")],
        *[("a.b-c", "<unk.>"), ("a-b.c", "<unk->"), ("Inc.", "<cunk>"), ("abcd-", "<unk>"), ("zygote", "<unk>")],
        ("\\*\\*", "<unk>"),
    ],
)
def test_unknown_classes(word, expected):
    assert unknown_class(word) == expected


def test_there_are_26_classes():
    """As many as the published vocabulary has."""
    endings = ["", "ing", "ed", "ly", "s", "est", "er", "ion", "ory", "al", "-x", ".x", "4"]
    words = ["".join(parts) for parts in itertools.product(["unq", "Unq", "qqq", "Qqq", "7", "un", "Q"], endings)]
    classes = {unknown_class(word) for word in words}
    assert len(classes) == 26 and all(re.fullmatch("<(c?unk|ununk)[a-zER.-]*>", name) for name in classes)


def test_words_are_counted_in_lower_case():
    trees = map(read_tree, ["(S1 (X (DT The) (NN dog)))", "(S1 (X (DT the) (NN Cat) (NN the)))"])
    counts = count_words(trees)
    assert counts == Counter({"the": 3, "dog": 1, "cat": 1})
    assert frequent_words(counts, min_count=1) == ["the", "cat", "dog"]
    assert frequent_words(counts, min_count=3) == ["the"] and frequent_words(counts, min_count=4) == []


def test_the_kept_words_of_a_prepared_corpus(tmp_path):
    (tmp_path / "trees").mkdir()
    (tmp_path / "trees" / "kept_words.txt").write_text("the\nö\n", encoding="utf-8")
    linearisation = read_linearisation(tmp_path)
    assert [linearisation.word(word) for word in ("The", "Ö", "dog")] == ["the", "ö", "<unk>"]
    with pytest.raises(ValueError, match=r"none.trees.kept_words\.txt does not exist.*data-prep/wsj/prepare\.sh"):
        read_linearisation(tmp_path / "none")
