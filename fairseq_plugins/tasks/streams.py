"""Parts of the task ``stateful_lm``: micro-batches of rows, the position in the training text, the learning rate.

Shapes: B rows of this process, T length of a window.
"""

from contextlib import contextmanager, nullcontext
from typing import Any, Callable, Dict, Generator, List, Optional, Tuple

import torch
from fairseq.criterions import FairseqCriterion
from fairseq.data.iterators import EpochBatchIterator
from fairseq.distributed import utils as distributed_utils
from fairseq.optim import FairseqOptimizer
from torch import Tensor, nn

from fairseq_plugins.data.streams import ContiguousStreams, Window
from fairseq_plugins.models.decoder import StreamDecoder, StreamState
from fairseq_plugins.modules.cell import (
    State,
    map_state,
    named_tensors,
    pack_state,
    select_rows,
    unpack_state,
    with_tensors,
)
from fairseq_plugins.options import UserError

Step = Tuple[Tensor, int, Dict[str, Any]]
"""Result of fairseq's step: the loss, the number that fairseq divides gradients by, and the logging output."""


def train_step_in_micro_batches(
    step: Callable[[Dict[str, Any]], Step],
    sample: Dict[str, Any],
    *,
    num_groups: int,
    model: nn.Module,
    decoder: StreamDecoder,
    criterion: FairseqCriterion,
) -> Step:
    """Loss and gradients of a window, computed for one group of its rows after the other and summed.

    Each group draws its own dropout masks, and peak memory is that of one group. The state of all rows stays under
    the name of their stream, as without groups. A term of the loss that is no sum or mean over rows, such as the
    balance between softmaxes, is computed for each group and weighted by its size.

    Args:
        step: maps a sample to its loss and adds its gradients.
        sample: a window of all B rows.
        num_groups: sizes differ by at most one row.
        model: as fairseq calls it. Where processes exchange gradients, they do so after the last group.
        decoder: of the model. It holds the state before the window, and afterwards the state after it.
        criterion: computes the loss in ``step``.

    Raises:
        UserError: if the criterion's logging outputs cannot be summed.
    """
    if not criterion.logging_outputs_can_be_summed():
        raise UserError(
            f"--row-groups {num_groups}: what {type(criterion).__name__} logs cannot be summed over groups; take "
            "--criterion regularized_cross_entropy"
        )
    carried, inputs = decoder.carried_state, sample["net_input"]
    stream, start, (num_rows, length) = inputs["stream"], inputs["position"], sample["target"].shape
    before = carried.get(stream, start) or decoder.initial_state(num_rows)
    # A temporary stream: the state of all rows must survive a group that runs out of memory.
    group_stream = f"{stream}, a group of rows"
    ends = [num_rows * n // num_groups for n in range(num_groups + 1)]
    after: List[StreamState] = []
    results: List[Step] = []
    try:
        for rows in map(slice, ends, ends[1:]):
            carried.set(group_stream, start, select_rows(before, rows))
            exchange_later = nullcontext if rows.stop == num_rows else getattr(model, "no_sync", nullcontext)
            with exchange_later():
                loss, size, logged = step(_rows_of(sample, rows, stream=group_stream))
            results.append((loss.detach(), size, logged))
            del loss  # its graph must be gone before the next group is computed
            state = carried.get(group_stream, start + length)
            assert state is not None
            after.append(state)
    finally:
        carried.forget(group_stream)
    carried.set(stream, start + length, map_state(lambda *parts: torch.cat(parts), *after))
    losses, sizes, logs = zip(*results)
    return sum(losses[1:], losses[0]), sum(sizes), {name: sum(log[name] for log in logs) for name in logs[0]}


def _rows_of(sample: Dict[str, Any], rows: slice, *, stream: str) -> Dict[str, Any]:
    """The given rows of a window, as a sample of the stream ``stream``."""
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


_ANEW = "or train on from these weights, beginning at epoch 1 again, with --reset-dataloader"


class StreamPosition:
    """The position of a run in its training text: the next window, and the state before it of all processes' rows.

    It is part of every checkpoint.

    Args:
        iterator: over windows of :class:`ContiguousStreams`.
        decoder: of the model that reads them. It holds the state of this process's rows only.
    """

    def __init__(self, iterator: EpochBatchIterator, decoder: StreamDecoder):
        self._iterator = iterator
        self._decoder = decoder
        self._state: Optional[State] = None

    @property
    def is_end_of_epoch(self) -> bool:
        """Whether no window is left."""
        return self._iterator.end_of_epoch()

    @property
    def is_shared(self) -> bool:
        """Whether other processes hold rows of the text as well."""
        return len(self._streams.rows) < self._streams.num_rows

    def advance(self, *, position: int) -> None:
        """Note the state before the token at ``position``, after a window; a collective operation.

        The rows of all processes are gathered after every window, because only the first process writes checkpoints
        and no collective operation can run by then. If memory ran out in the window, the state before it is noted.
        """
        start = self._decoder.initial_state(len(self._streams.rows))
        state = self._decoder.carried_state.get(self._streams.name, position) or start
        if self.is_shared:
            # Gathering needs one dtype. With --amp a process that ran out of memory holds the start, in 32 bits, while
            # the others carry 16-bit states.
            packed = pack_state(map_state(Tensor.to, state, start))
            rows = distributed_utils.all_gather(packed, distributed_utils.get_data_parallel_group())
            state = unpack_state(torch.cat(list(rows)), like=start)
        self._state = state

    def checkpoint(self) -> Dict[str, Any]:
        """The content of a checkpoint.

        Returns:
            ``next_window``: its start, its length and the length of a row, in tokens, or None at the end of an epoch;
            ``row_offsets``: the token at which each row of all processes begins in this epoch, empty without offsets,
            or None at the end of an epoch;
            ``hidden_state``: the tensors of the state before the next window by name, each (rows of all processes, D),
            or None where it starts from zeros. fairseq skips a window for which memory runs out; the state before
            that window is kept then;
            ``text``: the digest of the text, or None at the end of an epoch.
        """
        window = self._next_window()
        if window is None:
            return dict.fromkeys(("hidden_state", "next_window", "row_offsets", "text"))
        return {
            "hidden_state": None if self._state is None or window.start == 0 else named_tensors(self._state),
            "next_window": [window.start, window.length, self._streams.rows.size(1)],
            "row_offsets": list(window.row_offsets),
            "text": self._streams.digest,
        }

    def restore(self, saved: Dict[str, Any]) -> None:
        """Give the decoder its rows of a saved state, if the iterator stands inside an epoch.

        Args:
            saved: returned by :meth:`checkpoint`.

        Raises:
            UserError: if the rows, windows, offsets or text differ from the checkpoint's, or the state is that of
                another model.
        """
        if self._iterator.iterations_in_epoch == 0:
            return
        num_rows = self._streams.num_rows
        start = self._decoder.initial_state(num_rows)
        zeros = named_tensors(start)
        saved_state = zeros if saved["hidden_state"] is None else named_tensors(saved["hidden_state"])
        num_saved_rows, here = len(next(iter(saved_state.values()))), self.checkpoint()
        if num_saved_rows != num_rows:
            raise UserError(
                f"the checkpoint stopped inside an epoch of {num_saved_rows} rows and cannot go on with "
                f"{num_rows}: use the same --batch-size times processes, {_ANEW}"
            )
        if saved["next_window"] != here["next_window"]:
            raise UserError(
                "the checkpoint stopped inside an epoch that was cut into other windows: use the same text, --seed, "
                f"--tokens-per-sample, --window-lengths and --max-window, {_ANEW}"
            )
        if saved["row_offsets"] != here["row_offsets"]:
            raise UserError(
                "the checkpoint stopped inside an epoch whose rows begin elsewhere: use the same --row-offsets and "
                f"--seed, {_ANEW}"
            )
        if saved["text"] != here["text"]:
            raise UserError(
                f"the checkpoint stopped inside an epoch of another text: use the text that it was trained on, {_ANEW}"
            )
        if [(name, x.shape) for name, x in saved_state.items()] != [(name, x.shape) for name, x in zeros.items()]:
            raise UserError(
                "the checkpoint stopped inside an epoch with the hidden state of another model: give the --arch and "
                f"the flags that it was trained with, {_ANEW}"
            )
        self._state = with_tensors(start, (x.to(zeros[name]) for name, x in saved_state.items()))
        own = select_rows(self._state, self._streams.own_rows)
        self._decoder.carried_state.set(self._streams.name, saved["next_window"][0], own)

    @property
    def _streams(self) -> ContiguousStreams:
        streams = self._iterator.dataset
        assert isinstance(streams, ContiguousStreams)
        return streams

    def _next_window(self) -> Optional[Window]:
        """The next window of the epoch; None at its end."""
        index, windows = self._iterator.iterations_in_epoch, self._iterator.frozen_batches
        if index >= len(windows):
            return None
        (window,) = windows[index]
        return window


def agreed_scale(nominal_lengths: List[int], *, base_length: int, device: torch.device) -> float:
    """Factor of the learning rate of an update: the mean length of its windows / ``base_length``, both in tokens.

    The rate is proportional to the lengths that were drawn for the windows (Merity et al. 2018, section 4.1). With a
    fixed rate short windows would be overweighted, because the mean gradient of each window counts alike.

    Processes take the largest of their factors, because they make one update together. Factors differ if memory ran out
    in one process. The factor is 1 if no process has a window.
    """
    scale = sum(length / base_length for length in nominal_lengths) / max(1, len(nominal_lengths))
    if distributed_utils.get_data_parallel_world_size() > 1:
        own = torch.tensor([scale], dtype=torch.double, device=device)
        scale = float(distributed_utils.all_reduce(own, distributed_utils.get_data_parallel_group(), op="max"))
    return scale or 1.0


@contextmanager
def scaled_learning_rate(optimizer: FairseqOptimizer, scale: float) -> Generator[None, None, None]:
    """Multiply the learning rate within the context."""
    lr = optimizer.param_groups[0]["lr"]
    optimizer.set_lr(lr * scale)
    try:
        yield
    finally:
        optimizer.set_lr(lr)
