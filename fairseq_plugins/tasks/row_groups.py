"""The rows of an update in groups that are computed one after the other.

Shapes: B rows of this process, T length of a window.
"""

from contextlib import nullcontext
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch
from fairseq.criterions import FairseqCriterion
from torch import Tensor, nn

from fairseq_plugins.modules.carried_state import CarriesState, DecoderState
from fairseq_plugins.modules.recurrent_state import map_state, select_rows

Step = Tuple[Tensor, int, Dict[str, Any]]
"""What the host's step returns: the loss, the number that the host divides gradients by, and what is logged."""


class RowGroups:
    """Runs the step of a window group by group; gradients, losses and what is logged are summed.

    Each group draws masks of its own, and the memory is that of one group. The state of all rows stays under the name
    of their stream, as without groups. A term of the loss that is no sum or mean over rows, such as the balance between
    softmaxes, is that of each group, weighted by its size.

    Args:
        number: of groups; sizes differ by at most one row.
    """

    def __init__(self, number: int):
        self._number = number

    def check(self, num_rows: int) -> None:
        """Compare with the rows of a process, B.

        Raises:
            ValueError: if there are more groups.
        """
        if self._number > num_rows:
            raise ValueError(
                f"--row-groups {self._number}: a process has {num_rows} rows; give at most so many groups, or a larger "
                "--batch-size"
            )

    def train_step(
        self,
        step: Callable[[Dict[str, Any]], Step],
        sample: Dict[str, Any],
        *,
        model: nn.Module,
        decoder: CarriesState,
        criterion: FairseqCriterion,
    ) -> Step:
        """Loss and gradients of a window.

        Args:
            step: from a sample to loss and gradients.
            sample: a window of all rows.
            model: as the host calls it; where processes exchange gradients, they do so at the last group.
            decoder: of the model; it holds the state before the window, and then the one after it.
            criterion: by which the step computes.

        Raises:
            ValueError: if the criterion logs what cannot be summed.
        """
        if self._number == 1:
            return step(sample)
        if not criterion.logging_outputs_can_be_summed():
            raise ValueError(
                f"--row-groups {self._number}: what {type(criterion).__name__} logs cannot be summed over groups; take "
                "--criterion regularized_cross_entropy"
            )
        carried, inputs = decoder.carried_state, sample["net_input"]
        stream, start, (num_rows, length) = inputs["stream"], inputs["position"], sample["target"].shape
        group_stream = f"{stream}, a group of rows"
        before = carried.get(stream, start) or decoder.initial_state(num_rows)
        after: List[DecoderState] = []
        results: List[Step] = []
        try:
            for rows in self._slices(num_rows):
                carried.set(group_stream, start, select_rows(before, rows))
                is_last = rows.stop == num_rows
                exchange_later = nullcontext if is_last else getattr(model, "no_sync", nullcontext)
                with exchange_later():
                    results.append(_without_graph(step(_rows_of(sample, rows, stream=group_stream))))
                state = carried.get(group_stream, start + length)
                assert state is not None
                after.append(state)
        finally:
            carried.forget(group_stream)
        carried.set(stream, start + length, map_state(lambda *parts: torch.cat(parts), *after))
        return _summed(results)

    def _slices(self, num_rows: int) -> Iterator[slice]:
        ends = [num_rows * n // self._number for n in range(self._number + 1)]
        return (slice(*pair) for pair in zip(ends, ends[1:]))


def _rows_of(sample: Dict[str, Any], rows: slice, *, stream: str) -> Dict[str, Any]:
    """Some rows of a window, under the name of a stream of their own."""
    inputs, target = sample["net_input"], sample["target"][rows]
    return {
        **sample,
        "id": sample["id"][rows],
        "nsentences": len(target),
        "ntokens": target.numel(),
        "net_input": {
            **inputs,
            "src_tokens": inputs["src_tokens"][rows],
            "src_lengths": inputs["src_lengths"][rows],
            "stream": stream,
        },
        "target": target,
    }


def _without_graph(result: Step) -> Step:
    loss, size, logged = result
    return loss.detach(), size, logged


def _summed(results: List[Step]) -> Step:
    losses, sizes, logged = zip(*results)
    return sum(losses[1:], losses[0]), sum(sizes), {name: sum(part[name] for part in logged) for name in logged[0]}
