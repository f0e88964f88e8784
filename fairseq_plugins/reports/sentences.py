"""Pictures of sentences: attention between their words, and surprisal of their words."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, List, Tuple

from fairseq_plugins.evaluation.language_model import ScoredLine
from fairseq_plugins.evaluation.raw_text import SideText, Subwords
from fairseq_plugins.evaluation.translation import TranslatedSentence, WordAttention, word_attention
from fairseq_plugins.options import UserError
from fairseq_plugins.reports.pictures import as_label, new_picture, save_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INCHES_A_WORD = 0.45
INCHES_OF_LABELS = 2.0
MOST_WORDS = 100
"""Words of a sentence that are drawn at most."""


def draw_attention_map(attention: WordAttention) -> "Figure":
    """Attention of the first words of a translation (rows) on the first words of the source (columns)."""
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


def save_attention_map(sentence: TranslatedSentence, subwords: Subwords, path: Path) -> None:
    """Save the picture of a sentence's attention between words, in the format of the path's suffix.

    Raises UserError if the sentence has no attention; the message names the path.
    """
    try:
        attention = word_attention(sentence, subwords)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
    save_picture(draw_attention_map(attention), path)


LONGEST_WORD = 20
"""Letters of a word that are drawn at most."""


def word_surprisals(line: ScoredLine, text: SideText) -> List[Tuple[str, float, bool]]:
    """Surprisal of the words of a line. The end mark is the last.

    Returns:
        each word, joined from its subwords, the sum of their surprisal in bits, and whether the vocabulary lacks one.
    """
    *pieces, end = line.tokens
    words: List[Tuple[str, float, bool]] = []
    start, bits = 0, line.bits
    for word in [*text.group(pieces), [end]]:
        until = start + len(word)
        words.append(("".join(word), math.fsum(bits[start:until]), any(line.unknown[start:until])))
        start = until
    return words


def draw_surprisal(line: ScoredLine, text: SideText) -> "Figure":
    """A bar for each of the first words of a line. Unknown words have another colour."""
    words, bits, unknown = zip(*word_surprisals(line, text)[:MOST_WORDS])
    picture = new_picture(inches=(max(4.0, 1.5 + 0.3 * len(words)), 3.6))
    axes = picture.subplots()
    colours = ["tab:orange" if lacks else "tab:blue" for lacks in unknown]
    axes.bar(range(len(words)), bits, color=colours)
    axes.set_xticks(range(len(words)), [as_label(word[:LONGEST_WORD]) for word in words], rotation=60, ha="right")
    axes.set(ylabel="surprisal, bits", xlim=(-0.6, len(words) - 0.4))
    axes.spines[["top", "right"]].set_visible(False)
    if any(unknown):
        axes.set_title("orange: not in the vocabulary", fontsize="small", loc="right")
    return picture
