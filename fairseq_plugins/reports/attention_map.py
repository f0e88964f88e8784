"""The attention of a translation as a picture."""

from typing import TYPE_CHECKING

from fairseq_plugins.evaluation.word_attention import WordAttention
from fairseq_plugins.reports.pictures import new_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INCHES_A_WORD = 0.45
INCHES_OF_LABELS = 2.0


def draw_attention_map(attention: WordAttention) -> "Figure":
    """A row for each word of the translation, a column for each word of the source; dark is much attention."""
    shape = len(attention.source), len(attention.target)
    width, height = (INCHES_OF_LABELS + INCHES_A_WORD * words for words in shape)
    picture = new_picture(inches=(width, height))
    axes = picture.subplots()
    image = axes.imshow(attention.weights.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="equal")
    axes.set_xticks(range(shape[0]), attention.source, rotation=45, ha="left", rotation_mode="anchor")
    axes.set_yticks(range(shape[1]), attention.target)
    axes.set(xlabel="source", ylabel="translation")
    axes.xaxis.set_label_position("top")
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    axes.set_xticks([word - 0.5 for word in range(1, shape[0])], minor=True)
    axes.set_yticks([word - 0.5 for word in range(1, shape[1])], minor=True)
    axes.grid(which="minor", color="0.9")
    axes.tick_params(which="minor", length=0)
    picture.colorbar(image, ax=axes, label="attention", shrink=0.7)
    return picture
