"""Unknown words are replaced by the source words that they are aligned with."""

import pytest
import torch
from fairseq import utils
from fairseq.data import Dictionary

from fairseq_plugins.host.replace_unk import VALUE_WITHOUT_A_FILE, HardAlignment


@pytest.fixture
def dictionary():
    dictionary = Dictionary()
    for word in ("ein", "H@@", "und"):
        dictionary.add_symbol(word)
    return dictionary


def aligned(*pairs, num_source_words):
    return HardAlignment(pairs, num_source_words=num_source_words)


def replaced(dictionary, text, *, source, alignment, table=None, **options):
    tokens = dictionary.encode_line(text, add_if_not_exist=False)
    _, found, kept = utils.post_process_prediction(
        tokens, source, alignment, {} if table is None else table, dictionary, **options
    )
    assert kept is alignment
    return found


def test_unknown_words_are_copied_or_looked_up(dictionary):
    options = dict(source="a Dackel saw", alignment=aligned((0, 0), (2, 2), (1, 1), num_source_words=3))
    assert replaced(dictionary, "ein X ein", **options) == "ein Dackel ein"
    assert replaced(dictionary, "X X X", table={"saw": "sah"}, **options) == "a Dackel sah"


def test_subwords_are_joined_after_that(dictionary):
    options = dict(source="a dog Bello", alignment=aligned((0, 0), (1, 1), (2, 2), num_source_words=3))
    assert replaced(dictionary, "ein H@@ X", **options, remove_bpe="@@ ") == "ein HBello"


def test_the_source_has_the_subwords_that_the_model_read(dictionary):
    options = dict(alignment=aligned((1, 0), (2, 1), num_source_words=3))
    assert replaced(dictionary, "X ein", source="H@@ und saw", **options, remove_bpe="@@ ") == "und ein"
    with pytest.raises(ValueError, match="it read 3 and the source has 2, 'Hund saw'; leave out --bpe and --tokenizer"):
        replaced(dictionary, "X ein", source="Hund saw", **options)


def test_the_words_that_the_model_read_are_counted_without_padding_and_end():
    source, target, attention = torch.tensor([1, 1, 5, 6, 2]), torch.tensor([7, 2, 1]), torch.eye(3, 5).flip(1)
    found = utils.extract_hard_alignment(attention, source, target, 1, 2)
    assert found == utils.extract_hard_alignment.__wrapped__(attention, source, target, 1, 2)
    assert len(found) == 1 and found.num_source_words == 2


def test_a_model_without_attention_aligns_nothing():
    with pytest.raises(ValueError, match="--print-alignment needs a model with attention: leave it out"):
        utils.extract_hard_alignment(torch.empty(0), torch.tensor([5, 2]), torch.tensor([7, 2]), 1, 2)


def test_nothing_changes_without_the_flag(dictionary):
    tokens = dictionary.encode_line("ein H@@ und", add_if_not_exist=False)
    found = utils.post_process_prediction(tokens, "a b", [(0, 0)], None, dictionary, "@@ ")
    expected = utils.post_process_prediction.__wrapped__(tokens, "a b", [(0, 0)], None, dictionary, "@@ ")
    assert found[1:] == expected[1:] and found[1] == "ein Hund" and torch.equal(found[0], expected[0])


@pytest.mark.parametrize("alignment", [torch.empty(0), [["0.5", "0.5"]]], ids=["none", "soft"])
def test_what_is_missing_is_told(alignment, dictionary):
    with pytest.raises(ValueError, match="--replace-unk needs the words .* add --print-alignment hard"):
        replaced(dictionary, "ein X", source="a b", alignment=alignment)


def test_the_host_alone_cannot_replace(dictionary):
    tokens = dictionary.encode_line("ein X", add_if_not_exist=False)
    with pytest.raises(TypeError, match="list indices must be integers"):
        utils.post_process_prediction.__wrapped__(tokens, "a b", [(0, 0), (1, 1)], {}, dictionary)
    with pytest.raises(FileNotFoundError):
        utils.load_align_dict.__wrapped__(VALUE_WITHOUT_A_FILE)
    assert utils.load_align_dict(VALUE_WITHOUT_A_FILE) == {} and utils.load_align_dict(None) is None
