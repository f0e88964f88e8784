"""What a process logs whose memory ran out; two processes are tested in integration/test_lost_processes.py."""

from types import SimpleNamespace

import pytest
import torch
from fairseq import trainer as host_trainer
from fairseq.trainer import Trainer

MENDED = Trainer._fast_stat_sync_sum
HOSTS_OWN = MENDED.__wrapped__


class StandIn:
    """What the sum over processes reads of a trainer."""

    device, data_parallel_process_group = torch.device("cpu"), None

    def __init__(self, *, training=True):
        self.training = training

    def get_model(self):
        return SimpleNamespace(training=self.training)


@pytest.fixture
def shared(monkeypatch):
    """What a process gives to the sum over all, a dictionary a call."""
    given = []

    def all_reduce_dict(data, **_):
        given.append(data)
        return data

    monkeypatch.setattr(host_trainer.distributed_utils, "all_reduce_dict", all_reduce_dict)
    return given


LOGGED = [{"loss": torch.tensor(3.0), "ntokens": 7}, {"loss": torch.tensor(4.0), "ntokens": 8}]


def test_zeros_are_shared_where_nothing_was_logged(shared):
    trainer = StandIn()
    assert MENDED(trainer, LOGGED, 15, 0) == ([{"loss": 7, "ntokens": 15}], [15, 0])
    assert MENDED(trainer, [], 0, 1) == ([{"loss": 0, "ntokens": 0}], [0, 1])
    assert [list(data) for data in shared] == [list(shared[0])] * 2
    assert [type(value) for value in shared[1].values()] == [type(value) for value in shared[0].values()]


def test_the_host_alone_shares_no_names(shared):
    HOSTS_OWN(StandIn(), [], 0, 1)
    assert list(shared[0]) == ["extra_stats_0", "extra_stats_1"]


def test_what_validation_logs_is_not_that_of_updates(shared):
    trainer = StandIn()
    MENDED(trainer, LOGGED, 15, 0)
    trainer.training = False
    MENDED(trainer, [{"bleu": 30.0}], 15)
    trainer.training = True
    assert MENDED(trainer, [], 0, 1)[0] == [{"loss": 0, "ntokens": 0}]


def test_without_any_update_before_it_ends(shared):
    trainer = StandIn(training=False)
    MENDED(trainer, LOGGED, 15)
    with pytest.raises(ValueError, match="^memory ran out in the first batch: lower --batch-size or --max-tokens$"):
        MENDED(trainer, [], 0, 1)
