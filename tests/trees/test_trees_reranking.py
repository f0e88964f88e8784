"""Lists of candidates in both formats, gold trees, hypotheses, and the choice among them."""

import gzip
import math

import pytest
import torch
from builders import build_lm, dictionary_of, randomise

from fairseq_plugins.trees.reranking import (
    CandidateTree,
    GoldSentence,
    Hypothesis,
    ParseLists,
    Sentence,
    best_by_gold,
    best_by_models,
    best_by_parser,
    ensembles_of,
    read_gold_sentences,
    read_parse_lists,
    read_sentences,
    score_choices,
    score_hypotheses,
    score_systems,
)
from fairseq_plugins.trees.trees import BracketCounts, Linearisation, read_tree

PARSER = "2\twsj_1.0\n-3.5\n(S1 (A (NN a)))\n-4\n(S1 (B (NN a)))\n\n0\twsj_1.1\n\n1\twsj_1.2\n-inf\n(S1 (C (NN c)))\n\n"
TABLE = "1\t-7\t(S1 (B (NN b)))\n0\t-2\t(S1 (A (NN a)))\n1\t-3\t(S1 (C (NN b)))\n1\t-3\t(S1 (D (NN b)))\n"


def given(candidates):
    return [(candidate.score, candidate.bracketed) for candidate in candidates]


@pytest.mark.parametrize("name", ["lists.txt", "lists.txt.gz"])
def test_the_parsers_form(name, tmp_path):
    content = PARSER.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    lists = read_parse_lists(tmp_path / name)
    assert lists.order == "of sentences" and list(lists.candidates) == ["wsj_1.0", "wsj_1.1", "wsj_1.2"]
    assert given(lists.candidates["wsj_1.0"]) == [(-3.5, "(S1 (A (NN a)))"), (-4, "(S1 (B (NN a)))")]
    assert lists.candidates["wsj_1.1"] == [] and lists.candidates["wsj_1.2"][0].score == -math.inf
    assert lists.candidates["wsj_1.0"][1].location == f"{tmp_path / name}, line 5"


def test_the_form_of_a_table_is_sorted_and_may_be_in_any_order(tmp_path):
    (tmp_path / "lists").write_text(f"\n{TABLE}")
    lists = read_parse_lists(tmp_path / "lists")
    assert lists.order == "any"
    expected = [(-3, "(S1 (C (NN b)))"), (-3, "(S1 (D (NN b)))"), (-7, "(S1 (B (NN b)))")]
    assert given(lists.candidates["1"]) == expected and given(lists.candidates["0"]) == [(-2, "(S1 (A (NN a)))")]


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("\n0 ||| (A (B b)) ||| -1\n", r"line 2: '0 \|\|\| .*' has no tab: give COUNT<TAB>ID and "),
        ("x\ta\n-1\n(A (B b))\n", "line 1: 'x\ta' where COUNT<TAB>ID .*, or ID<TAB>SCORE<TAB>TREE for each candidate$"),
        ("2\ta\n-1\n(A (B b))\n-2\n", "ends within the list of a: 1 of 2 candidates are whole"),
        ("1\ta\n-1\n(A (B b))\n\n1\ta\n-1\n(A (B b))\n", "line 5: sentence a has a list already"),
        ("1\ta\n(A (B b))\n-1\n", r"line 2: '\(A \(B b\)\)' where the score of a candidate is expected"),
        ("1\ta\n-1\n(A (B b))\n-2\n(A (B b))\n", "line 4: '-2' where COUNT<TAB>ID of a list is expected"),
        ("0\t-1\t(A (B b))\n1\t(A (B b))\n", "line 2: 2 fields where ID<TAB>SCORE<TAB>TREE is expected"),
        ("0\tnan\t(A (B b))\n", "line 1: 'nan' where the score of a candidate is expected"),
    ],
)
def test_what_is_of_neither_form_is_refused_with_its_line(content, message, tmp_path):
    (tmp_path / "lists").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_parse_lists(tmp_path / "lists")


def test_files_that_cannot_be_read_are_refused(tmp_path):
    path = tmp_path / "lists.gz"
    path.write_bytes(gzip.compress(TABLE.encode() * 99)[:-20])
    with pytest.raises(ValueError, match=r"lists\.gz is truncated or damaged after line"):
        read_parse_lists(path)
    with pytest.raises(ValueError, match="none does not exist: give a file of a parser's candidates"):
        read_parse_lists(tmp_path / "none")
    with pytest.raises(ValueError, match="is a folder: give a file of gold trees"):
        read_gold_sentences(tmp_path)


