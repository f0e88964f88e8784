"""The windows of a stream, an epoch at a time, as the flags of ``stateful_lm`` say."""

from dataclasses import replace
from typing import Callable, List

from fairseq_plugins.data.contiguous_streams import ContiguousStreams
from fairseq_plugins.data.row_offsets import random_row_offsets
from fairseq_plugins.data.windows import Window, fixed_windows, random_windows
from fairseq_plugins.tasks.stateful_lm_config import StatefulLanguageModelingConfig

CutWindows = Callable[[ContiguousStreams, int], List[List[Window]]]
"""From rows and an epoch to the batches of windows that cover them."""


def scoring_windows(
    streams: ContiguousStreams, epoch: int, *, config: StatefulLanguageModelingConfig
) -> List[List[Window]]:
    """Windows of one length, the same in every epoch."""
    windows = fixed_windows(streams.num_predictions_per_row, length=config.tokens_per_sample)
    return [[window] for window in windows]


def training_windows(
    streams: ContiguousStreams, epoch: int, *, config: StatefulLanguageModelingConfig
) -> List[List[Window]]:
    """Windows of the lengths and from the offsets of rows that are drawn for the epoch."""
    num_predictions, length = streams.num_predictions_per_row, config.tokens_per_sample
    if config.window_lengths == "random":
        seed = (config.seed, epoch)
        windows = random_windows(num_predictions, length=length, max_length=config.max_window, seed=seed)
    else:
        windows = fixed_windows(num_predictions, length=length)
    if config.row_offsets == "random":
        seed = (config.seed, epoch, 1)  # a generator apart from that of the windows
        offsets = random_row_offsets(streams.num_rows, streams.rows.size(1), seed=seed)
        windows = [replace(window, row_offsets=offsets) for window in windows]
    return [[window] for window in windows]
