"""Models in ARPA files: written by hand, written and read again, and read over other words."""

import gzip
import math

import pytest
import torch
from builders import make_dictionary
from small_texts_of_ngrams import random_lines, stream_of

from fairseq_plugins.ngrams import arpa
from fairseq_plugins.ngrams import model as model_module
from fairseq_plugins.ngrams.kneser_ney import estimate_model
from fairseq_plugins.ngrams.model import NGramModel

BY_HAND = """\
Made by hand.

\\data\\
ngram 1=6
ngram 2=4
ngram 3=2

\\1-grams:
-1.5\t<unk>
-99\t<s>\t-0.5
-0.8\t</s>
-0.7\tw0\t-0.25
-0.9\tw1\t0.125
-1.1\tother\t-0.3

\\2-grams:
-0.4\tw0 w1\t-0.2
-0.3\t<s> w0\t-0.35
-0.6\tw1 </s>
-0.2\tother w0\t-0.6

\\3-grams:
-0.05\t<s> w0 w1
-0.15\tw0 w1 </s>

\\end\\
"""


@pytest.fixture
def read(tmp_path):
    """``read(text, dictionary)``: a model from the text of a file."""

    def read(text, dictionary, name="model.arpa"):
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return NGramModel.read_arpa(path, dictionary)

    return read


@pytest.fixture
def dictionary():
    """With the words w0, w1, w2."""
    return make_dictionary(7)


@pytest.mark.parametrize("newline, separator", [("\n", " "), ("\r\n", "\t")])
def test_a_file_made_by_hand(newline, separator, read):
    model = read(BY_HAND.replace("\t", separator).replace("\n", newline), make_dictionary(6))
    assert model.order == 3 and [model.num_ngrams(k) for k in (1, 2, 3)] == [5, 3, 2]
    lines = [["w0", "w1"], ["w1", "w0"], [], ["w0", "w0", "w1", "w1"], ["<unk>", "w0"]]
    expected = [-0.3, -0.05, -0.15]
    expected += [-0.5 - 0.9, 0.125 - 0.7, -0.25 - 0.8]
    expected += [-0.5 - 0.8]
    # "<s> w0" is there, "<s> w0 w0" and "w0 w0" are not, so "w0 w0 w1" has no weight; "w0 w1 w1" has two
    expected += [-0.3, -0.35 - 0.25 - 0.7, -0.4, -0.2 + 0.125 - 0.9, -0.6]
    expected += [-0.5 - 1.5, -0.7, -0.25 - 0.8]
    log_probs = model.log_probs(stream_of(lines, make_dictionary(6)))
    assert (log_probs / math.log(10)).tolist() == pytest.approx(expected, abs=1e-12)


def test_words_that_the_file_lacks_share_the_unknown_word(read, dictionary):
    dictionary.add_symbol("padding", n=0)  # as fairseq fills its dictionaries up
    model = read(BY_HAND, dictionary)
    log_probs = model.log_probs(stream_of([["w2"], ["<unk>"], ["w0", "w2", "w0"], ["padding"]], dictionary))
    expected = [-0.5 - 1.5, -0.8, -0.5 - 1.5, -0.8, -0.3, -0.35 - 0.25 - 1.5, -0.7, -0.25 - 0.8, -math.inf, -0.8]
    shared = [math.log(2) if place in (0, 2, 5) else 0 for place in range(len(expected))]
    expected = [value * math.log(10) - share for value, share in zip(expected, shared)]
    assert log_probs.tolist() == pytest.approx(expected, abs=1e-12)


def test_without_an_unknown_word_what_the_file_lacks_has_no_probability(read, dictionary):
    model = read(BY_HAND.replace("-1.5\t<unk>\n", "").replace("1=6", "1=5"), dictionary)
    log_probs = model.log_probs(stream_of([["w2", "<unk>", "w0"]], dictionary))
    assert log_probs.isinf().tolist() == [True, True, False, False]


def test_a_context_that_is_left_without_ngrams_keeps_its_weight(read, dictionary):
    text = BY_HAND.replace("w0 w1 </s>", "w0 w1 other").replace("<s> w0 w1", "other w0 other")
    model = read(text, dictionary)
    assert model.num_ngrams(3) == 0
    log_probs = model.log_probs(stream_of([["w0", "w1"]], dictionary)) / math.log(10)
    assert log_probs.tolist() == pytest.approx([-0.3, -0.35 - 0.4, -0.2 - 0.6])


def test_start_and_padding_are_never_predicted(read, dictionary):
    model = read(BY_HAND.replace("-99\t<s>", "0\t<s>").replace("other", "<pad>"), dictionary)
    log_probs = model.log_probs(stream_of([["w0", "<s>", "w0", "<pad>", "w0"]], dictionary))
    assert log_probs.isinf().tolist() == [False, True, False, True, False, False]


