import torch

from fairseq_plugins.evaluation.analyses.expert_use import WordExperts
from fairseq_plugins.reports.expert_map import draw_expert_map, expert_names


def test_experts_are_named_by_the_layer_they_read():
    assert expert_names([0, 2, 2, 3]) == ["embedding, 1", "layer 2, 1", "layer 2, 2", "layer 3, 1"]


def test_every_model_has_a_panel_of_experts_by_words():
    panels = []
    for name, layers, words in (("doc", [1, 2, 2], ["$a^$", "b"]), ("mos", [2, 2], ["a", "b", "</s>"])):
        weights = torch.rand(len(words), len(layers)).double()
        panels.append((name, WordExperts(words=words, weights=weights, layers=layers)))
    picture = draw_expert_map(panels)
    picture.canvas.draw()  # words with dollars are no formulas
    for axes, (name, experts) in zip(picture.axes, panels):
        assert axes.get_title(loc="left") == name
        assert [label.get_text() for label in axes.get_xticklabels()] == experts.words
        assert [label.get_text() for label in axes.get_yticklabels()] == expert_names(experts.layers)
        (image,) = axes.images
        assert torch.equal(torch.tensor(image.get_array().tolist()).double(), experts.weights.t())
    assert [len(axes.lines) for axes in picture.axes[:2]] == [1, 0]  # between layers
