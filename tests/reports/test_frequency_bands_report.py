"""Table and picture of gains by word frequency."""

from fairseq_plugins.evaluation.analyses.frequency_bands import FrequencyBand
from fairseq_plugins.reports.frequency_bands import as_markdown, draw
from tests.tables import rows_of

BANDS = [
    FrequencyBand(lowest=1, below=10, num_types=1200, num_tokens=3400, mean_of_types=12.25, of_the_loss=6.0),
    FrequencyBand(lowest=1000, below=None, num_types=5, num_tokens=90000, mean_of_types=-1.0, of_the_loss=-0.5),
]


def test_a_band_is_a_line():
    _, _, rare, frequent = rows_of(as_markdown(BANDS))
    assert rare == ["1 to 9", "1,200", "3,400", "12.25", "6.00"]
    assert frequent == ["1,000 and more", "5", "90,000", "-1.00", "-0.50"]


def test_both_statistics_are_bars():
    (axes,) = draw(BANDS, names=["LSTM", "DOC"]).axes
    heights = [[bar.get_height() for bar in bars] for bars in axes.containers]
    assert heights == [[12.25, -1.0], [6.0, -0.5]] and axes.get_ylabel() == "gain of DOC over LSTM, %"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1 to 9", "1,000 and more"]
