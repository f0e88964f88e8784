"""Hypotheses of sentences, and what language models choose among them, against one tree at a time."""

import pytest
import torch
from builders import build_lm, randomise
from fairseq.data import Dictionary

from fairseq_plugins.trees import hypothesis_scores
from fairseq_plugins.trees.choices import best_by_gold, best_by_models, best_by_parser, score_choices
from fairseq_plugins.trees.gold_sentences import GoldSentence
from fairseq_plugins.trees.hypothesis_scores import reranking_chunks, score_hypotheses
from fairseq_plugins.trees.linearisation import Linearisation
from fairseq_plugins.trees.parse_lists import CandidateTree, ParseLists
from fairseq_plugins.trees.sentences import read_sentences
from fairseq_plugins.trees.tree import read_tree

LINEARISATION = Linearisation(["dogs", "bark", "."])
SYMBOLS = "(S )S (NP )NP (VP )VP (X )X dogs bark . <cunk>".split()
GOLD = "(S1 (S (NP (NNS dogs)) (VP (VBP bark)) (. .)))"
FLAT = "(S1 (S (NNS dogs) (VBP bark) (. .)))"
TAGGED = "(S1 (S (NP (NN dogs)) (VP (NN bark)) (: .)))"
WRONG = "(S1 (X (NP (NNS dogs)) (X (VBP bark)) (. .)))"
SHORT = "(S1 (S (NP (NNS dogs)) (VP (VBP bark))))"


@pytest.fixture
def dictionary():
    dictionary = Dictionary()
    for symbol in SYMBOLS:
        dictionary.add_symbol(symbol)
    return dictionary


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
    assert [one.candidate.bracketed for one in sentence.hypotheses] == [TAGGED, FLAT, WRONG]
    assert [one.place for one in sentence.hypotheses] == [1, 2, 4]
    assert (sentence.name, sentence.num_candidates) == ("a", 5)
    written = dictionary.string(sentence.hypotheses[0].symbols, include_eos=True)
    assert written == "(S (NP dogs )NP (VP bark )VP . )S </s>"
    assert [one.counts.matched for one in sentence.hypotheses] == [3, 1, 1]


def test_empty_trees_of_failed_parses_are_left_out(dictionary):
    (sentence,) = read(lists(["(S1)", "(())", "", "(S1 (S (NP) (VP (VBP bark))))", FLAT]), gold(GOLD), dictionary)
    assert [(one.candidate.bracketed, one.place) for one in sentence.hypotheses] == [(FLAT, 5)]
    assert sentence.num_candidates == 5
    first, second = read(lists(["(S1)"], [FLAT]), gold(GOLD, GOLD), dictionary)
    assert first.hypotheses == [] and len(second.hypotheses) == 1


def test_the_oracle_takes_the_best_of_candidates_with_the_same_symbols(dictionary):
    tagged_as_word = GOLD.replace("(. .)", "(NN .)")  # which EVALB does not compare
    sentences = read(lists([tagged_as_word, GOLD, FLAT]), gold(GOLD), dictionary, punctuation_of="own")
    (same, _) = sentences[0].hypotheses
    assert same.counts is None and same.best_counts.f1 == 1
    assert score_choices(sentences, best_by_parser(sentences)).skipped == ["a"]
    oracle = score_choices(sentences, best_by_gold(sentences), counted="best")
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


def test_the_first_list_of_another_sentence_is_named(dictionary):
    foreign = {name: [CandidateTree(FLAT, 0, "")] for name in ["a", *map(str, range(20)), "b"]}
    with pytest.raises(ValueError, match="a list for sentence 0, which"):
        read(ParseLists(foreign, order="any"), gold(GOLD, GOLD, names=["a", "b"]), dictionary)


