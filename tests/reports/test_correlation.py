"""The table and the figures of correlations, for machines and people who joined them before."""

from fairseq_plugins.evaluation.analyses.feature_correlation import LayerCorrelation
from fairseq_plugins.reports.correlation import as_markdown, as_row
from tests.tables import rows_of

PLAIN = LayerCorrelation(layer=1, width=1400, num_constant=2, mean=0.125, within={}, between=None)
PARTED = LayerCorrelation(
    layer=2, width=10, num_constant=0, mean=0.5, within={"major": 0.25, "minor": None}, between=0.75
)
GROUPS = ["major", "minor"]


def test_a_layer_without_groups_has_empty_columns():
    rows = [as_row("LSTM", PLAIN, GROUPS), as_row("MM", PARTED, GROUPS)]
    assert rows == [
        dict(model="LSTM", layer=1, width=1400, num_constant=2, mean=0.125, major=None, minor=None, between=None),
        dict(model="MM", layer=2, width=10, num_constant=0, mean=0.5, major=0.25, minor=None, between=0.75),
    ]
    assert list(rows[0]) == ["model", "layer", "width", "num_constant", "mean", "major", "minor", "between"]
    title, _, *lines = rows_of(as_markdown(rows, GROUPS))
    assert title == ["model", "layer", "width", "constant features", "mean", "major", "minor", "between"]
    assert lines == [
        ["LSTM", "1", "1,400", "2", "0.1250", "", "", ""],
        ["MM", "2", "10", "0", "0.5000", "0.2500", "", "0.7500"],
    ]
