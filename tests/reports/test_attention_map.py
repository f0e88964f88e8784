import torch

from fairseq_plugins.evaluation.translation.word_attention import WordAttention
from fairseq_plugins.reports.attention_map import draw_attention_map


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


def test_a_long_sentence_has_room_for_its_words():
    words = [f"Wort{number}" for number in range(60)]
    picture = draw_attention_map(WordAttention(torch.rand(60, 60), source=words, target=words))
    assert min(picture.get_size_inches()) >= 60 * 0.3


def test_the_first_hundred_words_of_a_longer_one_are_drawn():
    source, target = [f"Wort{number}" for number in range(400)], [f"word{number}" for number in range(130)]
    picture = draw_attention_map(WordAttention(torch.rand(130, 400), source=source, target=target))
    axes = picture.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == source[:100]
    assert [label.get_text() for label in axes.get_yticklabels()] == target[:100]
    assert axes.images[0].get_array().shape == (100, 100)
