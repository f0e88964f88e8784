"""The table and the figures of correlations, for machines and people who joined them before."""

from printed_tables import rows_of

from fairseq_plugins.evaluation.analyses.layers import LayerCorrelation, MaskedRuns
from fairseq_plugins.evaluation.analyses.words import FrequencyBand
from fairseq_plugins.reports.analyses import (
    correlation_report,
    frequency_report,
    masking_report,
)

PLAIN = LayerCorrelation(layer=1, width=1400, num_constant=2, mean=0.125, within={}, between=None)
PARTED = LayerCorrelation(
    layer=2, width=10, num_constant=0, mean=0.5, within={"major": 0.25, "minor": None}, between=0.75
)


def test_a_layer_without_groups_has_empty_columns():
    report = correlation_report({"LSTM": [PLAIN], "MM": [PARTED]})
    rows = report.figures["layers"]
    assert rows == [
        dict(model="LSTM", layer=1, width=1400, num_constant=2, mean=0.125, major=None, minor=None, between=None),
        dict(model="MM", layer=2, width=10, num_constant=0, mean=0.5, major=0.25, minor=None, between=0.75),
    ]
    assert list(rows[0]) == ["model", "layer", "width", "num_constant", "mean", "major", "minor", "between"]
    title, _, *lines = rows_of(report.text)
    assert title == ["model", "layer", "width", "constant features", "mean", "major", "minor", "between"]
    assert lines == [
        ["LSTM", "1", "1,400", "2", "0.1250", "", "", ""],
        ["MM", "2", "10", "0", "0.5000", "0.2500", "", "0.7500"],
    ]


def runs(model, layers, probability, *perplexities):
    mean = sum(perplexities) / len(perplexities)
    return MaskedRuns(model, layers, probability, mask="element", perplexity=mean, perplexities=list(perplexities))


CURVES = []
for layers in ("all", "2"):
    CURVES += [runs("A", layers, 0.5, 40.0, 60.0), runs("A", layers, 0.0, 20.0)]
    CURVES += [runs("B", layers, 0.5, 55.0, 65.0), runs("B", layers, 0.0, 30.0)]


def test_a_table_for_each_choice_of_layers():
    first, second = masking_report(CURVES).text.split("\n\n")
    title, _, *rows = rows_of(first)
    assert title == ["all layers masked, P =", "0.5", "0"]
    assert rows == [["A", "50.00", "20.00"], ["B", "60.00", "30.00"]]
    assert "layer 2 masked, P =" in second


def test_a_panel_for_each_choice_and_a_curve_for_each_model():
    picture = masking_report(CURVES).draw()
    assert [axes.get_title() for axes in picture.axes] == ["all layers", "layer 2"]
    for axes in picture.axes:
        assert [line.get_label() for line in axes.lines] == ["A", "B"]
        assert list(axes.lines[1].get_xdata()) == [0.0, 0.5] and list(axes.lines[1].get_ydata()) == [30.0, 60.0]


BANDS = [
    FrequencyBand(lowest=1, below=10, num_types=1200, num_tokens=3400, mean_of_types=12.25, of_the_loss=6.0),
    FrequencyBand(lowest=1000, below=None, num_types=5, num_tokens=90000, mean_of_types=-1.0, of_the_loss=-0.5),
]


def test_a_band_is_a_line():
    _, _, rare, frequent = rows_of(frequency_report(BANDS, names=["LSTM", "DOC"]).text)
    assert rare == ["1 to 9", "1,200", "3,400", "12.25", "6.00"]
    assert frequent == ["1,000 and more", "5", "90,000", "-1.00", "-0.50"]


def test_both_statistics_are_bars():
    (axes,) = frequency_report(BANDS, names=["LSTM", "DOC"]).draw().axes
    heights = [[bar.get_height() for bar in bars] for bars in axes.containers]
    assert heights == [[12.25, -1.0], [6.0, -0.5]] and axes.get_ylabel() == "gain of DOC over LSTM, %"
    assert axes.yaxis.label.get_wrap()  # long names of systems stay in the picture
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1 to 9", "1,000 and more"]
