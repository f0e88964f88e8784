"""What the backward pass from some results tells of how they were computed."""

from typing import Iterable, Iterator

from torch import Tensor


def is_run_by_cudnn(results: Iterable[Tensor]) -> bool:
    """Whether cuDNN's recurrent kernel is among the steps to the results."""
    return any("cudnnrnn" in name.lower() for name in _nodes(results))


def _nodes(results: Iterable[Tensor]) -> Iterator[str]:
    """Names of the steps of the backward pass."""
    waiting = [x.grad_fn for x in results]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        yield node.name()
        following = {function for function, _ in node.next_functions} - seen
        seen |= following
        waiting += following