def test_lists_of_other_sentences_are_refused(dictionary):
    with pytest.raises(ValueError, match="1 lists for 2 gold trees"):
        read(lists([FLAT]), gold(GOLD, GOLD), dictionary)
    with pytest.raises(ValueError, match="a list for sentence a, which the gold trees do not have$"):
        read(lists([FLAT]), gold(GOLD, names=["x"]), dictionary)
    with pytest.raises(ValueError, match="no candidate has the words of its gold tree"):
        read(lists([SHORT, SHORT], [], [SHORT]), gold(GOLD, GOLD, GOLD), dictionary)
    with pytest.raises(ValueError, match="^somewhere: the text ends within a tree"):
        read(lists(["(S1 (NN a)"]), gold(GOLD), dictionary)


@torch.no_grad()
def token_log_probs(model, symbols):
    """Of each symbol, by a model that reads one tree and nothing before it."""
    symbols = symbols.long()
    inputs = torch.cat([torch.tensor([model.decoder.dictionary.eos()]), symbols[:-1]])
    return torch.log_softmax(model(inputs[None])[0][0], dim=-1).gather(-1, symbols[:, None])[:, 0]


@pytest.mark.parametrize("max_tokens", [1, 4096])
@pytest.mark.parametrize("combination", ["sum", "mean"])
def test_scores_are_those_of_each_tree_alone(combination, max_tokens, dictionary, build_model):
    nbest = lists([FLAT, GOLD, WRONG], [], [WRONG, SHORT])
    sentences = read(nbest, gold(GOLD, GOLD, GOLD), dictionary)
    models = [build_model(1), build_model(2)]
    ensembles = [[0, 1], [1]]
    scores = score_hypotheses(models, sentences, ensembles=ensembles, combination=combination, max_tokens=max_tokens)
    for number, sentence in enumerate(sentences):
        alone = [[token_log_probs(model, one.symbols) for one in sentence.hypotheses] for model in models]
        for found, expected in zip(scores.alone, alone):
            assert found[number].tolist() == pytest.approx([-float(one.sum()) for one in expected], rel=1e-11)
        if combination == "sum":
            together = [-float(one.sum() + other.sum()) for one, other in zip(*alone)]
        else:
            together = [-float(((one.exp() + other.exp()) / 2).log().sum()) for one, other in zip(*alone)]
        assert scores.together[0][number].tolist() == pytest.approx(together, rel=1e-11)
        assert scores.together[1][number].tolist() == pytest.approx(scores.alone[1][number].tolist(), rel=1e-11)


def test_scores_do_not_depend_on_how_many_are_in_memory(dictionary, build_model, monkeypatch):
    sentences = read(lists([FLAT, GOLD], [WRONG], [], [SHORT, FLAT]), gold(GOLD, GOLD, GOLD, GOLD), dictionary)
    model = build_model(1)
    expected = score_hypotheses([model], sentences)
    monkeypatch.setattr("fairseq_plugins.trees.hypothesis_scores.SYMBOLS_AT_A_TIME", 5)
    assert [len(chunk) for chunk in reranking_chunks(sentences)] == [1, 1, 2]
    torch.testing.assert_close(score_hypotheses([model], sentences).alone, expected.alone, rtol=1e-12, atol=0)


def test_the_bar_counts_the_symbols_of_each_model(dictionary, build_model, monkeypatch):
    bars = []

    class Bar:
        def __init__(self, **options):
            self.total, self.seen = options["total"], []
            bars.append(self)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def update(self, number):
            self.seen.append(number)

    monkeypatch.setattr(hypothesis_scores, "tqdm", Bar)
    sentences = read(lists([FLAT, GOLD], [WRONG]), gold(GOLD, GOLD), dictionary)
    score_hypotheses([build_model(1), build_model(2)], sentences)
    (bar,) = bars
    num_symbols = sum(len(one.symbols) for sentence in sentences for one in sentence.hypotheses)
    assert bar.total == 2 * num_symbols and bar.seen == [num_symbols, num_symbols]


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