LINES, LARGE_DICTIONARY = random_lines(num_words=24), make_dictionary(30)


def estimated(order):
    """A model of some size, and its text."""
    stream = stream_of(LINES, LARGE_DICTIONARY)
    return estimate_model(stream, LARGE_DICTIONARY, order=order).model, stream


@pytest.mark.parametrize("name, order", [("model.arpa", 4), ("model.arpa.gz", 1), ("model.arpa.gz", 4)])
def test_what_is_written_is_read_again_and_does_not_depend_on_name_and_time(name, order, tmp_path, monkeypatch):
    monkeypatch.setattr(model_module, "PLACES_AT_ONCE", 50)  # several pieces an order
    monkeypatch.setattr(arpa, "LINES_AT_ONCE", 30)
    model, _ = estimated(order)
    paths = tmp_path / name, tmp_path / f"other.{name}"
    for path, seconds in zip(paths, (1e9, 2e9)):
        monkeypatch.setattr("time.time", lambda now=seconds: now)
        model.write_arpa(path)
    again = NGramModel.read_arpa(paths[0], LARGE_DICTIONARY)
    stream = stream_of(random_lines(num_words=26, seed=5) + LINES, LARGE_DICTIONARY)
    torch.testing.assert_close(again.log_probs(stream), model.log_probs(stream), rtol=1e-7, atol=0)
    written, other = (path.read_bytes() for path in paths)
    assert (gzip.decompress(written) if name.endswith("gz") else written).startswith(b"\\data\\\nngram 1=29\n")
    assert written == other and {*tmp_path.iterdir()} == {*paths}


def test_words_without_probability_are_written_too(read, dictionary, tmp_path):
    text = BY_HAND.replace("-0.7\tw0", "-99\tw0").replace("other", "<pad>")
    model = read(text, dictionary)
    model.write_arpa(tmp_path / "again.arpa")
    again = NGramModel.read_arpa(tmp_path / "again.arpa", dictionary)
    stream = stream_of([["w0", "w1", "w0"], ["w2", "<unk>", "w0"], ["<pad>", "w0", "w1"]], dictionary)
    assert model.log_probs(stream).isinf().any()
    torch.testing.assert_close(again.log_probs(stream), model.log_probs(stream), rtol=1e-7, atol=0)
    assert [again.num_ngrams(k) for k in (1, 2, 3)] == [6, 4, 2]


def test_a_byte_order_mark_is_no_part_of_the_text(read, dictionary):
    at_once = BY_HAND.removeprefix("Made by hand.\n\n")
    for text in (at_once, gzip.compress(("\ufeff" + at_once).encode()), "\ufeff" + at_once):
        assert read(text, dictionary).order == 3
    assert read(BY_HAND, dictionary).log_probs(torch.zeros(0, dtype=torch.int64)).shape == (0,)


def test_the_order_of_lines_in_a_file_means_nothing(tmp_path, read):
    model, stream = estimated(order=3)
    model.write_arpa(tmp_path / "model.arpa")
    sizes, *orders, end = (tmp_path / "model.arpa").read_text().split("\n\n")
    split = [order.split("\n") for order in orders]
    turned = ["\n".join([title, *rows[::-1]]) for title, *rows in split]
    again = read("\n\n".join([sizes, *turned, end]), LARGE_DICTIONARY)
    torch.testing.assert_close(again.log_probs(stream), model.log_probs(stream), rtol=1e-7, atol=0)


@pytest.mark.parametrize("places_at_once", [1, 7])
def test_pieces_know_what_stands_before_them(places_at_once, monkeypatch):
    model, stream = estimated(order=5)
    whole = model.log_probs(stream)
    monkeypatch.setattr(model_module, "PLACES_AT_ONCE", places_at_once)
    assert torch.equal(model.log_probs(stream), whole)


