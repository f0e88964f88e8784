"""Every sentence is in a batch.

Mends: the host drops the sentences at the end whose number is no multiple of --required-batch-size-multiple, 8 by
default, in validation and generation too, so that a test set of 1,014 sentences has 1,008.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_drops_sentences`` passes.
"""

from typing import Any, Callable, Iterable, Sequence, Union

import numpy
from fairseq.data import data_utils

from fairseq_plugins.host.wrapping import wrap

Batch = Union[Sequence[int], numpy.ndarray]
"""Indices of sentences."""


def mend() -> None:
    """Wrap the host's ``batch_by_size``."""
    wrap(data_utils, "batch_by_size", _keep_the_last_batch)


def _keep_the_last_batch(
    batch_by_size: Callable[..., Sequence[Batch]], indices: Iterable[int], *args: Any, **kwargs: Any
) -> Sequence[Batch]:
    """Batches of all sentences.

    Raises:
        ValueError: if a sentence is longer than ``--max-tokens``.
    """
    indices = numpy.asarray(indices if hasattr(indices, "__len__") else list(indices), dtype=numpy.int64)
    try:
        batches = batch_by_size(indices, *args, **kwargs)
    except AssertionError as error:
        if "max_tokens" not in str(error):
            raise
        raise ValueError(f"{error}: give a higher --max-tokens, or leave long sentences out") from None
    num_kept = sum(len(batch) for batch in batches)
    return batches if num_kept == len(indices) else [*batches, indices[num_kept:]]
