"""Pictures of surprisal."""

import pytest

from fairseq_plugins.evaluation.text.raw_text import Blanks, SideText
from fairseq_plugins.evaluation.text.subwords import SubwordNMT
from fairseq_plugins.evaluation.text.text_scorer import ScoredLine
from fairseq_plugins.reports import pictures
from fairseq_plugins.reports.pictures import save_picture
from fairseq_plugins.reports.surprisal import MOST_WORDS, draw_surprisal, word_surprisals


def line_of(*tokens, unknown=()):
    log_probs = [-(0.5 + place) for place in range(len(tokens))]
    return ScoredLine(
        text=" ".join(tokens), tokens=list(tokens), log_probs=log_probs, unknown=[token in unknown for token in tokens]
    )


@pytest.fixture
def in_pieces(tmp_path):
    (tmp_path / "bpe.codes").write_text("#version: 0.2\nh a\n")
    return SideText(Blanks(), subwords=SubwordNMT(tmp_path / "bpe.codes"))


def test_the_pieces_of_a_word_are_summed(in_pieces):
    line = line_of("ha@@", "us", ".", "</s>", unknown=["us"])
    words = word_surprisals(line, in_pieces)
    assert [(word.word, word.unknown) for word in words] == [("haus", True), (".", False), ("</s>", False)]
    assert [word.bits for word in words] == pytest.approx([line.bits[0] + line.bits[1], *line.bits[2:]])


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
