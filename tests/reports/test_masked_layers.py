"""Tables and curves of models with masked layers."""

from fairseq_plugins.evaluation.analyses.layer_masking import MaskedRuns
from fairseq_plugins.reports.masked_layers import as_markdown, draw
from tests.tables import rows_of


def runs(model, layers, probability, *perplexities):
    mean = sum(perplexities) / len(perplexities)
    return MaskedRuns(model, layers, probability, mask="element", perplexity=mean, perplexities=list(perplexities))


CURVES = [
    curve
    for layers in ("all", "2")
    for curve in (
        runs("A", layers, 0.5, 40.0, 60.0),
        runs("A", layers, 0.0, 20.0),
        runs("B", layers, 0.5, 55.0, 65.0),
        runs("B", layers, 0.0, 30.0),
    )
]


def test_a_table_for_each_choice_of_layers():
    first, second = as_markdown(CURVES).split("\n\n")
    title, _, *rows = rows_of(first)
    assert title == ["all layers masked, P =", "0.5", "0"]
    assert rows == [["A", "50.00", "20.00"], ["B", "60.00", "30.00"]]
    assert "layer 2 masked, P =" in second


def test_a_panel_for_each_choice_and_a_curve_for_each_model():
    picture = draw(CURVES)
    assert [axes.get_title() for axes in picture.axes] == ["all layers", "layer 2"]
    for axes in picture.axes:
        assert [line.get_label() for line in axes.lines] == ["A", "B"]
        assert list(axes.lines[1].get_xdata()) == [0.0, 0.5] and list(axes.lines[1].get_ydata()) == [30.0, 60.0]
