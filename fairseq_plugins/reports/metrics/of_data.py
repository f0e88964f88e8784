"""The metric of decoded texts that data ask for."""

from pathlib import Path

from fairseq_plugins.evaluation.text.text_preparation import compared_case
from fairseq_plugins.reports.metrics.bleu import BleuMetric
from fairseq_plugins.reports.metrics.rouge import RougeMetric
from fairseq_plugins.reports.metrics.text import TextMetric
from fairseq_plugins.scoring.rouge import DEFAULT_SETTINGS, RougeSettings


def text_metric(
    name: str, reference: Path, *, data: Path, split: str, language: str, rouge: RougeSettings = DEFAULT_SETTINGS
) -> TextMetric:
    """The metric "bleu" or "rouge" of what was decoded of a split, as its data ask for it.

    Args:
        name: of the metric.
        reference: raw text.
        data, split: of which it is the reference.
        language: that the models translate into.
        rouge: settings of ROUGE.

    Raises:
        ValueError: if what splits their language into words is missing.
    """
    if name == "rouge":
        return RougeMetric(reference, split=split, settings=rouge)
    return BleuMetric(reference, split=split, case=compared_case(data), language=language)
