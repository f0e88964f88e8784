"""The longest common subsequence of two texts, for ROUGE-L."""

from collections import defaultdict
from typing import DefaultDict, Sequence

BLOCK = 8192
"""Words of the first text that are compared with a word of the second at once, a bit each."""


def common_subsequence_length(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest sequence of words that both texts have in this order.

    The rows of the dynamic programme are bits of whole numbers (Hyyrö 2004), block by block. Time is in the product of
    the lengths, divided by the bits of a machine word; memory is in their sum.
    """
    length = 0
    carries = bytearray(len(second))  # what a block hands on to the next, for each word of the second text
    for start in range(0, len(first), BLOCK):
        block = first[start : start + BLOCK]
        all_ones = (1 << len(block)) - 1
        places: DefaultDict[str, int] = defaultdict(int)
        for place, word in enumerate(block):
            places[word] |= 1 << place
        row = all_ones  # a zero where the length grows
        for number, word in enumerate(second):
            matches = places.get(word, 0)
            if matches or carries[number]:
                total = row + (row & matches) + carries[number]
                carries[number] = total > all_ones
                row = (total & all_ones) | (row & ~matches)
        length += len(block) - row.bit_count()
    return length
