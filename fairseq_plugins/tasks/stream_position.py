"""Where a training stands in its text, as checkpoints keep it."""

from typing import Any, Dict, List, Mapping, Optional

import torch
from fairseq.data.iterators import EpochBatchIterator
from fairseq.distributed import utils as distributed_utils
from torch import Tensor

from fairseq_plugins.data.contiguous_streams import ContiguousStreams
from fairseq_plugins.data.windows import Window
from fairseq_plugins.modules.carried_state import CarriesState
from fairseq_plugins.modules.recurrent_state import (
    State,
    map_state,
    named_tensors,
    pack_state,
    select_rows,
    state_tensors,
    unpack_state,
    with_tensors,
)

_ANEW = "or train on from these weights, beginning at epoch 1 again, with --reset-dataloader"


class StreamPosition:
    """The next window of an epoch, and the state before it of the rows of all processes.

    The decoders that are passed to the methods hold the rows of this process.

    Args:
        iterator: of windows of :class:`ContiguousStreams`.
    """

    def __init__(self, iterator: EpochBatchIterator):
        self._iterator = iterator
        self._state: Optional[State] = None

    @property
    def is_end_of_epoch(self) -> bool:
        """Whether no window is left."""
        return self._iterator.end_of_epoch()

    @property
    def is_shared(self) -> bool:
        """Whether other processes have rows of the text, too."""
        return len(self._streams.rows) < self._streams.num_rows

    def advance(self, decoder: CarriesState, *, position: int) -> None:
        """Take the state after a window, before the token at ``position``; all processes do so together.

        Only the first process writes checkpoints, and no collective operation can run by then. Where memory ran out it
        is the state before the window.
        """
        start = decoder.initial_state(len(self._streams.rows))
        state = decoder.carried_state.get(self._streams.name, position)
        if state is None:
            state = start
        if self.is_shared:
            # of one type: with --amp the start is wider than what a process carries that had memory
            packed = pack_state(map_state(Tensor.to, state, start))
            rows = distributed_utils.all_gather(packed, distributed_utils.get_data_parallel_group())
            state = unpack_state(torch.cat(list(rows)), like=start)
        self._state = state

    def checkpoint(self) -> Dict[str, Any]:
        """What a checkpoint keeps.

        Returns:
            ``next_window``: its start, its length and the length of a row, in tokens, or None at the end of an epoch;
            ``row_offsets``: the token that each row of all processes begins with in this epoch, empty where it is the
            first of each, or None at the end of an epoch;
            ``hidden_state``: the tensors of the state before it by name, each (rows of all processes, D), or None
            where the next window starts from zeros. After a window without enough memory, which the host passes over,
            it is the state before that one;
            ``text``: the digest of the text, or None at the end of an epoch.
        """
        window = self._next_window()
        state = self._state if window is not None and window[0] > 0 else None
        return {
            "hidden_state": None if state is None else named_tensors(state),
            "next_window": window,
            "row_offsets": self._row_offsets(),
            "text": None if window is None else self._streams.digest,
        }

    def restore(self, saved: Dict[str, Any], decoder: CarriesState) -> None:
        """Give the decoder its rows of what :meth:`checkpoint` returned, if the iterator stands inside an epoch.

        Raises:
            ValueError: if the rows, windows, offsets or text differ from the checkpoint's, or the state is that of
                another model.
        """
        if self._iterator.iterations_in_epoch == 0:
            return
        num_rows = self._streams.num_rows
        start = decoder.initial_state(num_rows)
        zeros = named_tensors(start)
        saved_state = _named(saved["hidden_state"], like=zeros)
        num_saved_rows = len(next(iter(saved_state.values())))
        if num_saved_rows != num_rows:
            raise ValueError(
                f"the checkpoint stopped inside an epoch of {num_saved_rows} rows and cannot go on with "
                f"{num_rows}: use the same --batch-size times processes, {_ANEW}"
            )
        if saved["next_window"] != self._next_window():
            raise ValueError(
                "the checkpoint stopped inside an epoch that was cut into other windows: use the same text, --seed, "
                f"--tokens-per-sample, --window-lengths and --max-window, {_ANEW}"
            )
        if saved.get("row_offsets", []) != self._row_offsets():  # older checkpoints hold none
            raise ValueError(
                "the checkpoint stopped inside an epoch whose rows begin elsewhere: use the same --row-offsets and "
                f"--seed, {_ANEW}"
            )
        if saved.get("text", self._streams.digest) != self._streams.digest:
            raise ValueError(
                f"the checkpoint stopped inside an epoch of another text: use the text that it was trained on, {_ANEW}"
            )
        if [(name, x.shape) for name, x in saved_state.items()] != [(name, x.shape) for name, x in zeros.items()]:
            raise ValueError(
                "the checkpoint stopped inside an epoch with the hidden state of another model: give the --arch and "
                f"the flags that it was trained with, {_ANEW}"
            )
        self._state = with_tensors(start, (x.to(zeros[name]) for name, x in saved_state.items()))
        own = select_rows(self._state, self._streams.own_rows)
        decoder.carried_state.set(self._streams.name, saved["next_window"][0], own)

    @property
    def _streams(self) -> ContiguousStreams:
        streams = self._iterator.dataset
        assert isinstance(streams, ContiguousStreams)
        return streams

    def _next_window(self) -> Optional[List[int]]:
        """Start and length of the window that comes next in the epoch, and the length of a row."""
        window = self._window()
        return None if window is None else [window.start, window.length, self._streams.rows.size(1)]

    def _row_offsets(self) -> Optional[List[int]]:
        """Those of the window that comes next in the epoch."""
        window = self._window()
        return None if window is None else list(window.row_offsets)

    def _window(self) -> Optional[Window]:
        index, windows = self._iterator.iterations_in_epoch, self._iterator.frozen_batches
        if index >= len(windows):
            return None
        (window,) = windows[index]
        return window


def _named(saved: Optional[State], *, like: Dict[str, Tensor]) -> Dict[str, Tensor]:
    """The tensors of a saved state by name: zeros where none was saved, and ``like``'s names where it had none."""
    if saved is None:
        return like
    if isinstance(saved, Mapping):
        return named_tensors(saved)
    # older checkpoints hold the tensors in nested lists, in the same order
    found = list(state_tensors(saved))
    return dict(zip(like, found)) if len(found) == len(like) else named_tensors(saved)
