"""Lengths that sentences are padded to."""

import fractions

import numpy
import pytest
from fairseq.data import bucket_pad_length_dataset


def quantiles(lengths, num_buckets):
    """By the definition: the longest of each of so many equal parts, the place rounded down."""
    places = [int(fractions.Fraction(n, num_buckets) * (len(lengths) - 1)) for n in range(1, num_buckets + 1)]
    return sorted({sorted(lengths)[place] for place in places})


@pytest.mark.parametrize("num_sentences", [1, 2, 7, 100])
@pytest.mark.parametrize("num_buckets", [1, 2, 3, 8, 200])
def test_lengths_are_quantiles(num_sentences, num_buckets):
    lengths = numpy.random.RandomState(1).randint(1, 30, num_sentences)
    found = bucket_pad_length_dataset.get_buckets(lengths, num_buckets)
    assert found.tolist() == quantiles(lengths.tolist(), num_buckets)
    assert found[-1] == lengths.max() and found.dtype == lengths.dtype


@pytest.mark.skipif(
    numpy.lib.NumpyVersion(numpy.__version__) < "2.4.0", reason="numpy below 2.4 has what the host asks for"
)
def test_the_host_alone_finds_no_lengths():
    with pytest.raises(TypeError, match="interpolation"):
        bucket_pad_length_dataset.get_buckets.__wrapped__(numpy.arange(5), 2)
