"""The attention of a translation as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_plugins.evaluation.text.text_preparation import TextPreparation
from fairseq_plugins.evaluation.translation.translator import TranslatedSentence
from fairseq_plugins.evaluation.translation.word_attention import WordAttention, word_attention
from fairseq_plugins.reports.pictures import new_picture, save_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INCHES_A_WORD = 0.45
INCHES_OF_LABELS = 2.0
MOST_WORDS = 100
"""Words that are drawn of a longer sentence."""


def draw_attention_map(attention: WordAttention) -> "Figure":
    """A row for each of the first words of the translation, a column for each of the source; dark is much attention."""
    source, target = attention.source[:MOST_WORDS], attention.target[:MOST_WORDS]
    shape = len(source), len(target)
    width, height = (INCHES_OF_LABELS + INCHES_A_WORD * words for words in shape)
    picture = new_picture(inches=(width, height))
    axes = picture.subplots()
    image = axes.imshow(
        attention.weights[:MOST_WORDS, :MOST_WORDS].numpy(), cmap="Blues", vmin=0, vmax=1, aspect="equal"
    )
    axes.set_xticks(range(shape[0]), source, rotation=45, ha="left", rotation_mode="anchor", parse_math=False)
    axes.set_yticks(range(shape[1]), target, parse_math=False)
    axes.set(xlabel="source", ylabel="translation")
    axes.xaxis.set_label_position("top")
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    axes.set_xticks([word - 0.5 for word in range(1, shape[0])], minor=True)
    axes.set_yticks([word - 0.5 for word in range(1, shape[1])], minor=True)
    axes.grid(which="minor", color="0.9")
    axes.tick_params(which="minor", length=0)
    picture.colorbar(image, ax=axes, label="attention", shrink=0.7)
    return picture


def save_attention_map(sentence: TranslatedSentence, preparation: TextPreparation, path: Path) -> None:
    """Write the picture of a sentence's attention between words, in the format of the path's suffix.

    Raises:
        ValueError: if the sentence has no attention; the message names the path.
    """
    try:
        attention = word_attention(sentence, preparation.subwords)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    save_picture(draw_attention_map(attention), path)
