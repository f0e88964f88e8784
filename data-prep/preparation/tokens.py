"""Tokens of a line, and the filters of rows."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from .lines import Row
from .moses import MosesWords


def moses(language: str, lowercase: bool) -> Callable[[str], str]:
    """A function from a raw line to its tokens with one space between them.

    ``lowercase`` is for the tokens: the tokeniser sees the line's own case, by which it tells the end of a sentence
    from an abbreviation.
    """
    words = MosesWords(language)

    def tokenize(line: str) -> str:
        tokens = " ".join(words.split(line))
        return tokens.lower() if lowercase else tokens

    return tokenize


def on_each_side(build: Callable[..., Callable[[str], str]], arguments: Iterable[tuple]) -> Callable[[Row], Row]:
    """A function of rows: what ``build`` makes of its arguments for each side."""
    functions = [build(*each) for each in arguments]
    return lambda row: tuple(function(line) for function, line in zip(functions, row, strict=True))


def length_fault(row: Row, *, min_length: int, max_length: int, max_ratio: float) -> str:
    """Why a row of tokens does not fit, or "".

    A side has ``min_length`` to ``max_length`` tokens. ``max_ratio`` bounds the longer side's length divided by the
    shorter's; 0 is no bound.
    """
    lengths = [len(side.split()) for side in row]
    shorter, longer = min(lengths), max(lengths)
    if shorter == 0:
        return "empty side"
    if shorter < min_length or longer > max_length:
        return "length"
    return "ratio" if max_ratio and longer > max_ratio * shorter else ""


def screen(pairs: Iterable[Row], fault_of: Callable[[Row], str], split: str, drop: bool) -> Iterator[Row]:
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
