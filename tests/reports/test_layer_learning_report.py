from fairseq_plugins.evaluation.analyses.layer_learning import LayerLearning
from fairseq_plugins.reports.layer_learning import draw_history, history_table
from tests.tables import rows_of

RUNS = {
    "plain": {
        50: LayerLearning(shares=[0, 0.25, 0.75], gradients=[0, 0.5, 0.125], num_words=9),
        1000: LayerLearning(shares=[0, 0.5, 0.5], gradients=[0, 0.25, 0.25], num_words=9),
    },
    "deeper": {50: LayerLearning(shares=[0, 0, 0, 1], gradients=[0, 0, 0, 2], num_words=9)},
}


def test_every_checkpoint_is_a_line():
    title, _, *cells = rows_of(history_table(RUNS))
    assert title == [
        *("model", "updates", "share, layer 1", "share, layer 2", "share, layer 3"),
        *("gradient, layer 1", "gradient, layer 2", "gradient, layer 3"),
    ]
    assert cells[1] == ["plain", "1,000", "50.0%", "50.0%", "", "0.2500", "0.2500", ""]
    assert cells[2] == ["deeper", "50", "0.0%", "0.0%", "100.0%", "0.0000", "0.0000", "2.0000"]


def test_a_layer_has_its_colour_in_every_panel():
    picture = draw_history(RUNS)
    picture.canvas.draw()
    shares, deeper_shares, gradients, _ = picture.axes
    assert shares.get_ylabel() == "share of the words" and gradients.get_ylabel() == "gradient by word, nats"
    assert [axes.get_title(loc="left") for axes in (shares, deeper_shares)] == ["plain", "deeper"]
    assert [line.get_label() for line in shares.lines] == ["layer 1", "layer 2"]
    assert [list(line.get_ydata()) for line in gradients.lines] == [[0.5, 0.25], [0.125, 0.25]]
    assert shares.lines[1].get_color() == deeper_shares.lines[1].get_color() == "C2"
