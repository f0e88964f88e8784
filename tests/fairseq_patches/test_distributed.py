"""Training in several processes: one that runs out of memory stops no other, and torchrun works on CPUs."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from fairseq import trainer as fairseq_trainer
from fairseq.dataclass.configs import FairseqConfig
from fairseq.distributed import LegacyDistributedDataParallel
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer
from omegaconf import OmegaConf

NO_SYNC = LegacyDistributedDataParallel.no_sync


def accumulates_after_an_error(no_sync):
    module = SimpleNamespace(accumulate_grads=False)
    with pytest.raises(RuntimeError), no_sync(module):
        assert module.accumulate_grads
        raise RuntimeError("out of memory")
    return module.accumulate_grads


def test_gradients_are_shared_again_after_an_error_unlike_by_fairseq_alone():
    assert not accumulates_after_an_error(NO_SYNC)
    assert accumulates_after_an_error(NO_SYNC.__wrapped__)


@pytest.mark.parametrize("before", [True, False])
def test_without_an_error_it_is_as_before(before):
    module = SimpleNamespace(accumulate_grads=before)
    with NO_SYNC(module):
        assert module.accumulate_grads
    assert module.accumulate_grads is before


SUM_LOGS = Trainer._fast_stat_sync_sum


class StandIn:
    """The attributes of a trainer that the sum over processes reads."""

    device, data_parallel_process_group = torch.device("cpu"), None

    def __init__(self, *, training=True):
        self.training = training

    def get_model(self):
        return SimpleNamespace(training=self.training)


@pytest.fixture
def shared(monkeypatch):
    """Contributions of a process to the sum over all, a dictionary for each call."""
    given = []

    def all_reduce_dict(data, **_):
        given.append(data)
        return data

    monkeypatch.setattr(fairseq_trainer.distributed_utils, "all_reduce_dict", all_reduce_dict)
    return given


LOGGED = [{"loss": torch.tensor(3.0), "ntokens": 7}, {"loss": torch.tensor(4.0), "ntokens": 8}]


def test_zeros_are_shared_where_nothing_was_logged(shared):
    trainer = StandIn()
    assert SUM_LOGS(trainer, LOGGED, 15, 0) == ([{"loss": 7, "ntokens": 15}], [15, 0])
    assert SUM_LOGS(trainer, [], 0, 1) == ([{"loss": 0, "ntokens": 0}], [0, 1])
    assert [list(data) for data in shared] == [list(shared[0])] * 2
    assert [type(value) for value in shared[1].values()] == [type(value) for value in shared[0].values()]
    SUM_LOGS.__wrapped__(trainer, [], 0, 1)
    assert list(shared[2]) == ["extra_stats_0", "extra_stats_1"], "fairseq alone shares no names"


def test_what_validation_logs_is_not_that_of_updates(shared):
    trainer = StandIn()
    SUM_LOGS(trainer, LOGGED, 15, 0)
    trainer.training = False
    SUM_LOGS(trainer, [{"bleu": 30.0}], 15)
    trainer.training = True
    assert SUM_LOGS(trainer, [], 0, 1)[0] == [{"loss": 0, "ntokens": 0}]


def test_without_any_update_before_it_ends(shared):
    trainer = StandIn(training=False)
    SUM_LOGS(trainer, LOGGED, 15)
    with pytest.raises(ValueError, match="^memory ran out in the first batch: lower --batch-size or --max-tokens$"):
        SUM_LOGS(trainer, [], 0, 1)


@pytest.fixture
def run_under_torchrun(monkeypatch):
    """``run_under_torchrun(call_main)``: how many processes the second one on a machine without GPUs knows of."""
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "3", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(distributed_utils, "distributed_main", lambda _, main, cfg, kwargs: main(cfg))

    def run(call_main):
        found = []
        cfg = OmegaConf.structured(FairseqConfig)
        cfg.distributed_training.distributed_world_size = 1
        call_main(cfg, lambda cfg: found.append(cfg.distributed_training))
        return found[0]

    return run


def test_processes_of_torchrun_train_one_model_on_cpus_unlike_by_fairseq_alone(run_under_torchrun):
    flags = run_under_torchrun(distributed_utils.call_main)
    assert (flags.distributed_world_size, flags.distributed_rank, flags.distributed_init_method) == (3, 1, "env://")
    assert (flags.distributed_backend, flags.ddp_backend) == ("gloo", "legacy_ddp")
    assert run_under_torchrun(inspect.unwrap(distributed_utils.call_main)).distributed_world_size == 1
