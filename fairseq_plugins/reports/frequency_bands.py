"""Gains of one language model over another by word frequency, as a table and as a picture."""

from typing import TYPE_CHECKING, Sequence

from fairseq_plugins.evaluation.analyses.frequency_bands import FrequencyBand
from fairseq_plugins.reports.pictures import as_label, new_picture
from fairseq_plugins.reports.tables import as_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def as_markdown(bands: Sequence[FrequencyBand]) -> str:
    """A band a line."""
    columns = ["occurrences in train", "types", "tokens", "mean over types, %", "of the loss, %"]
    return as_table(
        columns,
        [
            (
                _title(band),
                f"{band.num_types:,}",
                f"{band.num_tokens:,}",
                f"{band.mean_of_types:.2f}",
                f"{band.of_the_loss:.2f}",
            )
            for band in bands
        ],
    )


def draw(bands: Sequence[FrequencyBand], *, names: Sequence[str]) -> "Figure":
    """Both statistics, bars by band; ``names`` are those of the baseline and of the other model."""
    picture = new_picture()
    axes = picture.subplots()
    places = range(len(bands))
    for shift, values, label in (
        (-0.2, [band.mean_of_types for band in bands], "mean over types, (B - O) / O"),
        (0.2, [band.of_the_loss for band in bands], "of the band's loss, (B - O) / B"),
    ):
        axes.bar([place + shift for place in places], values, width=0.4, label=label)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(places, [_title(band) for band in bands], rotation=30, ha="right")
    axes.set(
        xlabel="occurrences in the training text", ylabel=f"gain of {as_label(names[1])} over {as_label(names[0])}, %"
    )
    axes.legend()
    return picture


def _title(band: FrequencyBand) -> str:
    return f"{band.lowest:,} and more" if band.below is None else f"{band.lowest:,} to {band.below - 1:,}"