def test_gold_trees_have_names_or_none_and_tabs_within_a_tree_are_blanks(tmp_path):
    path = tmp_path / "gold"
    path.write_text("(S1\t(A\t(NN a)))\n (S1 (B\t(NN b)))\n")
    found = [(one.name, str(one.tree)) for one in read_gold_sentences(path)]
    assert found == [(None, "(S1 (A (NN a)))"), (None, "(S1 (B (NN b)))")]
    path.write_text("x\t(S1 (A (NN a)))\ny\t(S1 (B (NN b)))\n")
    assert [one.name for one in read_gold_sentences(path)] == ["x", "y"]
    path.write_text("x\t-1\t(S1\t(A (NN a)))\n")
    (candidate,) = read_parse_lists(path).candidates["x"]
    assert str(read_tree(candidate.bracketed, name="a tree")) == "(S1 (A (NN a)))"


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "is empty: give a gold tree a line"),
        ("(A (B b))\n\n", "line 2 is blank: remove it"),
        ("(A (B b))\nx\t(A (B b))\n", "some lines are ID<TAB>TREE and others only a tree"),
        ("x\t(A (B b))\n\t(A (B b))\n", "line 2: the ID before the tab is empty: write ID<TAB>TREE"),
        ("x\t(A (B b))\nx\t(A (B b))\n", "sentence x stands there twice"),
    ],
)
def test_gold_trees_that_are_refused(content, message, tmp_path):
    (tmp_path / "gold").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_gold_sentences(tmp_path / "gold")


LINEARISATION = Linearisation(["dogs", "bark", "."])
SYMBOLS = "(S )S (NP )NP (VP )VP (X )X dogs bark . <cunk>".split()
GOLD = "(S1 (S (NP (NNS dogs)) (VP (VBP bark)) (. .)))"
FLAT = "(S1 (S (NNS dogs) (VBP bark) (. .)))"
TAGGED = "(S1 (S (NP (NN dogs)) (VP (NN bark)) (: .)))"
WRONG = "(S1 (X (NP (NNS dogs)) (X (VBP bark)) (. .)))"
SHORT = "(S1 (S (NP (NNS dogs)) (VP (VBP bark))))"


@pytest.fixture
def dictionary():
    return dictionary_of(SYMBOLS)


@pytest.fixture
def build_model(dictionary):
    """``build_model(seed)``: a language model of the dictionary in float64."""

    def build(seed):
        model = build_lm("lstm_lm_doc", len(dictionary), embed_dim=8, hidden_sizes="8 8 8", experts_per_layer="0 0 1 2")
        model.decoder.dictionary = dictionary
        return randomise(model, seed=seed).double().eval()

    return build


def lists(*candidates, order="of sentences"):
    """A list for each sentence, named by letters, of trees whose scores fall."""
    named = {
        "abcdef"[number]: [CandidateTree(text, -float(place), "somewhere") for place, text in enumerate(texts)]
        for number, texts in enumerate(candidates)
    }
    return ParseLists(named, order=order)


def gold(*trees, names=None):
    return [GoldSentence(read_tree(tree), name) for tree, name in zip(trees, names or [None] * len(trees))]


def read(nbest, sentences, dictionary, **options):
    return read_sentences(nbest, sentences, linearisation=LINEARISATION, dictionary=dictionary, **options)


def test_candidates_of_the_same_symbols_are_one_and_the_first_is_kept(dictionary):
    (sentence,) = read(lists([TAGGED, FLAT, GOLD, WRONG, FLAT]), gold(GOLD), dictionary)
    found = [(one.candidate.bracketed, one.rank) for one in sentence.hypotheses]
    assert found == [(TAGGED, 1), (FLAT, 2), (WRONG, 4)]
    assert (sentence.name, sentence.num_candidates) == ("a", 5)
    written = dictionary.string(sentence.hypotheses[0].symbols, include_eos=True)
    assert written == "(S (NP dogs )NP (VP bark )VP . )S </s>"
    assert [one.counts.matched for one in sentence.hypotheses] == [3, 1, 1]


