"""Word counts that a checkpoint keeps."""

import pytest
import torch
from torch import nn

from fairseq_plugins.output_layers.saved_word_counts import SavedWordCounts

COUNTS = torch.tensor([0, 1, 255, 256, 65_535, 65_536, 103_227_020, 2**31, 10**12])


def make(counts=COUNTS):
    word_counts = SavedWordCounts(len(counts))
    word_counts.set(counts)
    return word_counts


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_precision_keeps_them_exactly(dtype):
    found = make().to(dtype)()
    assert found.dtype == torch.int64 and torch.equal(found, COUNTS)


def test_a_checkpoints_take_the_place_of_the_models():
    model = make(COUNTS + 7)
    model.load_state_dict(make().half().state_dict())
    assert torch.equal(model(), COUNTS)


def test_without_data_and_checkpoint_they_are_zero():
    assert torch.equal(SavedWordCounts(5)(), torch.zeros(5, dtype=torch.long))


def test_a_moving_average_keeps_them():
    averaged = nn.Module()
    averaged.counts, new = make(), make()
    with torch.no_grad():
        for _ in range(50):  # as the host's, over all buffers
            averaged.counts.digits.mul_(0.999).add_(new.digits, alpha=0.001)
    assert torch.equal(averaged.counts(), COUNTS)
