"""Sentences of a binarised split, one by one."""

from typing import Any, List, Tuple

from fairseq.tasks import setup_task
from torch import Tensor


def split_lines(tokens: Tensor, *, end: int) -> List[Tensor]:
    """The lines of a stream (n,) that have a word, each with its end mark."""
    ends = (tokens == end).nonzero()[:, 0].tolist()
    spans = zip([0, *(place + 1 for place in ends)], (place + 1 for place in ends))
    return [tokens[start:stop] for start, stop in spans if stop - start > 1]


def split_pairs(task: Any, split: str) -> Tuple[List[Tensor], List[Tensor]]:
    """Sources and targets of a split, each (n,) with its end mark.

    Args:
        task: the configuration of a trained encoder-decoder's task, which names the folder.
        split: such as "valid".

    Raises:
        ValueError: if the folder has no such split.
    """
    trained = setup_task(task)
    trained.load_dataset(split)
    pairs = trained.dataset(split)
    sources, targets = ([side[number] for number in range(len(pairs))] for side in (pairs.src, pairs.tgt))
    return sources, targets