def test_empty_trees_of_failed_parses_are_left_out(dictionary):
    (sentence,) = read(lists(["(S1)", "(())", "", "(S1 (S (NP) (VP (VBP bark))))", FLAT]), gold(GOLD), dictionary)
    assert [(one.candidate.bracketed, one.rank) for one in sentence.hypotheses] == [(FLAT, 5)]
    assert sentence.num_candidates == 5
    first, second = read(lists(["(S1)"], [FLAT]), gold(GOLD, GOLD), dictionary)
    assert first.hypotheses == [] and len(second.hypotheses) == 1


def test_the_oracle_takes_the_best_of_candidates_with_the_same_symbols(dictionary):
    tagged_as_word = GOLD.replace("(. .)", "(NN .)")  # which EVALB does not compare
    sentences = read(lists([tagged_as_word, GOLD, FLAT]), gold(GOLD), dictionary, punctuation_of="own")
    (same, _) = sentences[0].hypotheses
    assert same.counts is None and same.best_counts.f1 == 1
    assert score_choices(sentences, best_by_parser(sentences)).skipped == ["a"]
    oracle = score_choices(sentences, best_by_gold(sentences), counts_of=lambda one: one.best_counts)
    assert oracle.skipped == [] and oracle.counts.num_exact == 1
    turned = read(lists([GOLD, tagged_as_word]), gold(GOLD), dictionary, punctuation_of="own")
    assert turned[0].hypotheses[0].counts == turned[0].hypotheses[0].best_counts
    assert turned[0].hypotheses[0].counts.f1 == 1


def test_the_oracle_prefers_a_tree_without_a_match_to_one_that_cannot_be_compared(dictionary):
    other = "(S1 (X (NNS dogs) (X (VBP bark) (. .))))"
    sentences = read(lists([SHORT, other]), gold("(S1 (S (NNS dogs) (NP (VBP bark)) (. .)))"), dictionary)
    assert [one.best_counts and one.best_counts.f1 for one in sentences[0].hypotheses] == [None, 0]
    assert best_by_gold(sentences) == [1]


def test_symbols_that_the_vocabulary_lacks_are_the_unknown_word(dictionary):
    (sentence,) = read(lists(["(S1 (FRAG (NN running)))"]), gold("(S1 (NN running))"), dictionary)
    assert sentence.hypotheses[0].symbols.tolist() == [dictionary.unk()] * 3 + [dictionary.eos()]


def test_lists_are_paired_in_order_or_by_name(dictionary):
    in_order = lists([FLAT], [WRONG])
    assert [one.name for one in read(in_order, gold(GOLD, GOLD), dictionary)] == ["a", "b"]
    by_name = read(in_order, gold(GOLD, GOLD, GOLD, names=["b", "c", "a"]), dictionary)
    found = [(one.name, [each.candidate.bracketed for each in one.hypotheses]) for one in by_name]
    assert found == [("b", [WRONG]), ("c", []), ("a", [FLAT])]


def test_lists_in_any_order_are_paired_by_the_number_of_the_line(dictionary):
    table = ParseLists({"1": [CandidateTree(WRONG, 0, "")], "0": [CandidateTree(FLAT, 0, "")]}, order="any")
    found = read(table, gold(GOLD, GOLD, GOLD), dictionary)
    assert [len(one.hypotheses) for one in found] == [1, 1, 0]
    assert found[0].hypotheses[0].candidate.bracketed == FLAT
    with pytest.raises(ValueError, match="a list for sentence 1, which the gold trees do not have; .* from 0 to 0"):
        read(table, gold(GOLD), dictionary)


@pytest.mark.parametrize(
    "nbest, trees, names, message",
    [
        ([[FLAT]], 2, None, "1 lists for 2 gold trees"),
        ([[FLAT]], 1, ["x"], "a list for sentence a, which the gold trees do not have$"),
        ([[SHORT, SHORT], [], [SHORT]], 3, None, "no candidate has the words of its gold tree"),
        ([["(S1 (NN a)"]], 1, None, "^somewhere: the text ends within a tree"),
    ],
)
def test_lists_of_other_sentences_are_refused(nbest, trees, names, message, dictionary):
    with pytest.raises(ValueError, match=message):
        read(lists(*nbest), gold(*[GOLD] * trees, names=names), dictionary)