def changed(old, new):
    assert old in BY_HAND
    return BY_HAND.replace(old, new, 1)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", r"is no ARPA file: it has no line \\data\\"),
        (b"mmap lm http://kheafield.com/code format version 5\n\0", r"give the \.arpa file, not a binary made of it"),
        (changed("ngram 1=6\nngram 2=4\nngram 3=2\n", ""), r"line 5: damaged: expected ngram 1="),
        (changed("ngram 2", "ngram 4"), r"line 5: damaged: expected the size of order 2"),
        (changed("2-grams", "3-grams"), r"line 16: damaged: expected \\2-grams:"),
        (changed("-0.9\tw1", "-0.9x\tw1"), "line 13: damaged: expected a logarithm of at most 0, 1 words, and a"),
        (changed("-0.9\tw1", "0.9\tw1"), r"line 13: damaged"),
        (changed("-0.9\tw1", "nan\tw1"), r"line 13: damaged"),
        (changed("\t0.125", "\tinf"), r"line 13: damaged"),
        (changed("w1\t0.125", "w1\t0.125\t1"), r"line 13: damaged"),
        (changed("-0.6\tw1 </s>", "-0.6\t</s>"), r"line 19: damaged: expected a logarithm of at most 0, 2 words"),
        (changed("-0.6\tw1 </s>", "-0.6\tw1 w0 </s>"), r"line 19: damaged"),
        (changed("1=6", "1=7"), r"line 15: damaged: expected a logarithm of at most 0, 1 words"),
        (changed("1=6", "1=5"), r"line 14: damaged: expected \\2-grams:"),
        (BY_HAND[: BY_HAND.index("-0.15")], r"line 23: damaged: expected more 3-grams"),
        (changed("\\end\\", ""), r"line 26: damaged: expected \\end\\"),
        (changed("<s> w0 w1", "w1 w0 w1"), "is damaged: 3-gram 'w1 w0 w1': its words or its context are not among the"),
        (changed("w1 </s>", "w2 </s>"), "is damaged: 2-gram 'w2 </s>': its words or its context are not among"),
        (changed("w1 </s>", "w1 w2"), "is damaged: 2-gram 'w1 w2': its words or its context are not among"),
        (changed("<s> w0\t", "w0 w1\t"), "is damaged: 2-gram 'w0 w1': it stands twice"),
        (changed("\tw1\t", "\tw0\t"), "is damaged: 1-gram 'w0': it stands twice"),
        ("\\data\\\nngram 1=2\n\n\\1-grams:\n-1\tw1\n-1\tw0\n\n\\end\\\n", "lacks </s>: give a model of lines"),
        ("\\data\\\nngram 1=2\n\n\\1-grams:\n-1\t</s>\n-1\ta\n\n\\end\\\n", "has no word of dict.txt"),
        (gzip.compress(BY_HAND.encode())[:-30], "is truncated or damaged after line"),
        (b"\x1f\x8bno such thing", "is truncated or damaged after line"),
    ],
)
def test_a_damaged_file_is_refused_with_its_place(text, message, read, dictionary):
    with pytest.raises(ValueError, match=message) as raised:
        read(text, dictionary, name="a model")
    assert "a model" in str(raised.value) and "\n" not in str(raised.value)


def test_a_missing_file_or_a_folder_is_named(tmp_path, dictionary):
    with pytest.raises(ValueError, match="nothing.arpa does not exist: give an ARPA file; ngram train writes one"):
        NGramModel.read_arpa(tmp_path / "nothing.arpa", dictionary)
    with pytest.raises(ValueError, match="is a folder: give an ARPA file"):
        NGramModel.read_arpa(tmp_path, dictionary)


# probabilities that are none


@pytest.mark.parametrize(
    "line, changed, message",
    [
        ("-0.7\tw0\t-0.25", "-0.0\tw0\t-0.25", "of its single words sum to 1.3"),
        ("w1\t0.125", "w1\t0.6", "after 'w1' .* sum to 1.67.* weight of 0.6: normalise"),
        ("-0.7\tw0\t-0.25", "-0.7\tw0\t1e300", "after 'w0' .* sum to .* weight of 1e\\+300"),
        ("-0.3\t<s> w0\t-0.35", "-0.3\t<s> w0\t0.4", "after '<s> w0' .* sum to .* weight of 0.4"),
        ("-0.4\tw0 w1\t-0.2", "-0.4\tw0 w1\t3", "after 'w0 w1' .* weight of 3"),
        ("-0.05\t<s> w0 w1", "-0.05\t<s> w0 w1\n-0.05\t<s> w0 </s>", "after '<s> w0' .* sum to 1.8"),
    ],
)
def test_probabilities_that_sum_to_more_than_one_are_refused(line, changed, message, read):
    dictionary = make_dictionary(6)
    text = BY_HAND.replace(line, changed).replace("ngram 3=2", f"ngram 3={2 + changed.count(chr(10))}")
    assert line in BY_HAND
    read(BY_HAND, dictionary)
    with pytest.raises(ValueError, match=f"model.arpa is damaged: .*{message}") as refused:
        read(text, dictionary)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("order", [1, 2, 4])
def test_sums_of_an_estimated_model_are_one(order, tmp_path, monkeypatch):
    model, _ = estimated(order)
    model.write_arpa(tmp_path / "model.arpa")
    monkeypatch.setattr(model_module, "MAX_SUM", 1 + 1e-5)
    monkeypatch.setattr(model_module, "PLACES_AT_ONCE", 37)
    NGramModel.read_arpa(tmp_path / "model.arpa", LARGE_DICTIONARY)
    monkeypatch.setattr(model_module, "MAX_SUM", 1 - 1e-5)
    with pytest.raises(ValueError, match="sum to 1"):
        NGramModel.read_arpa(tmp_path / "model.arpa", LARGE_DICTIONARY)
