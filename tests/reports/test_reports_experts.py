"""Maps of experts, and their history."""

import torch
from printed_tables import rows_of

from fairseq_plugins.evaluation.analyses.experts import WordExperts
from fairseq_plugins.evaluation.analyses.layers import LayerLearning
from fairseq_plugins.reports.experts import draw_expert_map, expert_names, history_report
from fairseq_plugins.reports.sentences import MOST_WORDS


def test_every_model_has_a_panel_of_experts_by_words():
    panels = []
    for name, layers, words in (("doc", [1, 2, 2], ["$a^$", "b"]), ("mos", [2, 2], ["a"] * MOST_WORDS + ["</s>"])):
        weights = torch.rand(len(words), len(layers)).double()
        panels.append((name, WordExperts(words=words, weights=weights, layers=layers)))
    assert expert_names([0, 2, 2, 3]) == ["embedding, 1", "layer 2, 1", "layer 2, 2", "layer 3, 1"]
    picture = draw_expert_map(panels)
    picture.canvas.draw()  # words with dollars are no formulas
    for axes, (name, experts) in zip(picture.axes, panels):
        assert axes.get_title(loc="left") == name
        assert [label.get_text() for label in axes.get_xticklabels()] == experts.words[:MOST_WORDS]
        assert [label.get_text() for label in axes.get_yticklabels()] == expert_names(experts.layers)
        (image,) = axes.images
        assert torch.equal(torch.tensor(image.get_array().tolist()).double(), experts.weights[:MOST_WORDS].t())
    assert [len(axes.lines) for axes in picture.axes[:2]] == [1, 0]  # between layers


RUNS = {
    "plain": {
        50: LayerLearning(shares=[0, 0.25, 0.75], gradients=[0, 0.5, 0.125], num_words=9),
        1000: LayerLearning(shares=[0, 0.5, 0.5], gradients=[0, 0.25, 0.25], num_words=9),
    },
    "deeper": {50: LayerLearning(shares=[0, 0, 0, 1], gradients=[0, 0, 0, 2], num_words=9)},
}


def test_every_checkpoint_is_a_line():
    title, _, *cells = rows_of(history_report(RUNS, split="valid").text)
    assert title == [
        *("model", "updates", "share, layer 1", "share, layer 2", "share, layer 3"),
        *("gradient, layer 1", "gradient, layer 2", "gradient, layer 3"),
    ]
    assert cells[1] == ["plain", "1,000", "50.0%", "50.0%", "", "0.2500", "0.2500", ""]
    assert cells[2] == ["deeper", "50", "0.0%", "0.0%", "100.0%", "0.0000", "0.0000", "2.0000"]


def test_a_layer_has_its_colour_in_every_panel():
    picture = history_report(RUNS, split="valid").draw()
    picture.canvas.draw()
    shares, deeper_shares, gradients, _ = picture.axes
    assert shares.get_ylabel() == "share of the words" and gradients.get_ylabel() == "gradient by word, nats"
    assert [axes.get_title(loc="left") for axes in (shares, deeper_shares)] == ["plain", "deeper"]
    assert [line.get_label() for line in shares.lines] == ["layer 1", "layer 2"]
    assert [list(line.get_ydata()) for line in gradients.lines] == [[0.5, 0.25], [0.125, 0.25]]
    assert shares.lines[1].get_color() == deeper_shares.lines[1].get_color() == "C2"
