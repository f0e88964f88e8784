"""Batches of the host's data sets."""

import numpy
import pytest
from fairseq.data import data_utils

LIMITS = [dict(max_tokens=60), dict(max_sentences=16), dict(max_tokens=100, max_sentences=9)]


def batch(batch_by_size, indices, lengths, **limits):
    return batch_by_size(
        indices, lambda n: lengths[n], num_tokens_vec=lengths, required_batch_size_multiple=8, **limits
    )


@pytest.mark.parametrize("num_sentences", [1, 7, 8, 10, 1014])
@pytest.mark.parametrize("limits", LIMITS)
def test_every_sentence_is_in_a_batch(num_sentences, limits):
    lengths = numpy.sort(numpy.random.RandomState(1).randint(1, 12, num_sentences))
    for indices in (numpy.arange(num_sentences), iter(range(num_sentences))):
        batches = batch(data_utils.batch_by_size, indices, lengths, **limits)
        assert [n for batch in batches for n in batch] == list(range(num_sentences))
        for indices_of_batch in batches:
            assert len(indices_of_batch) <= limits.get("max_sentences", num_sentences)
            assert len(indices_of_batch) * lengths[indices_of_batch].max() <= limits.get("max_tokens", 10**6)


def test_the_host_alone_drops_sentences():
    batches = batch(data_utils.batch_by_size.__wrapped__, numpy.arange(1014), numpy.ones(1014, int), max_sentences=16)
    assert sum(map(len, batches)) == 1008
