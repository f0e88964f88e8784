"""Moses tokenisation, and the filter of training pairs."""

from collections import Counter
from collections.abc import Callable

from sacremoses import MosesTokenizer

from .lines import Pair


def moses(language: str, lowercase: bool) -> Callable[[str], str]:
    """A function from a raw line to its tokens with one space between them.

    As tokenizer.perl by default: hyphens stay in words; ``& | < > ' " [ ]`` are escaped, so that no text can look like
    one of the host's symbols (``<unk>``, ``</s>``).
    """
    tokenizer = MosesTokenizer(lang=language)

    def tokenize(line: str) -> str:
        return " ".join(tokenizer.tokenize(line.lower() if lowercase else line, escape=True))

    return tokenize


def filter_pairs(pair: Pair, *, min_length: int, max_length: int, max_ratio: float) -> tuple[Pair, Counter]:
    """The pairs whose sides have ``min_length`` to ``max_length`` tokens, and how many were dropped for which reason.

    ``max_ratio`` bounds the longer side's length divided by the shorter's; 0 is no bound.
    """
    dropped: Counter = Counter()
    kept = Pair([], [])
    for source, target in zip(*pair):
        shorter, longer = sorted((len(source.split()), len(target.split())))
        if shorter == 0:
            dropped["empty side"] += 1
        elif shorter < min_length or longer > max_length:
            dropped["length"] += 1
        elif max_ratio and longer > max_ratio * shorter:
            dropped["ratio"] += 1
        else:
            kept.source.append(source)
            kept.target.append(target)
    return kept, dropped
