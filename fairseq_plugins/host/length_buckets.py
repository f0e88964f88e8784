"""``--num-batch-buckets`` pads sentences to one of so many lengths.

Mends: numpy 2.4 has no ``interpolation`` in ``numpy.percentile``, by which the host finds the lengths.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3, with numpy 2.4 and later.
Needed as long as ``test_the_host_alone_finds_no_lengths`` passes.
"""

from typing import Any, Callable

import numpy
from fairseq.data import bucket_pad_length_dataset

from fairseq_plugins.host.wrapping import wrap


def mend() -> None:
    """Wrap the ``get_buckets`` of the host's padded data sets."""
    wrap(bucket_pad_length_dataset, "get_buckets", _quantiles)


def _quantiles(get_buckets: Callable[..., Any], sizes: Any, num_buckets: int) -> numpy.ndarray:
    lengths = numpy.sort(sizes)
    return numpy.unique(lengths[numpy.arange(1, num_buckets + 1) * (len(lengths) - 1) // num_buckets])
