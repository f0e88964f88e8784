"""The surprisal of the words of a line as a picture."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, List

from fairseq_plugins.evaluation.text.raw_text import SideText
from fairseq_plugins.evaluation.text.text_scorer import ScoredLine
from fairseq_plugins.reports.pictures import as_label, new_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INCHES_A_WORD = 0.3
MOST_WORDS = 100
"""Words that are drawn of a longer line."""
LONGEST_WORD = 20
"""Letters that are drawn of a longer word."""


@dataclass(frozen=True, kw_only=True)
class WordSurprisal:
    """Surprisal of a word.

    Attributes:
        word: its pieces together.
        bits: the sum of its pieces' surprisal.
        unknown: whether the vocabulary lacks one of them.
    """

    word: str
    bits: float
    unknown: bool


def word_surprisals(line: ScoredLine, text: SideText) -> List[WordSurprisal]:
    """Surprisal of the words of a line, the end mark the last."""
    *pieces, end = line.tokens
    words: List[WordSurprisal] = []
    place, bits = 0, line.bits
    for word in [*text.group(pieces), [end]]:
        until = place + len(word)
        words.append(
            WordSurprisal(word="".join(word), bits=math.fsum(bits[place:until]), unknown=any(line.unknown[place:until]))
        )
        place = until
    return words


def draw_surprisal(line: ScoredLine, text: SideText) -> "Figure":
    """A bar for each of the first words of a line, unknown words in another colour."""
    words = word_surprisals(line, text)[:MOST_WORDS]
    picture = new_picture(inches=(max(4.0, 1.5 + INCHES_A_WORD * len(words)), 3.6))
    axes = picture.subplots()
    colours = ["tab:orange" if word.unknown else "tab:blue" for word in words]
    axes.bar(range(len(words)), [word.bits for word in words], color=colours)
    axes.set_xticks(range(len(words)), [as_label(word.word[:LONGEST_WORD]) for word in words], rotation=60, ha="right")
    axes.set(ylabel="surprisal, bits", xlim=(-0.6, len(words) - 0.4))
    axes.spines[["top", "right"]].set_visible(False)
    if any(word.unknown for word in words):
        axes.set_title("orange: not in the vocabulary", fontsize="small", loc="right")
    return picture
