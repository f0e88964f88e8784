"""Pictures of attention and surprisal."""

import pytest
import torch

from fairseq_plugins.evaluation.language_model import ScoredLine
from fairseq_plugins.evaluation.raw_text import Blanks, SideText, SubwordNMT
from fairseq_plugins.evaluation.translation import WordAttention
from fairseq_plugins.reports import pictures
from fairseq_plugins.reports.pictures import save_picture
from fairseq_plugins.reports.sentences import MOST_WORDS, draw_attention_map, draw_surprisal, word_surprisals


def test_words_stand_beside_their_weights():
    weights = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    attention = WordAttention(weights, source=["$x^$", "Tag", "</s>"], target=["Hello", "</s>"])
    picture = draw_attention_map(attention)
    picture.canvas.draw()  # words with dollars are no formulas
    axes = picture.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == attention.source
    assert [label.get_text() for label in axes.get_yticklabels()] == attention.target
    (image,) = axes.images
    assert torch.equal(torch.tensor(image.get_array().tolist()), weights)
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first word of the translation on top


def test_a_long_sentence_has_room_for_its_first_hundred_words():
    source, target = [f"Wort{number}" for number in range(300)], [f"word{number}" for number in range(60)]
    picture = draw_attention_map(WordAttention(torch.rand(60, 300), source=source, target=target))
    axes = picture.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == source[:100]
    assert [label.get_text() for label in axes.get_yticklabels()] == target
    assert axes.images[0].get_array().shape == (60, 100) and min(picture.get_size_inches()) >= 60 * 0.3


def line_of(*tokens, unknown=()):
    log_probs = [-(0.5 + place) for place in range(len(tokens))]
    are_unknown = [token in unknown for token in tokens]
    return ScoredLine(text=" ".join(tokens), tokens=list(tokens), log_probs=log_probs, unknown=are_unknown)


def test_the_pieces_of_a_word_are_summed(tmp_path):
    (tmp_path / "bpe.codes").write_text("#version: 0.2\nh a\n")
    in_pieces = SideText(Blanks(), subwords=SubwordNMT(tmp_path / "bpe.codes"))
    line = line_of("ha@@", "us", ".", "</s>", unknown=["us"])
    words, bits, unknown = zip(*word_surprisals(line, in_pieces))
    assert words == ("haus", ".", "</s>") and unknown == (True, False, False)
    assert bits == pytest.approx([line.bits[0] + line.bits[1], *line.bits[2:]])


def test_a_bar_for_each_word_and_another_colour_for_unknown_ones():
    picture = draw_surprisal(line_of("a", "$b$", "c\0", "</s>", unknown=["$b$"]), SideText(Blanks()))
    (axes,) = picture.axes
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([b for b in line_of(*"abcd").bits])
    assert len({bar.get_facecolor() for bar in axes.patches}) == 2
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", r"\$b\$", "c\ufffd", "</s>"]


def test_a_blank_line_and_a_very_long_one_can_be_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "DOTS_PER_INCH", 20)
    for tokens in (["</s>"], [*"ab" * 5000, "</s>"]):
        picture = draw_surprisal(line_of(*tokens), SideText(Blanks()))
        assert len(picture.axes[0].patches) == min(len(tokens), MOST_WORDS)
        save_picture(picture, tmp_path / "picture.png")
        assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