@torch.no_grad()
def token_log_probs(model, symbols):
    """Of each symbol, by a model that reads one tree and nothing before it."""
    symbols = symbols.long()
    inputs = torch.cat([torch.tensor([model.decoder.dictionary.eos()]), symbols[:-1]])
    return torch.log_softmax(model(inputs[None])[0][0], dim=-1).gather(-1, symbols[:, None])[:, 0]


@pytest.mark.parametrize("combination, max_tokens", [("sum", 1), ("mean", 4096)])
def test_scores_are_those_of_each_tree_alone(combination, max_tokens, dictionary, build_model):
    nbest = lists([FLAT, GOLD, WRONG], [], [WRONG, SHORT])
    sentences = read(nbest, gold(GOLD, GOLD, GOLD), dictionary)
    models = [build_model(1), build_model(2)]
    groups = {"A": models, "B": models[1:]}
    scores = score_hypotheses(groups, sentences, combination=combination, max_tokens=max_tokens)
    assert list(scores) == ["A", "B", f"A ({combination} of 2)", f"{combination} of 3"]
    for number, sentence in enumerate(sentences):
        alone = [[token_log_probs(model, one.symbols) for one in sentence.hypotheses] for model in models]
        for found, expected in zip(scores["A"], alone):
            assert found[number].tolist() == pytest.approx([-float(one.sum()) for one in expected], rel=1e-11)
        if combination == "sum":
            together = [-float(one.sum() + other.sum()) for one, other in zip(*alone)]
        else:
            together = [-float(((one.exp() + other.exp()) / 2).log().sum()) for one, other in zip(*alone)]
        assert scores[f"A ({combination} of 2)"][0][number].tolist() == pytest.approx(together, rel=1e-11)
        assert torch.equal(scores["B"][0][number], scores["A"][1][number])


def test_what_is_chosen(dictionary):
    nbest = lists([FLAT, WRONG, GOLD], [], [SHORT, FLAT], ["(S1 (S (NN dogs) (NN bark)))"])
    sentences = read(nbest, gold(GOLD, GOLD, GOLD, GOLD), dictionary)
    assert best_by_parser(sentences) == [0, None, 0, 0]
    assert best_by_gold(sentences) == [2, None, 1, 0]
    nll = [torch.tensor([2.0, 1.0, 1.0]), torch.zeros(0), torch.tensor([1.0, 3.0]), torch.tensor([1.0])]
    assert best_by_models(nll) == [1, None, 0, 0]
    parser, oracle = (score_choices(sentences, choose(sentences)) for choose in (best_by_parser, best_by_gold))
    assert parser.skipped == ["b", "c", "d"] and oracle.skipped == ["b", "d"]
    assert (parser.counts.matched, parser.counts.gold, parser.counts.test, parser.counts.num_trees) == (1, 3, 1, 1)
    assert (oracle.counts.matched, oracle.counts.gold, oracle.counts.test) == (3 + 1, 6, 3 + 1)
    assert (oracle.counts.num_exact, oracle.counts.num_trees) == (1, 2)
    assert [one.num_exact for one in oracle.of_sentences] == [1, 0, 0, 0]


def test_models_of_a_name_choose_together_and_all_do():
    found = ensembles_of({"A": [0, 2], "B": [1], "C": [3, 4]}, combination="sum")
    assert found == {"A (sum of 2)": [0, 2], "C (sum of 2)": [3, 4], "sum of 5": [0, 2, 1, 3, 4]}
    assert ensembles_of({"A": [0, 1]}, combination="mean") == {"A (mean of 2)": [0, 1]}


def test_each_way_to_choose_takes_its_own_scores():
    counts = [BracketCounts(num_matched, 4, 4, num_trees=1) for num_matched in range(5)]
    hypotheses = [Hypothesis(CandidateTree("", 0.0, ""), 1, torch.zeros(1), one, one) for one in counts]
    chosen = {"A": [1, 3], "B": [2]}
    nll = {name: [[torch.arange(5).sub(place).abs()] for place in places] for name, places in chosen.items()}
    systems = score_systems([Sentence("a", hypotheses, num_candidates=5)], nll)
    matched = {name: [run.counts.matched for run in runs] for name, runs in systems.items()}
    assert matched == {"parser": [0], **chosen, "oracle": [4]}
