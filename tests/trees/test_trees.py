"""Trees: reading, writing, cleaning, linearisation and bracket scores."""

import csv
import itertools
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from real_corpora import corpus_folder

from fairseq_plugins.trees.reranking import pair_lists, read_gold_sentences, read_parse_lists
from fairseq_plugins.trees.trees import (
    BracketCounts,
    GoldTree,
    Linearisation,
    NotComparable,
    clean_tree,
    count_words,
    frequent_words,
    leaves,
    plain_label,
    read_linearisation,
    read_tree,
    read_trees,
    total,
    unknown_class,
)

DOGS = "(S1 (S (NP (NNS dogs)) (VP (VBP bark)) (. .)))"


@pytest.mark.parametrize("text", [DOGS, "( (S (NP (NN x))))", "(X (-LRB- -LRB-) (Y (: --)))"])
def test_what_is_read_is_written_again(text):
    assert str(read_tree(text)) == text
    assert str(read_tree(f"  {text.replace(' (', '(')}\t")) == text


def test_trees_go_on_over_lines_and_several_may_stand_in_one():
    lines = ["", "( (S", "    (NP (NN a))", "(VP (VB b)) ))(X (NN c)) (Y", " (NN d))"]
    assert [str(tree) for tree in read_trees(lines, name="f")] == [
        "( (S (NP (NN a)) (VP (VB b))))",
        "(X (NN c))",
        "(Y (NN d))",
    ]
    with pytest.raises(ValueError, match=r"^x\.mrg, line 3: '\)' without"):
        list(read_trees(["(S", "(NN a))", ")"], name="x.mrg"))


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
        ("(S (NN a)", r"the text ends within a tree: 1 \) missing"),
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


def cleaned(text):
    return str(clean_tree(read_tree(text)))


def test_labels_lose_function_tags_and_indices():
    plain = {"NP-SBJ-1": "NP", "NP=2": "NP", "PP-LOC=3": "PP", "ADVP|PRT": "ADVP"}
    unchanged = ("NP", "-LRB-", "-NONE-", "PRP$", ",", "")
    for label, expected in [*plain.items(), *zip(unchanged, unchanged)]:
        assert plain_label(label) == expected


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
    assert clean_tree(read_tree("( (S (NP (-NONE- *)) (VP (-NONE- *?*))))")) is None  # traces alone


@pytest.mark.parametrize("top", ["", "S1", "TOP", "ROOT"])
def test_the_top_node_and_function_tags_are_left_out(top):
    linearisation = Linearisation(["dogs", "bark", "."])
    assert linearisation.symbols(read_tree(DOGS)) == "(S (NP dogs )NP (VP bark )VP . )S".split()  # as published
    tree = read_tree(f"({top} (S (NP-SBJ-1 (DT Dogs) (NN {top}S1)) (VP (VB bark))) (. .))")
    expected = "(S (NP dogs <cunk> )NP (VP bark )VP )S .".split()
    assert linearisation.symbols(tree) == expected
    assert linearisation.symbols(tree.children[0]) == expected[:-1]  # there may be none


def test_words_are_in_lower_case_if_that_form_is_kept():
    words = {"The": "the", "THE": "the", "the": "the", "U.S.": "u.s.", "Them": "<cunk>"}
    assert {word: Linearisation(["the", "u.s."]).word(word) for word in words} == words


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
def test_bracket_scores_trees_by_hand(gold, tree, expected):
    for punctuation_of in ("gold", "own"):
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
    nothing, without_brackets = total([]), BracketCounts(num_trees=1, num_exact=1)
    assert (nothing.recall, nothing.precision, nothing.f1, nothing.exact, nothing.num_trees) == (0, 0, 0, 0, 0)
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


def scored(gold_tree, candidates):
    """Counts of each candidate, None where the tree cannot be compared."""
    for candidate in candidates:
        try:
            yield gold_tree.score(read_tree(candidate.bracketed, name=candidate.location))
        except NotComparable:
            yield None


FIRSTS_OF_VALID = {"f1": 87.26, "precision": 86.81, "recall": 87.72, "exact": 27.4}


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(
    "punctuation_of, split, num_skipped, of_firsts, of_bests",
    [
        ("gold", "valid", 0, FIRSTS_OF_VALID, {"f1": 95.32, "exact": 64.9}),
        ("own", "test", 1, {"f1": 86.08}, {"f1": 94.93}),
    ],
)
def test_figures_of_the_sample(punctuation_of, split, num_skipped, of_firsts, of_bests):
    folder = corpus_folder("wsj-sample")
    gold = read_gold_sentences(folder / f"gold.{split}.trees")
    lists = pair_lists(read_parse_lists(folder / f"nbest.{split}.txt.gz"), gold)
    firsts, bests = [], []
    for sentence, candidates in zip(gold, lists.values(), strict=True):
        first, *others = scored(GoldTree(sentence.tree, punctuation_of=punctuation_of), candidates)
        if first is not None:  # else EVALB leaves the sentence out
            firsts.append(first)
            bests.append(max([first, *filter(None, others)], key=lambda counts: counts.f1))
    assert len(gold) - len(firsts) == num_skipped
    for counts, expected in ((total(firsts), of_firsts), (total(bests), of_bests)):
        for rate, percent in expected.items():
            assert round(100 * getattr(counts, rate), 1 if rate == "exact" else 2) == percent, rate
