"""Going on inside an epoch that has become shorter."""

import pytest
from fairseq.data import FairseqDataset
from fairseq.data.iterators import EpochBatchIterator

import fairseq_plugins  # noqa: F401

STATE = {"version": 2, "epoch": 1, "iterations_in_epoch": 4, "shuffle": False}


class Numbers(FairseqDataset):
    def __getitem__(self, index):
        return index

    def __len__(self):
        return 12


def batches(size):
    numbers = list(range(12))
    sampler = [numbers[start : start + size] for start in range(0, 12, size)]
    return EpochBatchIterator(Numbers(), collate_fn=list, batch_sampler=sampler, disable_shuffling=True)


def test_an_epoch_that_is_too_short_is_told_with_the_flags():
    told = "after 4 batches, .*--batch-size or --max-tokens.*, beginning at epoch 1 again, with --reset-dataloader$"
    with pytest.raises(ValueError, match=told):
        batches(6).load_state_dict(STATE)


def test_an_epoch_that_is_long_enough_goes_on():
    iterator = batches(2)
    iterator.load_state_dict(STATE)
    assert next(iterator.next_epoch_itr()) == [8, 9]


def test_the_host_alone_asks_to_report():
    with pytest.raises(RuntimeError, match="please report this to the fairseq developers"):
        EpochBatchIterator.load_state_dict.__wrapped__(batches(6), STATE)
