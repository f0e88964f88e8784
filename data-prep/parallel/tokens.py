"""Tokens of a line, and the filters of pairs."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

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


def on_both_sides(build: Callable[..., Callable[[str], str]], arguments: Iterable[tuple]) -> Callable[[Pair], Pair]:
    """A function of pairs: what ``build`` makes of its arguments for either side."""
    of_source, of_target = (build(*each) for each in arguments)
    return lambda pair: (of_source(pair[0]), of_target(pair[1]))


def filter_pairs(
    pairs: Iterable[Pair], dropped: Counter, *, min_length: int, max_length: int, max_ratio: float
) -> Iterator[Pair]:
    """The pairs whose sides have ``min_length`` to ``max_length`` tokens; ``dropped`` counts the others by reason.

    ``max_ratio`` bounds the longer side's length divided by the shorter's; 0 is no bound.
    """
    for pair in pairs:
        shorter, longer = sorted(len(side.split()) for side in pair)
        if shorter == 0:
            dropped["empty side"] += 1
        elif shorter < min_length or longer > max_length:
            dropped["length"] += 1
        elif max_ratio and longer > max_ratio * shorter:
            dropped["ratio"] += 1
        else:
            yield pair


def screen(pairs: Iterable[Pair], fault_of: Callable[[Pair], str], split: str, drop: bool) -> Iterator[Pair]:
    """Report, at the end, in how many pairs ``fault_of`` finds which fault (none: ""); with ``drop`` leave them out."""
    faults: Counter = Counter()
    total = 0
    for pair in pairs:
        total += 1
        if fault := fault_of(pair):
            faults[fault] += 1
            if drop:
                continue
        yield pair
    if faults:
        what_then = "removed" if drop else "kept in their places"
        print(f"{split}: {faults.total()} of {total} items are invalid, {what_then}: {listed(faults)}", flush=True)


def listed(counts: Counter) -> str:
    """Reasons with their counts, in the order of the alphabet."""
    return ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items())) or "none"
